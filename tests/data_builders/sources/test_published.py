"""Published raw files give the known counts, and promises that only they can test; skipped if they are missing."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from d2e_sft.data.sample import EventSample, Split
from data_builders.dataset.manifest import CHECKSUM_DIFFERS, describe_file
from data_builders.raw.decoding import open_bytes
from data_builders.raw.files import MissingRawFileError, find_files
from data_builders.sources import SOURCES
from tests.data_builders.reading import rows_of_split

# (dataset, split, settings) → counts by the named field. Test counts are PIPER's table 7 or the published ones; those
# of substitutes and derived questions are marked.
COUNTS: list[tuple[str, Split, tuple[str, ...], str, dict[str, int]]] = [
    ("tempreason", "test", (), "relation", {"temporal": 839}),  # substitute
    ("timeqa", "test", (), "relation", {"temporal": 440}),  # substitute
    ("timeqa", "train", (), "relation", {"temporal": 979}),  # substitute
    ("timeqa", "train", ("context=page",), "relation", {"temporal": 66}),  # substitute
    ("tracie", "test", (), "relation", {"temporal": 2_039}),
    ("tracie", "train", (), "relation", {"temporal": 571}),
    ("mctaco", "test", (), "relation", {"temporal": 234}),
    ("mctaco", "train", (), "relation", {"temporal": 99}),
    ("cider", "test", (), "relation", {"temporal": 136, "causal": 1_469, "subevent_conditional": 356}),
    ("ester", "test", (), "relation", {"causal": 110, "counterfactual": 36, "subevent_conditional": 108}),
    ("ester", "test", ("rule=word",), "relation", {"causal": 116, "counterfactual": 30, "subevent_conditional": 109}),
    ("ester", "train", (), "format", {"qa": 398}),  # substitute
    ("cqa", "test", (), "relation", {"causal": 945, "counterfactual": 656}),  # derived
    ("cqa", "train", (), "format", {"qa": 13_728}),  # derived
    ("cosmosqa", "test", (), "relation", {"causal": 2_701, "counterfactual": 284}),
    ("cosmosqa", "test", ("rule=word",), "relation", {"causal": 2_743, "counterfactual": 242}),
    ("cosmosqa", "train", (), "format", {"scq": 5_719}),  # substitute
    ("ecare", "test", (), "relation", {"causal": 2_122}),
    ("ecare", "train", (), "relation", {"causal": 14_569}),
    ("ifqa", "test", (), "relation", {"counterfactual": 700}),
    ("ifqa", "dev", (), "relation", {"counterfactual": 700}),
    ("ifqa", "train", (), "relation", {"counterfactual": 2_355}),
    ("wiqa", "test", (), "relation", {"counterfactual": 3_003}),
    ("socialiqa", "test", (), "relation", {"causal": 1_954}),
    ("alphanli", "test", (), "relation", {"causal": 1_532}),
    ("crepe", "dev", (), "answers", {"equally likely": 583, "more likely": 86, "less likely": 58}),
    ("crepe", "test", (), "answers", {"equally likely": 1_176, "more likely": 230, "less likely": 114}),
    ("openpi2", "dev", (), "relation", {"temporal": 1_311}),
    ("openpi2", "test", (), "relation", {"temporal": 3_091}),
    ("matres", "train", (), "answers", {"before": 3_229, "after": 2_044, "at the same time": 208, "unknown": 855}),
    ("matres", "dev", (), "subset", {"aligned": 3_233, "conflict": 3_171}),
    ("matres", "test", (), "subset", {"aligned": 412, "conflict": 406}),
    ("torque", "test", (), "subset", {"conflict": 443, "aligned": 375}),
    ("torque", "test", ("bias=narrative",), "subset", {"conflict": 140, "aligned": 607}),
    ("torque", "test", ("bias=dependency",), "subset", {"conflict": 68, "aligned": 184}),
    ("kre_squad", "test", (), "subset", {"aligned": 1_768, "conflict": 1_595}),
    ("nq_swap", "test", (), "subset", {"aligned": 2_146, "conflict": 4_730}),
    ("faitheval", "test", (), "subset", {"conflict": 1_000}),
    ("memotrap", "test", (), "subset", {"conflict": 2_439}),
    ("memotrap", "test", ("hate_speech=true",), "subset", {"conflict": 2_539}),
    ("cpi_facts", "test", (), "subset", {"conflict": 313}),
]


def rows(raw: Path, name: str, split: Split, *settings: str) -> list[EventSample]:
    return rows_of_split(raw, name, split, *settings) or pytest.skip(f"no raw file of {name}, {split}")


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))


@pytest.mark.parametrize(("name", "split", "settings", "field", "counts"), COUNTS)
def test_a_split_has_the_known_counts(
    published_raw: Path, name: str, split: Split, settings: tuple[str, ...], field: str, counts: dict[str, int]
) -> None:
    found = rows(published_raw, name, split, *settings)
    values = [getattr(sample, field) for sample in found]
    assert Counter(value[0] if isinstance(value, list) else value for value in values) == counts
    assert len({sample.id for sample in found}) == len(found)
    assert {(sample.dataset, sample.split) for sample in found} == {(name, split)}


@pytest.mark.parametrize("name", ["tracie", "mctaco", "ecare", "timeqa", "ester", "cqa", "cosmosqa", "ifqa"])
def test_train_and_test_share_no_context(published_raw: Path, name: str) -> None:
    # Passages of IfQA recur with other questions.
    train, test = (
        {_letters(one.question if name == "ifqa" else one.context) for one in rows(published_raw, name, split)}
        for split in get_args(Split)[::2]
    )
    assert not train & test


@pytest.mark.parametrize(("name", "split"), [("tracie", "train"), ("tracie", "test"), ("cider", "test")])
def test_labels_are_even(published_raw: Path, name: str, split: Split) -> None:
    labels = Counter(sample.answers[0] for sample in rows(published_raw, name, split))
    assert abs(labels["positive"] - labels["negative"]) <= 6  # one for each of CIDER's relations


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.official])
def test_raw_files_have_the_recorded_checksums(published_raw: Path, name: str) -> None:
    source, found = SOURCES[name], {}
    for split in source.splits:
        try:
            found.update({item.file: item.path for item in find_files(source, [split], published_raw).values()})
        except MissingRawFileError:
            continue
    others = {file: published_raw / source.raw_folder / file.name for file in source.others}
    for file, path in {**found, **{file: path for file, path in others.items() if path.is_file()}}.items():
        described = describe_file(file, path)
        assert described["checksum"] != CHECKSUM_DIFFERS, file.name
        assert file.bytes in (0, described["bytes"])


def test_every_tracie_sample_is_a_raw_row_with_its_label(published_raw: Path) -> None:
    lines = (published_raw / "tracie/iid/tracie_test.txt").read_text(encoding="utf-8").split("\n")
    for sample in rows(published_raw, "tracie", "test"):
        rebuilt = f"event: {sample.question} story: {sample.context} answer: {sample.answers[0]}"
        # Some of the double quotes are CSV's.
        assert lines[sample.meta["line"] - 1].replace('"', "").split() == rebuilt.replace('"', "").split()


def test_mctaco_answers_are_the_candidates_marked_yes(published_raw: Path) -> None:
    with (published_raw / "mctaco/test_9442.tsv").open(encoding="utf-8", newline="") as file:
        raw = [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row[4] == "Event Ordering"]
    for sample in rows(published_raw, "mctaco", "test"):
        own = [row for row in raw if (row[0].strip(), row[1].strip()) == (sample.context, sample.question)]
        assert sample.options == [row[2].strip() for row in own]
        assert sample.answers == [row[2].strip() for row in own if row[3] == "yes"]


def test_cider_positives_are_gold_and_negatives_are_not(published_raw: Path) -> None:
    wordings = (" happens before ", " happens at the same time as ", " causes the desire for ", " causes ", " has ")
    dialogues = json.loads((published_raw / "cider/cider_main.json").read_text(encoding="utf-8"))
    gold = {
        (dialogue["id"], f"'{triplet['head'].strip()}'{wording}'{triplet['tail'].strip()}'")
        for dialogue in dialogues
        for triplet in dialogue["triplets"]
        for wording in wordings
    }
    for sample in rows(published_raw, "cider", "test"):
        claim = re.sub(r"( as a (subevent|prerequisite))?\.$", "", sample.question)
        assert ((sample.meta["dialogue"], claim) in gold) == (sample.answers == ["positive"]), sample.question


def test_timeqa_excerpts_are_pieces_of_their_pages(published_raw: Path) -> None:
    excerpts = {s.id: s.context for s in rows(published_raw, "timeqa", "train")}
    pages = {s.id: s.context for s in rows(published_raw, "timeqa", "train", "context=page")}
    assert max(len(text.split()) for text in excerpts.values()) <= 600
    # A page that fits is shown whole.
    assert all(_letters(excerpts[name]) == _letters(page) for name, page in pages.items())
    # The others begin and end with a sentence or with the page; only in three does a list have the answer.
    assert not [text for text in excerpts.values() if text[:1].islower()]
    lines = open_bytes(published_raw / "timeqa/human_train.hard.json.gzip")
    ends = "".join(json.loads(line)["context"].strip()[-300:] for line in lines)
    cut = [text for text in excerpts.values() if text[-1] not in ".!?\"'”" and text[-200:] not in ends]
    assert len(cut) == 3


def test_cosmosqa_draws_no_right_answer(published_raw: Path) -> None:
    samples = rows(published_raw, "cosmosqa", "train")
    path = published_raw / "cosmosqa" / "subtask024_cosmosqa_answer_generation.json"
    right: dict[str, set[str]] = {}
    for instance in json.loads(path.read_text(encoding="utf-8"))["Instances"]:
        context = re.match(r"Context: (.*?)\s*\n", instance["input"], re.DOTALL)
        assert context
        right.setdefault(context[1].strip(), set()).update(map(_letters, instance["output"]))
    places = Counter(sample.options.index(sample.answers[0]) for sample in samples)
    assert min(places.values()) > 0.2 * len(samples)
    for sample in samples:
        wrong = {_letters(option) for option in sample.options} - {_letters(sample.answers[0])}
        assert len(wrong) == 3
        assert not wrong & right[sample.context]


def test_the_events_of_matres_are_marked_in_order_in_both_contexts(published_raw: Path) -> None:
    for one in rows(published_raw, "matres", "dev"):
        assert one.context.index("<e1>") < one.context.index("<e2>")
        assert one.refined_context is not None
        assert one.refined_context.count("<e1>") == one.refined_context.count("<e2>") == 1
    priors = Counter(prior for one in rows(published_raw, "matres", "dev") for prior in one.meta["conflicts_with"])
    assert priors == {"narrative": 3_171, "tense": 1_093, "roberta_erp": 3_862}


def test_facts_of_tempreason_have_the_answer(published_raw: Path) -> None:
    for sample in rows(published_raw, "tempreason", "test", "context=facts"):
        assert sample.answers[0].casefold() in sample.context.casefold()
