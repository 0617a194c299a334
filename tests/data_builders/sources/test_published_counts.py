"""The builders meet PIPER's table 7 on the published files."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.data.sample import EventSample, read_samples
from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from data_builders.text.sentences import split_sentences

NAMES = ("tracie", "ecare", "mctaco", "cider")
TEST_COUNTS = {
    ("tracie", "temporal"): 2_039,
    ("ecare", "causal"): 2_122,
    ("mctaco", "temporal"): 234,
    ("cider", "temporal"): 136,
    ("cider", "causal"): 1_469,
    ("cider", "subevent_conditional"): 356,
}


@pytest.fixture(scope="module")
def out(published_raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    build(BuildOptions(NAMES, folder, published_raw))
    return folder


@pytest.fixture(scope="module")
def samples(out: Path) -> list[EventSample]:
    return read_samples(out / "train.parquet") + read_samples(out / "test.parquet")


def _of(samples: list[EventSample], dataset: str, split: str) -> list[EventSample]:
    return [sample for sample in samples if (sample.dataset, sample.split) == (dataset, split)]


def test_test_split_has_the_published_counts(samples: list[EventSample]) -> None:
    assert Counter((s.dataset, s.relation) for s in samples if s.split == "test") == TEST_COUNTS


def test_train_split_has_the_counts_of_the_same_filters(samples: list[EventSample]) -> None:
    train = Counter(s.dataset for s in samples if s.split == "train")
    assert train == {"tracie": 571, "ecare": 14_569, "mctaco": 99}


def test_ids_are_unique(samples: list[EventSample]) -> None:
    assert len({(s.split, s.id) for s in samples}) == len(samples)


@pytest.mark.parametrize(("dataset", "split"), [("tracie", "train"), ("tracie", "test"), ("cider", "test")])
def test_nli_labels_are_even(samples: list[EventSample], dataset: str, split: str) -> None:
    labels = Counter(s.answers[0] for s in _of(samples, dataset, split))
    assert abs(labels["positive"] - labels["negative"]) <= 6  # one for each of CIDER's six relations


@pytest.mark.parametrize("dataset", ["tracie", "mctaco", "ecare"])
def test_train_and_test_share_no_context(samples: list[EventSample], dataset: str) -> None:
    train = {s.context.casefold() for s in _of(samples, dataset, "train")}
    assert not train & {s.context.casefold() for s in _of(samples, dataset, "test")}


def test_every_tracie_sample_is_a_raw_row_with_its_label(samples: list[EventSample], published_raw: Path) -> None:
    lines = (published_raw / "tracie/iid/tracie_test.txt").read_text(encoding="utf-8").split("\n")
    for sample in _of(samples, "tracie", "test"):
        rebuilt = f"event: {sample.question} story: {sample.context} answer: {sample.answers[0]}"
        # But for double quotes, of which some are CSV's.
        assert lines[sample.meta["line"] - 1].replace('"', "").split() == rebuilt.replace('"', "").split()


def test_mctaco_answers_are_the_candidates_marked_yes(samples: list[EventSample], published_raw: Path) -> None:
    with (published_raw / "mctaco/test_9442.tsv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row[4] == "Event Ordering"]
    for sample in _of(samples, "mctaco", "test"):
        own = [row for row in rows if (row[0].strip(), row[1].strip()) == (sample.context, sample.question)]
        assert sample.options == [row[2].strip() for row in own]
        assert sample.answers == [row[2].strip() for row in own if row[3] == "yes"]


def test_cider_positives_are_gold_and_negatives_are_not(samples: list[EventSample], published_raw: Path) -> None:
    wordings = (" happens before ", " happens at the same time as ", " causes the desire for ", " causes ", " has ")
    dialogues = json.loads((published_raw / "cider/cider_main.json").read_text(encoding="utf-8"))
    gold = {
        (dialogue["id"], f"'{triplet['head'].strip()}'{wording}'{triplet['tail'].strip()}'")
        for dialogue in dialogues
        for triplet in dialogue["triplets"]
        for wording in wordings
    }
    for sample in _of(samples, "cider", "test"):
        claim = re.sub(r"( as a (subevent|prerequisite))?\.$", "", sample.question)
        assert ((sample.meta["dialogue"], claim) in gold) == (sample.answers == ["positive"]), sample.question


def test_refined_contexts_are_sentences_of_the_context_in_order(samples: list[EventSample]) -> None:
    for sample in samples:
        assert sample.refined_context
        # One turn of a dialogue has no line break left and would be split into sentences.
        split = str.splitlines if sample.dataset == "cider" else split_sentences
        remaining = iter(split(sample.context))
        assert all(kept in remaining for kept in split(sample.refined_context)), sample.id


def test_the_refiner_shortens_stories_and_dialogues(out: Path) -> None:
    datasets = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["datasets"]
    share = {name: entry["splits"]["test"]["refined_share_of_words"] for name, entry in datasets.items()}
    assert share["tracie"] < 0.9  # where no sentence tells an implicit event, all stay
    assert 0.2 < share["cider"] < 0.5


def test_published_files_have_the_recorded_checksums(out: Path, published_raw: Path) -> None:
    datasets = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["datasets"]
    for name, entry in datasets.items():
        for file in entry["files"]:
            content = (published_raw / name / file["name"]).read_bytes()
            assert file["sha256"] == hashlib.sha256(content).hexdigest()
            assert file["bytes"] == len(content)
            assert file["checksum"] == "equals the published file"
