"""Rows that a training set does without: overlap with benchmark sets (by all pairs), and a judge's verdicts."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from data_builders.dataset import SampleSet
from data_builders.quality.judged import JudgedVerdict, judge_quality, quality_prompts, read_verdict
from data_builders.quality.overlap import exclude_overlap, find_overlap, near_pairs
from tests.command import call
from tests.data_builders.own_rows import PASSAGE, own_row
from tests.tiny import make_sample

CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES["overlap"])
def test_what_is_equal_is_found_or_set_aside_and_nothing_else_is_excluded(case: dict[str, Any]) -> None:
    train = [own_row("train", n).model_copy(update=changes) for n, changes in enumerate(case["train"])]
    test = [own_row("test", 100 + n).model_copy(update=changes) for n, changes in enumerate(case["test"])]
    bench, overlap = [SampleSet("bench", test)], find_overlap(train, [SampleSet("bench", test)])
    for kind, matches in (("exact", overlap.exact), ("near", overlap.near)):
        expected = [(key, train[ours].id, test[theirs].id) for key, ours, theirs in case.get(kind, [])]
        assert [(match.key, match.train_id, match.test_id) for match in matches] == expected
    assert {cell.key: cell.set_aside for cell in overlap.cells if cell.set_aside} == case.get("aside", {})
    leaving = {ours for _, ours, _ in [*case.get("exact", []), *case.get("near", [])]}
    assert exclude_overlap(train, bench) == [row for n, row in enumerate(train) if n not in leaving]


def test_a_near_duplicate_is_reported_and_an_exact_one_is_not_a_near_one_too() -> None:
    longer = PASSAGE + " Nobody was hurt."
    train = [own_row("train", 1, context=longer), own_row("train", 2, context=PASSAGE)]
    overlap = find_overlap(train, [SampleSet("bench", [own_row("test", context=PASSAGE)])], 0.6)
    assert [(match.key, match.train_id) for match in overlap.exact] == [("context", "own-train-2")]
    cell = next(cell for cell in overlap.cells if cell.key == "context")
    assert (cell.exact, cell.test_rows, cell.near) == (1, 1, 1)
    (near,) = [match for match in overlap.near if match.key == "context"]
    assert near.train_id == "own-train-1"
    assert near.similarity == pytest.approx(17 / 20)  # 3-grams of 19 and of 22 words


def test_what_the_published_files_share_is_found(published_raw: Path, tmp_path: Path) -> None:
    """IfQA's files ask about the same passages; e-CARE's offer three pairs of hypotheses in both."""
    names = ["ifqa", "ecare"]
    build(BuildOptions(names, tmp_path, published_raw))
    cells = [
        line.split() for line in call("data", "check", tmp_path).out.splitlines() if line.startswith(tuple(names))
    ]
    found = {(train, test, key): (exact, tested) for train, _, test, key, exact, tested, *_ in cells if exact != "0"}
    assert found == {("ifqa", "ifqa", "context"): ("65", "59"), ("ecare", "ecare", "question"): ("3", "3")}


def test_a_question_that_is_asked_again_of_another_context_is_told_from_a_leak() -> None:
    asked = "How long may I return the goods?"
    train = [
        make_sample(1, context="The first shop takes goods back for thirty days.", question=asked),
        make_sample(2, context="The second shop takes goods back for a week.", question=asked),
    ]
    test = [make_sample(3, context="The second shop takes goods back for a week.", question=asked, split="test")]
    overlap = find_overlap(train, [SampleSet("mine", test)])
    assert {(match.key, match.train_id) for match in overlap.exact} == {
        ("question", "s1"), ("question", "s2"), ("context", "s2"),
    }  # fmt: skip
    overlap.set_questions_aside(train)
    assert {(match.key, match.train_id) for match in overlap.exact} == {("question", "s2"), ("context", "s2")}
    assert [match.train_id for match in overlap.repeated] == ["s1"]
    (cell,) = (cell for cell in overlap.cells if cell.key == "question")
    assert (cell.exact, cell.set_aside) == (1, 1)


def _naive(left: Sequence[tuple[str, ...]], right: Sequence[tuple[str, ...]], threshold: float) -> dict[Any, float]:
    """All pairs, by the definition: 3-grams where both texts are short (the longer one as far as it could reach)."""
    found = {}
    for i, one in enumerate(left):
        for j, other in enumerate(right):
            grams = []
            if len(one) >= 40 and len(other) >= 40:
                grams.append(5)
            if max(len(one), len(other)) < 40 / threshold:
                grams.append(3)
            for n in grams:
                a = {" ".join(one[k : k + n]) for k in range(len(one) - n + 1)}
                b = {" ".join(other[k : k + n]) for k in range(len(other) - n + 1)}
                if a and b and (similarity := len(a & b) / len(a | b)) >= threshold:
                    found[i, j] = max(similarity, found.get((i, j), 0))
    return found


@pytest.mark.parametrize("threshold", [0.5, 0.8, 1.0])
def test_near_pairs_are_those_of_a_comparison_of_all_with_all(threshold: float) -> None:
    random_ = random.Random(3)
    words = [f"w{n}" for n in range(60)]
    left = [tuple(random_.choices(words, k=random_.randint(1, 90))) for _ in range(120)]
    right = []
    for text in left:
        changed = list(text)
        for _ in range(random_.randint(0, 1 + len(text) // 15)):
            changed[random_.randrange(len(changed))] = random_.choice(words)
        right.append(tuple(changed[random_.randint(0, 2) :]))
    expected = _naive(left, right, threshold)
    assert len(expected) > 5
    assert near_pairs(left, right, threshold) == pytest.approx(expected)


NLI = {"format": "nli", "context": "Ann slept.", "question": "Ann woke before she slept.", "answers": ["negative"]}
SCQ = {"format": "scq", "options": ["rain", "snow"], "answers": ["snow"]}
MCQ = {"format": "mcq", "options": ["rain", "snow", "hail"], "answers": ["rain", "hail"]}


@pytest.mark.parametrize(("reply", "verdict"), CASES["verdicts"])
def test_only_the_two_verdicts_are_read(reply: str, verdict: str | None) -> None:
    assert read_verdict(reply) == verdict


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        (NLI, "Premise: Ann slept.\nHypothesis: Ann woke before she slept.\n"),
        (NLI, "Given answer: negative"),
        (SCQ, "Options:\n(A) rain\n(B) snow\nGiven answer: (B) snow"),
        (MCQ, "Given answer:\n(A) rain\n(C) hail"),
        ({"answers": ["the river", "a river"]}, "Given answer:\nthe river\na river"),
    ],
)
def test_a_prompt_shows_the_sample_in_its_format(fields: dict[str, Any], shown: str) -> None:
    (prompt,) = quality_prompts([make_sample(**fields)])
    assert shown in prompt.user
    assert "Verdict: supported" in prompt.system
    assert "Verdict: unsupported" in prompt.system
    assert prompt.label == "sample 's0' of 'made-up'"


def test_braces_in_a_sample_are_text() -> None:
    (prompt,) = quality_prompts([make_sample(context="Set {question} to {x}.", question="What is {context}?")])
    assert "Set {question} to {x}." in prompt.user
    assert "What is {context}?" in prompt.user


@pytest.mark.parametrize(("context", "answers", "verdict"), CASES["rule"])
def test_the_rule_looks_for_an_answers_content_words(context: str, answers: list[str], verdict: JudgedVerdict) -> None:
    assert judge_quality([make_sample(context=context, answers=answers)], None) == [verdict]


@pytest.mark.parametrize("fields", [NLI, SCQ, MCQ])
def test_other_formats_have_no_rule(fields: dict[str, Any]) -> None:
    assert judge_quality([make_sample(**fields)], None) == [JudgedVerdict.NOT_JUDGED]
