"""The habit task: a model that uses the context is right in both subsets, one with habits only in one."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from d2e_sft.data.sample import EventSample
from data_builders.habit.source import KNOWN_HABITS
from tests.data_builders.reading import build_splits

Rows = dict[str, list[EventSample]]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return build_splits(
        tmp_path_factory.mktemp("habit"), "habit", "test_samples=300", "train_samples=320", "strength=0.95"
    )


def _read(context: str, question: str) -> str:
    """The last place of the asked thing by the text."""
    thing = re.fullmatch(r"Where is the (\w+) now\?", question)[1]  # type: ignore[index]
    return re.findall(rf"[Tt]he {thing} (?:is in|to) the (\w+)\.", context)[-1]


def _accuracy(samples: list[EventSample], answer: Callable[[EventSample], str]) -> dict[str, float]:
    """Percent right by subset."""
    right: dict[str, list[bool]] = {}
    for sample in samples:
        right.setdefault(str(sample.subset), []).append(answer(sample) in sample.answers)
    return {subset: 100 * sum(found) / len(found) for subset, found in right.items()}


def _places(sample: EventSample) -> list[str]:
    return re.findall(r"the (\w+)\.", sample.context)


def test_using_the_context_is_right_in_both_subsets(rows: Rows) -> None:
    for samples in rows.values():
        assert _accuracy(samples, lambda s: _read(s.context, s.question)) == {"aligned": 100, "conflict": 100}
        assert _accuracy(samples, lambda s: _read(s.refined_context or "", s.question)) == {
            "aligned": 100,
            "conflict": 100,
        }


def test_a_learnt_place_per_question_is_right_in_one_subset(rows: Rows) -> None:
    seen: dict[str, Counter[str]] = {}
    for sample in rows["train"]:
        seen.setdefault(sample.question, Counter())[sample.answers[0]] += 1
    learnt = {question: places.most_common(1)[0][0] for question, places in seen.items()}
    assert _accuracy(rows["test"], lambda s: learnt[s.question]) == {"aligned": 100, "conflict": 0}
    for sample in (*rows["train"], *rows["test"]):
        assert sample.habit == [learnt[sample.question]]
        assert sample.habit[0] in _places(sample), "even if it is not the answer"


def test_shortcuts_are_mostly_wrong_and_equally_often_in_both_subsets(rows: Rows) -> None:
    shortcuts: dict[str, Callable[[EventSample], str]] = {
        "last place": lambda s: _places(s)[-1],
        "first place": lambda s: _places(s)[0],
        "most frequent place": lambda s: Counter(_places(s)).most_common(1)[0][0],
        "last place but the habit": lambda s: next(p for p in [*reversed(_places(s)), "x"] if p not in s.habit),
    }
    found = {name: _accuracy(rows["test"], shortcut) for name, shortcut in shortcuts.items()}
    # A story is about four things, so the asked one is the last that is moved in a quarter of them.
    assert all(accuracy["conflict"] < 45 for accuracy in found.values()), found
    for name in ("last place", "first place", "most frequent place"):
        assert abs(found[name]["aligned"] - found[name]["conflict"]) < 12, (name, found[name])


@pytest.mark.parametrize(("strength", "aligned"), [(0, 0), (0.5, 100), (0.95, 190), (1, 200)])
def test_the_strength_of_the_habit_is_exact(tmp_path: Path, strength: float, aligned: int) -> None:
    samples = build_splits(tmp_path, "habit", f"strength={strength}", "train_samples=200", "test_samples=1")["train"]
    assert sum(sample.answers == sample.habit for sample in samples) == aligned
    assert [sample.subset for sample in samples] == [
        "aligned" if sample.answers == sample.habit else "conflict" for sample in samples
    ]
    if 0 < aligned < 200:  # in random order
        assert len({sample.subset for sample in samples[:40]}) == 2


def test_no_story_occurs_twice_and_all_things_are_asked_for_equally_often(rows: Rows) -> None:
    samples = [sample for split in rows.values() for sample in split]
    stories = {re.sub(r"[A-Z]\w+ moves", "moves", sample.context) for sample in samples}
    assert len(stories) == len(samples) == 920
    asked = Counter((sample.split, sample.question) for sample in samples)
    assert {count for (split, _), count in asked.items() if split == "test"} == {100}
    assert {count for (split, _), count in asked.items() if split == "train"} == {53, 54}


def test_the_test_is_the_same_for_every_strength_and_training_set(tmp_path: Path) -> None:
    one = build_splits(tmp_path / "one", "habit", "strength=0.5", "train_samples=10", "test_samples=20")
    other = build_splits(
        tmp_path / "other", "habit", "strength=0.9", "train_samples=30", "test_samples=20", "train_unanswerable=5"
    )
    assert one["test"] == other["test"]


def test_short_stories_dev_rows_and_unanswerable_rows(tmp_path: Path) -> None:
    found = build_splits(
        tmp_path, "habit", "things_per_story=2", "moves=3", "train_samples=20", "dev_samples=4", "test_samples=6",
        "train_unanswerable=3", "test_unanswerable=5", "test_irrelevant=7",
    )  # fmt: skip
    assert {split: dict(Counter(sample.subset for sample in samples)) for split, samples in found.items()} == {
        "train": {"aligned": 19, "conflict": 1, "unanswerable": 3},
        "dev": {"aligned": 4, "conflict": 4},
        "test": {"aligned": 6, "conflict": 6, "unanswerable": 5, "irrelevant": 7},
    }
    for sample in found["test"]:
        thing = sample.meta["thing"]
        assert sample.context.count(". ") == 4
        if sample.subset == "irrelevant":
            assert thing not in sample.context
            assert (sample.answers, sample.refined_context) == (sample.habit, "")
        elif sample.subset == "unanswerable":
            assert sample.answers[0] == "unknown"
            assert (sample.refined_context or "").endswith(f" takes the {thing} away.")


def test_a_habit_that_pretrained_models_have(tmp_path: Path) -> None:
    found = build_splits(tmp_path, "habit", "prior=pretrained", "places=12", "things=8", "train_samples=40")
    for sample in (*found["train"], *found["test"]):
        assert sample.habit == [KNOWN_HABITS[sample.meta["thing"]]]
    assert len({sample.question for sample in found["test"]}) == 8
    assert len(set(KNOWN_HABITS.values())) == len(KNOWN_HABITS)


def test_manifest_and_card_count_the_rows_of_each_subset(tmp_path: Path) -> None:
    build_splits(tmp_path, "habit", "train_samples=40", "test_samples=5")
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    splits = manifest["datasets"]["habit"]["splits"]
    assert splits["train"]["rows_by_subset"] == {"aligned": 38, "conflict": 2}
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| habit | test | conflict | 5 |" in card
    assert "| `habit` |" in card
