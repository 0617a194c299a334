"""The question-answering and choice sources on the published files: counts, leaks and what the filters promise.

The sources are read one by one, since the folder need not hold the training files of each.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.data.sample import Split
from data_builders.dataset.manifest import CHECKSUM_DIFFERS, describe_file
from data_builders.raw.decoding import open_bytes
from data_builders.raw.files import find_files
from data_builders.sources import SOURCES
from tests.data_builders.reading import read, steps

HUMAN_TRAIN = "timeqa/human_train.hard.json.gzip"

# Substitutes are marked; all other test counts are PIPER's table 7, or the whole development file (SocialIQA, αNLI).
TEST_COUNTS = {
    "tempreason": {"temporal": 839},  # TimeBench in place of the official file
    "timeqa": {"temporal": 440},  # TimeBench in place of the official file
    "ester": {"causal": 110, "counterfactual": 36, "subevent_conditional": 108},
    "cqa": {"causal": 945, "counterfactual": 656},  # derived questions
    "cosmosqa": {"causal": 2_701, "counterfactual": 284},
    "ifqa": {"counterfactual": 700},
    "wiqa": {"counterfactual": 3_003},
    "socialiqa": {"causal": 1_954},
    "alphanli": {"causal": 1_532},
}
# All but IfQA's are from files that stand in for official ones.
# TimeQA: the published chunks alone would give 978; one answer stands in a long stretch that none of them covers.
TRAIN_COUNTS = {"timeqa": 979, "ester": 398, "cqa": 13_728, "cosmosqa": 5_719, "ifqa": 2_355}


@pytest.mark.parametrize("name", TEST_COUNTS)
def test_test_split_has_the_known_counts(published_raw: Path, name: str) -> None:
    samples = read(published_raw, name, ("test",))["test"].rows
    assert Counter(sample.relation for sample in samples) == TEST_COUNTS[name]
    assert len({sample.id for sample in samples}) == len(samples)
    assert {(sample.dataset, sample.split) for sample in samples} == {(name, "test")}


@pytest.mark.parametrize("name", TRAIN_COUNTS)
def test_train_split_has_the_counts_of_its_filters_and_shares_no_context(published_raw: Path, name: str) -> None:
    rows = read(published_raw, name)
    samples = rows["train"].rows
    assert len(samples) == len({sample.id for sample in samples}) == TRAIN_COUNTS[name]
    if name == "ifqa":  # passages recur with other questions
        key = [{sample.question.casefold() for sample in rows[split].rows} for split in ("train", "test")]
    else:
        key = [{_letters(sample.context) for sample in rows[split].rows} for split in ("train", "test")]
    assert not key[0] & key[1]


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))


@pytest.mark.parametrize(
    ("name", "split"), [("timeqa", "train"), ("timeqa", "test"), ("cqa", "train"), ("cqa", "test")]
)
def test_answers_stand_in_their_context(published_raw: Path, name: str, split: Split) -> None:
    for sample in read(published_raw, name, ("train", "test"))[split].rows:
        context = sample.context.casefold()
        found = [answer.casefold() in context for answer in sample.answers]
        assert all(found) if name == "cqa" else any(found), sample.id


def test_the_word_rule_gives_other_counts(published_raw: Path) -> None:
    cosmosqa = read(published_raw, "cosmosqa", ("test",), "rule=word")["test"].rows
    assert Counter(sample.relation for sample in cosmosqa) == {"causal": 2_743, "counterfactual": 242}
    ester = read(published_raw, "ester", ("test",), "rule=word")["test"].rows
    assert Counter(s.relation for s in ester) == {"causal": 116, "counterfactual": 30, "subevent_conditional": 109}


def test_timeqa_excerpts_are_pieces_of_their_pages(published_raw: Path) -> None:
    excerpts = {s.id: s.context for s in read(published_raw, "timeqa")["train"].rows}
    pages = {s.id: s.context for s in read(published_raw, "timeqa", ("train",), "context=page")["train"].rows}
    assert len(pages) == 66
    assert max(len(text.split()) for text in excerpts.values()) <= 600
    # A page that fits is shown whole.
    assert all(_letters(excerpts[name]) == _letters(page) for name, page in pages.items())
    # The others begin and end with a sentence or with the page; only in three does a list hold the answer.
    assert not [text for text in excerpts.values() if text[:1].islower()]
    whole = {json.loads(line)["context"].strip() for line in open_bytes(published_raw / HUMAN_TRAIN)}
    ends = "".join(page[-300:] for page in whole)
    cut = [text for text in excerpts.values() if text[-1] not in ".!?\"'”" and text[-200:] not in ends]
    assert len(cut) == 3


def test_tempreason_facts_always_hold_the_answer(published_raw: Path) -> None:
    samples = read(published_raw, "tempreason", ("test",), "context=facts")["test"].rows
    assert all(sample.answers[0].casefold() in sample.context.casefold() for sample in samples)


def test_cosmosqa_draws_no_test_story_and_no_right_answer(published_raw: Path) -> None:
    samples = read(published_raw, "cosmosqa")["train"].rows
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


def test_cqa_passages_of_the_test_are_found_in_other_spellings(published_raw: Path) -> None:
    assert steps(read(published_raw, "cqa")["train"])["passages of the test"] == (19_892, 19_824)


def test_known_checksums_are_those_of_the_files(published_raw: Path) -> None:
    for name in TEST_COUNTS:
        splits = ["train", "test"] if name in TRAIN_COUNTS else ["test"]
        for found in find_files(SOURCES[name], splits, published_raw).values():
            described = describe_file(found.file, found.path)
            assert described["checksum"] != CHECKSUM_DIFFERS, found.file.name
            assert found.file.bytes in (0, described["bytes"])


def test_ifqa_has_a_development_split(published_raw: Path) -> None:
    assert len(read(published_raw, "ifqa", ("dev",))["dev"].rows) == 700
