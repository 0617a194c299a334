"""Comparisons against cases worked out by hand: groups, subsets, kinds, faithfulness, the worth of the context."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from eval.compare.compare import Block, Comparison, compare_runs
from eval.compare.runs import load_runs
from eval.compare.verdicts import leader, subset_changes, subset_verdict, subset_verdicts
from eval.score.frame import AVERAGE
from eval.score.predictions import Prediction
from eval.score.statistics import Difference, paired_average
from tests.command import output_of, refusal_of
from tests.eval.compare.rows import habit_rows
from tests.factories import choice, make_run, prediction, reply, story, write_recorded


def compared(folder: Path, **runs: Sequence[Prediction]) -> Comparison:
    return compare_runs(load_runs([make_run(folder / name, rows) for name, rows in runs.items()]))


def change(block: Block, run: str, measure: str, subset: str = "") -> Difference:
    score = block.score(run, measure, subset)
    assert score is not None
    assert score.change is not None
    return score.change


def means(block: Block, run: str) -> dict[str, float]:
    return {measure: score.mean for (label, measure, _), score in block.scores.items() if label == run}


# Groups --------------------------------------------------------------------------------------------------------------


def test_groups_and_all_have_each_runs_score_and_its_difference_paired_by_id(tmp_path: Path) -> None:
    # Of 40 nli samples the first run has 20 right, the second 30; both have 5 of 10 scq samples right.
    choices = [choice(100 + n, n < 5) for n in range(10)]
    base = [*(prediction(n, n < 20) for n in range(40)), *choices]
    tuned = [*choices, *(prediction(n, n < 30) for n in reversed(range(40)))]  # another order in the file
    found = compared(tmp_path, base=base, tuned=tuned)
    assert [(block.name, block.sizes[""]) for block in found.groups] == [
        (("all", "all", "all"), 50), (("stories", "temporal", "nli"), 40), (("kitchen", "causal", "scq"), 10),
    ]  # fmt: skip
    every, stories, kitchen = found.groups
    assert (stories.score("base", "f1").mean, stories.score("tuned", "f1").mean) == (0.5, 0.75)
    assert (stories.score("tuned", "says positive").mean, stories.score("base", "gold positive").mean) == (0.75, 1)
    direct = paired_average([[1.0] * 20 + [0.0] * 20], [[1.0] * 30 + [0.0] * 10])
    own = change(stories, "tuned", "mean")
    assert (own.mean, own.low, own.high, own.p_value) == (0.25, direct.low, direct.high, direct.p_value)
    assert own.adjusted_p == pytest.approx(3 * own.p_value), "three rows"
    assert (change(kitchen, "tuned", "mean").mean, every.score("tuned", "mean").mean) == (0, 0.7)
    assert "says positive" not in means(every, "base"), "labels are those of nli"


def test_the_average_of_a_relation_weighs_its_datasets_alike(tmp_path: Path) -> None:
    others = [choice(n, n < 8, dataset="pantry") for n in range(10)]
    rows = {name: [*(choice(n, n < right) for n in range(40)), *others] for name, right in (("a", 20), ("b", 30))}
    block = next(block for block in compared(tmp_path, **rows).groups if block.name[0] == AVERAGE)
    assert (block.name, block.sizes[""]) == ((AVERAGE, "causal", "–"), 50)
    assert block.score("a", "mean").mean == pytest.approx((0.5 + 0.8) / 2)
    assert change(block, "b", "mean").mean == pytest.approx(0.125)


def test_set_accuracy_is_that_of_mcq_alone(tmp_path: Path) -> None:
    def rows(right: bool) -> list[Prediction]:
        sets = [choice(n, False, format="mcq", f1=1.0, set_accuracy=float(right)) for n in range(20)]
        return [*sets, prediction(1, True)]

    every, kitchen, stories = compared(tmp_path, first=rows(False), second=rows(True)).groups
    assert kitchen.score("second", "set_accuracy").mean == 1
    own = change(kitchen, "second", "set_accuracy")
    assert (own.mean, own.adjusted_p) == (1, own.p_value), "one row has it"
    assert every.score("second", "set_accuracy") is stories.score("second", "set_accuracy") is None


# The worth of the context --------------------------------------------------------------------------------------------


def asked(folder: Path, rows: list[Prediction], without: list[Prediction]) -> Path:
    run = make_run(folder, rows)
    write_recorded(without, run / "eval" / "mini" / "without_context.jsonl")
    return run


def worth(run: Path) -> list[Block]:
    return compare_runs(load_runs([run])).blocks("context", "dataset")


def test_what_the_context_adds_and_what_stays_the_same(tmp_path: Path) -> None:
    run = asked(tmp_path / "run", [prediction(n, n < 6) for n in range(8)], [prediction(n, n < 4) for n in range(8)])
    (block,) = worth(run)
    assert means(block, "run") == {"without": 0.5, "same": 0.75}  # right and wrong are the two labels of nli
    assert change(block, "run", "without").mean == 0.25


def test_an_average_weighs_groups_alike_and_a_missing_answer_is_not_the_same(tmp_path: Path) -> None:
    one = [choice(n, True) for n in range(2)]
    other = [choice(n, False, dataset="pantry") for n in range(6)]
    run = asked(tmp_path / "run", [*one, *other], [*(choice(n, False) for n in range(2)), *other])
    average = next(block for block in worth(run) if block.name == (AVERAGE,))
    assert means(average, "run") == {"without": 0, "same": 0.5}
    assert change(average, "run", "without").mean == 0.5
    silent = prediction(1, False, answer=[], extraction="none")
    assert means(worth(asked(tmp_path / "silent", [silent], [silent]))[0], "silent")["same"] == 0
    bare = prediction(1, True, context=" ")  # is its own counterpart
    (both,) = worth(asked(tmp_path / "bare", [bare, prediction(2, True)], [prediction(2, True)]))
    assert means(both, "bare")["same"] == 1


def test_the_gains_of_a_run_are_corrected_for_its_rows(tmp_path: Path) -> None:
    rows = [prediction(n, True) for n in range(12)]
    others = [row.model_copy(update={"dataset": "other"}) for row in rows]
    without = [row if n >= 6 else prediction(n, False) for n, row in enumerate(rows)]
    gains = [
        change(block, "run", "without")
        for block in worth(asked(tmp_path / "run", [*rows, *others], [*without, *others]))
    ]
    assert gains[0].p_value == pytest.approx(2 / 64, abs=0.01)  # of 2⁶ signs of six changes, all or none
    assert gains[0].adjusted_p > 2 * gains[0].p_value  # type: ignore[operator]


# Subsets -------------------------------------------------------------------------------------------------------------


def test_changes_by_subset_are_paired_and_corrected_for_a_datasets_runs_and_subsets(tmp_path: Path) -> None:
    rows = {"sft": habit_rows(38, 16), "a": habit_rows(38, 23), "b": [*reversed(habit_rows(36, 28))]}
    (block,) = compared(tmp_path, **rows).subsets
    assert block.sizes == {"aligned": 40, "conflict": 40}
    assert means(block, "b")["accuracy"] == pytest.approx(0.9 - 0.7), "the last accuracy is the gap"
    conflict, direct = (
        subset_changes(block, "b")["conflict"],
        paired_average([[1.0] * 16 + [0.0] * 24], [[1.0] * 28 + [0.0] * 12]),
    )
    assert (conflict.mean, conflict.low, conflict.high) == (direct.mean, direct.low, direct.high)
    assert subset_changes(block, "b")["aligned"].mean == pytest.approx(-2 / 40)
    assert conflict.adjusted_p == pytest.approx(4 * conflict.p_value)
    assert subset_changes(block, "sft") == {}


def test_the_average_is_the_headline_and_weighs_datasets_alike(tmp_path: Path) -> None:
    others = [story(n, "conflict", "garage", dataset="proverbs") for n in range(20)] + [prediction(1, True)]
    news = habit_rows(20, 5, dataset="news", of=20)
    found = compared(tmp_path, sft=[*habit_rows(40, 0), *news, *others], d2e=[*habit_rows(40, 20), *news, *others])
    assert found.untagged == 1
    assert [block.name[0] for block in found.subsets] == ["habit", "news", "proverbs", AVERAGE]
    assert (found.headline.name, found.headline.sizes) == ((AVERAGE,), {"aligned": 60, "conflict": 60})
    assert subset_changes(found.headline, "d2e")["conflict"].mean == pytest.approx((20 / 40 + 0) / 2)


def test_the_models_own_habit_is_measured_without_the_contexts(tmp_path: Path) -> None:
    # 20 conflict rows, ten right. Unread, 15 are answered with the habit; the first five of these are right.
    rows = habit_rows(20, 10, of=20)
    unread = {1000 + n: "attic" if 5 <= n < 10 else "kitchen" for n in range(20)}
    without = [row for row in rows if row.subset == "aligned"] + [story(n, "conflict", s) for n, s in unread.items()]
    run = asked(tmp_path / "run", rows, without)
    assert re.search(r"^run +75\.0 \[.*\] +15 +33\.3 \[", output_of("compare", run), flags=re.MULTILINE)
    never = asked(tmp_path / "never", habit_rows(20, 20, of=20), habit_rows(20, 20, of=20))
    (block,) = compare_runs(load_runs([never])).subsets
    assert block.score("never", "own habit", "conflict").mean == 0
    assert block.score("never", "on own habit", "conflict") is None
    # The last conflict rows may have no habit, and so none of the model's own.
    own = [story(2000 + n, "conflict", "garage", dataset="own", habit=[]) for n in range(20)]
    (block, *_) = compare_runs(load_runs([asked(tmp_path / "mixed", [*rows, *own], [*without, *own])])).subsets
    assert block.score("mixed", "own habit", "conflict").mean == 0.75


Values = tuple[float, float, float, float]  # mean, low, high, corrected p
HIGHER, LOWER, OPEN = (0.2, 0.1, 0.3, 0.001), (-0.2, -0.3, -0.1, 0.001), (0.0, -0.1, 0.1, 1.0)
KEPT, EQUAL = (0.01, -0.02, 0.04, 0.7), (0.0, -0.02, 0.02, 1.0)


@pytest.mark.parametrize(
    ("conflict", "aligned", "verdict"),
    [
        (HIGHER, KEPT, "uses the context more"),
        (HIGHER, None, "uses the context more"),
        (HIGHER, HIGHER, "uses the context more"),
        (HIGHER, OPEN, "conflict higher, aligned not decided"),
        (HIGHER, LOWER, "conflict higher, aligned lower"),
        (LOWER, HIGHER, "uses the context less"),
        (OPEN, KEPT, "not decided"),
        (OPEN, LOWER, "aligned lower, conflict not decided"),
        (EQUAL, EQUAL, "no difference"),
        (EQUAL, KEPT, "not decided"),
    ],
)
def test_a_verdict_follows_from_both_changes(conflict: Values, aligned: Values | None, verdict: str) -> None:
    given = {"conflict": conflict, "aligned": aligned}
    assert subset_verdict({n: Difference(*own, adjusted_p=own[3]) for n, own in given.items() if own}) == verdict


def test_the_largest_decided_gain_leads_even_if_aligned_rows_are_not_decided(tmp_path: Path) -> None:
    rights = {"sft": (60, 20), "d2e": (59, 40), "swapped": (60, 60), "low": (60, 2), "worse": (20, 60)}
    found = compared(tmp_path, **{name: habit_rows(*right, of=60) for name, right in rights.items()})
    assert leader(found) == 2
    assert list(subset_verdicts(found)) == ["swapped", "d2e", "low", "worse"]


def test_answers_of_another_form_are_no_other_use_of_the_context(tmp_path: Path) -> None:
    sentences = [story(row, "conflict", "It is in the garage.") for row in range(1000, 1050)]
    rest = [row for row in habit_rows(60, 0, of=60) if row.subset == "aligned" or int(row.id[1:]) >= 1050]
    found = compared(
        tmp_path, words=habit_rows(60, 55, of=60), sentences=[*rest, *sentences], habit=habit_rows(60, 5, of=60)
    )
    lines = subset_verdicts(found)
    assert "sentences differs from words mostly in the form of its answers: -91.7" in lines["sentences"]
    assert "83.3 % of its conflict outputs contain the context's answer, and 91.7 % of words's" in lines["sentences"]
    assert lines["habit"].startswith("habit uses the context less than words")
    swapped = compared(tmp_path / "other", sentences=[*rest, *sentences], words=habit_rows(60, 55, of=60))
    assert leader(swapped) is None


def test_of_few_samples_equal_answers_do_not_decide_that_there_is_no_difference(tmp_path: Path) -> None:
    for of, verdict in ((121, "not decided"), (122, "no difference")):  # 0.97 ** 122 is below 0.025
        rows = habit_rows(of, 9, of=of)
        found = compared(tmp_path / str(of), one=rows, other=rows)
        assert subset_verdict(subset_changes(found.headline, "other")) == verdict


def test_small_subsets_are_counted_and_do_not_hide_the_result_on_the_others(tmp_path: Path) -> None:
    runs = {
        name: [*habit_rows(3, right, of=20)[1:], *[prediction(n, True) for n in range(38)]]
        for name, right in (("sft", 16), ("d2e", 20))
    }
    found = compared(tmp_path, **runs)
    assert found.headline.sizes == {"conflict": 20}
    assert found.small_subsets == {("habit", "aligned", 19): {"sft": 2, "d2e": 2}}
    assert not found.is_about_subsets, "20 of 77 rows"
    printed = output_of("compare", tmp_path / "sft", tmp_path / "d2e", "--json", tmp_path / "c.json")
    order = ["all (77)", "By subset (habit 20 conflict)", "d2e against sft is not decided: mean", "+20.0 points ["]
    assert [printed.index(part) for part in order] == sorted(printed.index(part) for part in order)
    assert "fewer than 20): habit, aligned, 19 rows, right: sft 2, d2e 2." in printed
    compared(tmp_path / "few", few=habit_rows(3, 4, of=5))
    said = " ".join(refusal_of("compare", tmp_path / "few" / "few", "--part", "subsets").split())
    assert "fewer than 20): habit, aligned, 5 rows" in said
    assert "remedy: More --max-samples" in said
    assert json.loads((tmp_path / "c.json").read_text())["small_subsets"][0]["right"] == {"sft": 2, "d2e": 2}
    half = [*habit_rows(20, 20, of=20), *[choice(n, True) for n in range(40)]]
    assert compared(tmp_path / "half", half=half).is_about_subsets, "40 of 80 rows"


# Kinds of questions --------------------------------------------------------------------------------------------------


def question(number: int, text: str, right: bool, conflict: bool) -> Prediction:
    """Make a free answer whose habit is `left`."""
    subset, said = ("conflict" if conflict else "aligned"), "here" if right else "left"
    shape = {
        "relation": "none",
        "format": "qa",
        "question": text,
        "gold": ["here"],
        "subset": subset,
        "habit": ["left"],
    }
    return prediction(number, right, **shape, answer=[said], output="The answer is: here")


def test_the_failing_kind_of_question_is_found(tmp_path: Path) -> None:
    def rows(right: int) -> list[Prediction]:
        """12 `where`, all right; 15 companies, 10 of them conflict rows with so many right; 3 others."""
        where = [question(n, f"Where is pump {n}?", True, n < 6) for n in range(12)]
        company = [question(n, "Which company services it?", n - 20 < right or n >= 30, n < 30) for n in range(20, 35)]
        return [*where, *company, *(question(n, f"Why was pump {n} moved?", False, False) for n in range(40, 43))]

    found = compared(tmp_path, plain=rows(1), swapped=rows(9))
    blocks = found.blocks("kinds", "kind")
    assert [block.name for block in blocks] == [("company",), ("where",), ("other questions",)]
    shares = {(run, subset): score.mean for (run, _, subset), score in blocks[0].scores.items()}
    assert shares == pytest.approx({
        ("plain", "all"): 6 / 15, ("swapped", "all"): 14 / 15, ("plain", "conflict"): 0.1, ("swapped", "conflict"): 0.9
    })  # fmt: skip
    own = change(blocks[0], "swapped", "accuracy", "conflict")
    assert own.mean == pytest.approx(0.8)
    assert own.adjusted_p > own.p_value  # type: ignore[operator]
    printed = output_of("compare", tmp_path / "plain", tmp_path / "swapped")
    assert "company (15, 10 conflict)" in printed


@pytest.mark.parametrize(
    "other",
    [
        {"question": "Where is it?"},  # one kind
        {"relation": "causal"},  # PIPER's
        {"format": "nli", "gold": ["positive"]},
    ],
)
def test_other_rows_have_no_kinds(tmp_path: Path, other: dict[str, object]) -> None:
    texts = ["Where is it?", "Which company services it?"] * 10
    rows = [question(n, text, True, False).model_copy(update=other) for n, text in enumerate(texts)]
    assert not compared(tmp_path, run=rows).blocks("kinds", "kind")


# Faithfulness --------------------------------------------------------------------------------------------------------


def replies(*said: str, times: int = 10) -> list[Prediction]:
    rows = [reply(len(said) * n + place, text) for n in range(times) for place, text in enumerate(said)]
    return [*rows, *(choice(n, True) for n in range(3))]


def test_faithfulness_and_its_paired_differences_counted_by_hand(tmp_path: Path) -> None:
    # Of base 0 of 2 words (ask, aunt) and 2 of 3 are in the context; recall is 0 of 3 and 2 of 3.
    base, tuned = replies("Ask my aunt.", "Within 60 days."), replies("Within 30 days.", "Within 30 days.")
    (block,) = compared(tmp_path, base=base, tuned=tuned).blocks("faithfulness", "dataset")
    assert (block.name, block.sizes[""]) == (("returns",), 20), "choices are no free answers"
    names = ("contained", "answer_in_context", "context_recall", "claim_overlap")
    assert means(block, "base") == pytest.approx(dict(zip(names, (0, 1 / 3, 1 / 3, 1 / 3), strict=True)))
    assert means(block, "tuned") == dict.fromkeys(names, 1)
    for name in names:
        own = change(block, "tuned", name)
        assert own.mean == pytest.approx(1 if name == "contained" else 2 / 3)
        assert own.adjusted_p >= own.p_value  # type: ignore[operator]


def test_a_sample_without_a_value_in_one_run_is_in_neither_side_of_the_difference(tmp_path: Path) -> None:
    other = [reply(99, "No.", dataset="hours")]
    base, tuned = replies("That is it.", "Within 60 days."), replies("Within 30 days.", "Within 60 days.")
    blocks = compared(tmp_path, base=base + other, tuned=tuned + other).blocks("faithfulness", "dataset")
    assert [(block.name[0], block.sizes[""]) for block in blocks] == [("returns", 20), ("hours", 1), ("all", 21)]
    assert change(blocks[0], "tuned", "answer_in_context").mean == 0, "base's first answer has function words alone"
    assert change(blocks[0], "tuned", "context_recall").mean == pytest.approx(1 / 2)
