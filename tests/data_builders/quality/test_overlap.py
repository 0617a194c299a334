"""Rows that a training set does without: overlap with benchmark sets (by all pairs), and a judge's verdicts."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from d2e_sft.data.sample import EventSample
from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from data_builders.dataset import SampleSet
from data_builders.quality.judged import JudgedVerdict, judge_quality, quality_prompts, read_verdict
from data_builders.quality.overlap import Overlap, exclude_overlap, find_overlap, near_pairs
from tests.command import call
from tests.data_builders.own_rows import PASSAGE, own_row
from tests.tiny import make_sample

CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def _overlap(train: Sequence[EventSample], test: Sequence[EventSample], threshold: float = 0.8) -> Overlap:
    return find_overlap(train, [SampleSet("bench", list(test))], threshold)


def _pairs(overlap: Overlap) -> list[tuple[str, str, str]]:
    return [(match.key, match.train_id, match.test_id) for match in overlap.exact]


def test_a_context_is_equal_whatever_its_case_blanks_and_punctuation() -> None:
    train = own_row("train", context=PASSAGE)
    test = own_row("test", context=PASSAGE.upper().replace(",", " -").replace(" ", "  "))
    assert _pairs(_overlap([train], [test])) == [("context", "own-train-1", "own-test-1")]


def test_the_order_of_the_options_does_not_matter_but_the_options_do() -> None:
    scq = {"format": "scq", "question": "What made the lamp go out?", "answers": ["the wind"]}
    test = own_row("test", **scq, options=["the wind", "a cat", "no oil"])
    same = own_row("train", 1, **scq, options=["no oil", "the wind", "a cat"])
    other = own_row("train", 2, **scq, options=["the wind", "a dog", "no oil"])
    divided = own_row("train", 3, **scq, options=["the wind", "a", "cat no oil"])
    assert _pairs(_overlap([same, other, divided], [test])) == [("question", "own-train-1", "own-test-1")]


def test_a_template_is_set_aside_and_two_contexts_make_none() -> None:
    question = "What is the cause of the event in the context?"
    asked = [own_row("test", n, question=question) for n in range(3)]
    train = [own_row("train", question=question)]
    overlap = _overlap(train, asked)
    assert not overlap.exact
    assert [(cell.key, cell.set_aside) for cell in overlap.cells] == [("question", 1)]
    assert _pairs(_overlap(train, asked[:2])) == [("question", "own-train-1", "own-test-0")]


def test_short_texts_are_set_aside_unless_the_whole_sample_is_equal() -> None:
    test = own_row("test", context="It rained.", question="What then?")
    same_context = own_row("train", 1, context="it rained")
    same_question = own_row("train", 2, question="What then")
    both = own_row("train", 3, context="It rained", question="what then?")
    overlap = _overlap([same_context, same_question, both], [test])
    assert _pairs(overlap) == [("context", "own-train-3", "own-test-1"), ("question", "own-train-3", "own-test-1")]
    assert {cell.key: cell.set_aside for cell in overlap.cells} == {"context": 1, "question": 1}


def test_rows_that_share_nothing_or_have_no_context_do_not_overlap() -> None:
    train = [*(own_row("train", n) for n in range(5)), own_row("train", 5, context="")]
    test = [*(own_row("test", n) for n in range(5)), own_row("test", 5, context="")]
    overlap = _overlap(train, test, 0.95)
    assert (overlap.cells, overlap.exact, overlap.near) == ([], [], [])


@pytest.mark.parametrize(("ours", "theirs", "found"), CASES["raw rows"])
def test_rows_of_one_raw_row_are_found_by_id(ours: dict[str, Any], theirs: dict[str, Any], found: bool) -> None:
    mine = own_row("train", 1).model_copy(update=ours)
    overlap = _overlap([mine], [own_row("test", 2, **theirs)])
    assert [match.key for match in overlap.exact] == ["id"] * found


def test_a_near_duplicate_is_reported_and_an_exact_one_is_not_a_near_one_too() -> None:
    longer = PASSAGE + " Nobody was hurt."
    train = [own_row("train", 1, context=longer), own_row("train", 2, context=PASSAGE)]
    overlap = _overlap(train, [own_row("test", context=PASSAGE)], 0.6)
    assert _pairs(overlap) == [("context", "own-train-2", "own-test-1")]
    cell = next(cell for cell in overlap.cells if cell.key == "context")
    assert (cell.exact, cell.test_rows, cell.near) == (1, 1, 1)
    (near,) = [match for match in overlap.near if match.key == "context"]
    assert near.train_id == "own-train-1"
    assert near.similarity == pytest.approx(17 / 20)  # 3-grams of 19 and of 22 words


def test_exclude_overlap_drops_what_check_finds_and_nothing_else() -> None:
    test = [own_row("test", 1, context=PASSAGE), own_row("test", 2, context="It rained.")]
    train = [
        own_row("train", 1),
        own_row("train", 2, context=PASSAGE),
        own_row("train", 3, context="It rained."),
        own_row("train", 4, question=test[0].question),
    ]
    kept = exclude_overlap(train, [SampleSet("bench", test)])
    assert [sample.id for sample in kept] == ["own-train-1", "own-train-3"]
    assert _overlap(train, test).rows(_overlap(train, test).exact) == 2
    assert not _overlap(kept, test).exact


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
