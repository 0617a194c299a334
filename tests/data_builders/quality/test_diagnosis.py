"""Rows before training: what is known of them, which method follows, habits by the questions alone, the page."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample, pick_samples
from d2e_sft.util.errors import UserError
from data_builders.commands.show import marked, share_kept, write_rows_page
from data_builders.quality.context_free import guess_habits, guesses, question_alone
from data_builders.quality.diagnosis import _ADVICE, Diagnosis, diagnose, tagged_rows
from data_builders.sources.reading import has_answer, repeats_answer
from tests.tiny import make_sample

PLACES = {
    "data": "data/mine",
    "built": "data/mine",
    "train": "rows.parquet",
    "build": "d2e data build",
    "recipe": "small",
}


def row(number: int, **changes: Any) -> EventSample:
    fields: dict[str, Any] = {
        "relation": "none",
        "context": f"In {1900 + number} the mill of Farley burnt down.",
        "refined_context": f"In {1900 + number}",
        "question": f"When did mill {number} burn down?",
        "answers": [str(1900 + number)],
    }
    return make_sample(number, **{**fields, **changes})


def tag(sample: EventSample, subset: str, habit: Sequence[str]) -> EventSample:
    meta = {"tag": {"model": "m", "probability": 0.9}}
    return sample.model_copy(update={"subset": subset, "habit": list(habit), "meta": meta})


def diagnosis(samples: Sequence[EventSample]) -> Diagnosis:
    return Diagnosis("mine", diagnose(samples, tagged_rows(samples)), "words", {})


def test_measures_are_the_shares_of_the_rows() -> None:
    rows = [row(n) for n in range(10)]
    rows[0] = row(0, answers=["a fire"])  # not in the context
    rows[1] = row(1, refined_context=rows[1].context)
    rows[2] = row(2, refined_context=None, context="")
    rows[7] = row(7, answers=["not stated"], subset="unanswerable")
    rows[3] = tag(rows[3], "aligned", rows[3].answers)
    rows[4] = tag(rows[4], "unknown", rows[4].answers)
    rows[5] = tag(rows[5], "conflict", ["1066"])
    rows[6] = tag(rows[6], "unknown", [])
    found = diagnosis(rows)
    [group] = found.groups
    refused = {reason.value: count for reason, count in group.swaps.refused.items()}
    assert refused["the context lacks the answer"] == 2
    exact = {"guessed_low": 0.0676, "guessed_high": 0.9324, "guessed_rows": 4}  # Clopper and Pearson of 2 of 4
    assert {name: round(found.measures[name], 4) for name in exact} == exact
    assert {name: value for name, value in found.measures.items() if name not in exact} == pytest.approx(
        {
            "rows": 10,
            "with_context": 0.9,
            "in_context": 7 / 9,
            "refusals": 0.1,
            "labels": 0,
            "guessed": 0.5,  # two of the four that the model was asked
            "guessed_most": 0.5,
            "firm_conflict": 0.25,
            "swapped": 0,
            "swapped_tests": 0,
            "revisable": group.swaps.swapped / 10,
            "refined_differ": 8 / 9,
        }
    )
    assert group.swaps.swapped + sum(refused.values()) == 9, "a refusal is not swapped"
    assert group.alone.n == 9, "a refusal is no guess"
    assert group.by_subset == {"aligned": 1, "conflict": 1, "unknown": 2, "right": 2}


def test_a_habit_of_several_options_is_right_only_with_all_of_them() -> None:
    both: dict[str, Any] = {"format": "mcq", "options": ["a", "b", "c"], "answers": ["a", "b"]}
    habits = (["a"], ["b", "a"], ["a", "b", "c"], [])
    rows = [tag(row(n, **both), "conflict", habit) for n, habit in enumerate(habits)]
    assert diagnosis(rows).groups[0].by_subset["right"] == 1


@pytest.mark.parametrize(
    ("samples", "method", "words"),
    [
        ([tag(row(n), "unknown", [str(1900 + n)]) for n in range(40)], "SFT on swapped rows", "--swap 0.5"),
        (
            [row(n) for n in range(40)],
            "SFT, compared with D²E without the KL term",
            "--method no-distill data.train=data/mine-by-subset/train.parquet",
        ),
        ([row(n, context="", refined_context=None) for n in range(40)], "SFT", "0% of the rows have a context"),
        ([row(n, answers=["it was hot and dry"]) for n in range(40)], "Look at the rows first", "data show data/mine"),
        (
            [
                tag(row(n, context=f"Ann left, day {n}", answers=["Ann left"]), "aligned", ["Ann left"])
                for n in range(40)
            ],
            "SFT, compared with D²E without the KL term",
            "100% of the answers to the questions can be guessed",
        ),
        (
            [row(n, format="nli", answers=[("positive", "negative")[n % 2]]) for n in range(40)],
            "SFT, compared with D²E without the KL term",
            "--method sft data.train=rows.parquet",
        ),
    ],
)
def test_the_method_follows_from_what_the_rows_allow(samples: list[EventSample], method: str, words: str) -> None:
    advice = diagnosis(samples).advice(PLACES)
    assert advice.name == method
    assert words in "\n".join([advice.reason, *advice.commands, *advice.notes])
    assert any("With 40 training rows" in note for note in advice.notes)


def test_a_habit_of_one_kind_of_question_is_not_averaged_away() -> None:
    where = [
        row(n, context=f"Lamp {n} is in the {place}.", question=f"Where is lamp {n}?", answers=[place])
        for n, place in enumerate(["shed"] * 15 + ["barn", "attic", "cellar", "garage", "kitchen"] * 2)
    ]
    rest = [*[row(n) for n in range(25, 85)], row(90, question="Which year was it?")]
    found = diagnosis([*where, *rest])
    assert found.measures["guessed"] < 0.5
    assert found.measures["guessed_most"] == 0.6, "15 of 25 are in the shed"
    assert list(found.groups[0].kinds) == ["where", "when"], "one row that asks for a year is too few"
    advice = found.advice(PLACES)
    assert advice.name == "Undecided: SFT with and without swapped rows"
    assert "60% of the answers to the 25 questions of " in advice.reason
    assert "The 95 % interval is 39% to 79%" in advice.reason, "Clopper and Pearson of 15 of 25"
    more = [one.model_copy(update={"id": f"{one.id}+"}) for one in where if one.answers == ["shed"]]
    assert diagnosis([*where, *more, *rest]).advice(PLACES).name == "SFT on swapped rows"


def test_few_rows_of_one_kind_decide_nothing_about_the_whole() -> None:
    where = [row(n, context=f"Lamp {n} is here.", question=f"Where is lamp {n}?", answers=["here"]) for n in range(30)]
    found = diagnosis([*where, *[row(n) for n in range(30, 200)]])
    assert found.groups[0].kinds["where"].majority_share == 1
    assert found.advice(PLACES).name == "SFT, compared with D²E without the KL term"


def test_every_rule_has_words_for_the_measures_it_asks_for() -> None:
    rules = yaml.safe_load(_ADVICE.read_text())
    values = dict.fromkeys(
        ("rows", "with_context", "in_context", "refusals", "labels", "guessed", "firm_conflict"), 0.5
    )
    values |= {"swapped": 0.5, "swapped_tests": 0.0, "revisable": 0.5, "refined_differ": 0.5, "guessed_most": 0.5}
    values |= dict.fromkeys(("guessed_low", "guessed_high", "guessed_rows"), 0.5)
    values |= {f"refusals_{name}": 0.5 for name in ("guessed", "low", "high", "rows", "majority", "gain")}
    for rule in (*rules["methods"], *rules["notes"]):
        assert rule["when"].keys() <= values.keys()
        assert rule.get("reason", rule.get("note", "")).format(**values, kind="the questions")
        assert all("{" not in command.format(**PLACES) for command in rule.get("commands", ()))
    assert rules["methods"][-1]["when"] == {}, "one always fits"


@pytest.mark.parametrize("question", ["Why did mill {} burn down?", "When did mill {} burn down?"])
def test_refusals_that_the_questions_give_away_are_found_and_others_are_not(question: str) -> None:
    refusal = {"answers": ["not stated"], "subset": "unanswerable"}
    answered = [row(n) for n in range(120)]
    found = diagnosis([*answered, *(row(n, question=question.format(n), **refusal) for n in range(120, 150))])
    [group] = found.groups
    assert group.refusing is not None
    assert (group.refusing.n, group.refusing.majority_share) == (150, 0.8)
    gives_away = question.startswith("Why")
    assert (group.refusing.accuracy == 1) == gives_away
    assert any("--unanswerable" in note for note in found.advice(PLACES).notes) == gives_away
    [table, *_] = found.tables().values()
    assert "qa, refuses or not" in table.terminal()
    alike = [row(n, context="A ledger.", question=question.format(n), **refusal) for n in range(120, 150)]
    [group] = diagnosis([*answered, *alike]).groups
    assert group.refusing is not None
    assert group.refusing.accuracy is None, "all refusals have one context, so no fold without them has any"


@pytest.mark.parametrize("fmt", ["qa", "scq", "mcq"])
def test_answers_that_follow_from_the_question_are_found_and_others_are_not(fmt: str) -> None:
    draw = random.Random(0)
    things, places = ["key", "lamp", "coat", "book"], ["barn", "attic", "cellar", "garage"]
    usual = dict(zip(things, places, strict=True))

    def rows(*, by_habit: bool) -> list[EventSample]:
        found = []
        for n in range(200):
            thing = draw.choice(things)
            answer = usual[thing] if by_habit else draw.choice(places)
            options = [] if fmt == "qa" else draw.sample(places, 4)
            question = f"Where is the {thing}?"
            found.append(
                row(n, format=fmt, context=f"Story {n}", question=question, answers=[answer], options=options)
            )
        return found

    habitual, open_ = question_alone(rows(by_habit=True)), question_alone(rows(by_habit=False))
    assert habitual.accuracy == 1
    assert open_.accuracy is not None
    assert open_.standard_error is not None
    assert abs(open_.accuracy - 0.25) < 4 * open_.standard_error
    assert habitual.majority_share == pytest.approx(0.25, abs=0.1)
    assert question_alone(rows(by_habit=True)[:9]).accuracy is None


THINGS = {"key": "garage", "lamp": "attic"}


def stories(count: int, *, conflict: int, split: str = "train", **changes: Any) -> list[EventSample]:
    """Where things are; the answer of every `conflict`-th row is the row's own place."""
    rows = []
    for number in range(count):
        thing = [*THINGS][number % 2]
        place = f"barn {number}" if number % conflict == 0 else THINGS[thing]
        fields = {"context": f"{split} {number}: the {thing} is in the {place}.", "refined_context": None}
        asked = {"question": f"Where is the {thing} now?", "answers": [place], "split": split}
        rows.append(make_sample(number, **{**fields, **asked, **changes}))
    return rows


def test_rows_with_the_same_context_do_not_teach_each_other() -> None:
    # Each context is asked twice, and its answer is its own: only the row with the same context has it.
    fields = [{"context": f"Year {n}.", "question": f"Which year {n}?", "answers": [f"{n}"]} for n in range(20)]
    rows = [make_sample(n, **fields[n // 2]) for n in range(40)]
    found = guesses(rows)
    assert found is not None
    assert not any(said in row.answers for (said, _), row in zip(found, rows, strict=True))


def test_test_rows_are_tagged_by_the_training_rows() -> None:
    # In the test rows most answers contradict the habit of the training rows.
    rows = [*stories(40, conflict=10), *stories(20, conflict=1, split="test")]
    found = guesses(rows)
    assert found is not None
    assert {said for said, _ in found[40:]} == set(THINGS.values())


def test_labels_and_options_have_the_likeliest_one() -> None:
    def labelled(number: int) -> EventSample:
        always = "always" if number % 2 else "never"
        answer = "negative" if number % 2 else "positive"
        if number == 7:
            answer = "positive"
        return make_sample(
            number, format="nli", question=f"It {always} rained.", answers=[answer], context=f"{number}."
        )

    labels = [labelled(number) for number in range(40)]
    found = guesses(labels)
    assert found is not None
    assert [said for said, _ in found] == ["negative" if n % 2 else "positive" for n in range(40)]
    options = [
        make_sample(n, format="scq", options=[f"rain {n}", f"sun {n}"], answers=[f"{'sun' if n == 5 else 'rain'} {n}"],
                    question="What came?", context=f"{n}.")
        for n in range(40)
    ]  # fmt: skip
    chosen = guesses(options)
    assert chosen is not None
    assert [said for said, _ in chosen] == [f"rain {n}" for n in range(40)]
    assert min(sure for _, sure in chosen) > 0.5


def test_too_few_contexts_have_no_habit_and_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    few = stories(4, conflict=2, dataset="few")
    with pytest.raises(UserError, match=r"data: fewer than 10 different contexts in 4 rows of few \(qa\)"):
        guess_habits(few, "data")
    found = guess_habits([*few, *stories(20, conflict=10)], "data")
    assert [bool(said) for said, _ in found] == [False] * 4 + [True] * 20
    assert "4 rows of few (qa)" in capsys.readouterr().err


def own(name: str = "d-1", **changes: object) -> EventSample:
    fields: dict[str, object] = {
        "id": name,
        "context": "It rained. Cats slept.\nThe <dam> broke.",
        "refined_context": "It rained.\nThe <dam> broke.",
        "answers": ["rain", "a storm"],
    }
    return make_sample(**{**fields, **changes})


def test_rows_are_drawn_by_the_seed_in_the_datas_order() -> None:
    rows = [own(f"d-{number}") for number in range(50)]
    drawn = pick_samples(rows, (), 10, seed=1)
    assert drawn == pick_samples(rows, (), 10, seed=1) != pick_samples(rows, (), 10, seed=2)
    assert [rows.index(one) for one in drawn] == sorted(rows.index(one) for one in drawn)
    assert pick_samples(rows, (), 99, seed=1) == rows


def test_what_the_refined_context_lacks_is_marked() -> None:
    left_out = [text for text, kept in marked(own()) if not kept]
    assert left_out == ["Cats slept."]
    assert "".join(text for text, _ in marked(own())) == own().context
    assert share_kept(own()) == pytest.approx(5 / 7)
    shorter = own(context="It rained, oddly, so the dam broke.", refined_context="It rained so the dam broke.")
    assert [text for text, kept in marked(shorter) if not kept] == ["oddly,"]
    for refined in ("It rained hard.", "The <dam> broke. It rained."):  # a text of its own
        assert marked(own(refined_context=refined)) == [(own().context, True)]


def test_the_page_has_contexts_and_prompts_escaped(tmp_path: Path) -> None:
    swap = {"swapped": {"from": "the <dam>", "to": "the wall"}}
    rows = [own(meta=swap), own("d-2", refined_context="A flood came."), own("d-3", refined_context=None)]
    write_rows_page("rows", rows, load_prompt_set("default"), tmp_path / "rows.html")
    page = (tmp_path / "rows.html").read_text("utf-8")
    first, second, third = page.split("<article")[1:]
    assert '<span class="left-out">Cats slept.</span>' in first
    assert "The &lt;dam&gt; broke." in first
    assert "<dt>swapped</dt><dd>the &lt;dam&gt; → the wall</dd>" in first
    assert "<dt>swapped</dt>" not in second
    assert "<dam>" not in page
    assert "71 % of its words" in first
    assert ">A flood came.<" in second
    assert [part.count("prompt of the refined view") for part in (first, second, third)] == [1, 1, 0]
    assert page.count("prompt of the imagined view") == 3
    assert "rain | a storm" in first


def test_the_full_stop_of_a_chats_answer_need_not_be_in_the_context() -> None:
    row = make_sample(0, context="It costs €5, and more on Sundays.", answers=["€5."])
    assert not repeats_answer(row)
    assert repeats_answer(row.model_copy(update={"format": "chat"}))


@pytest.mark.parametrize(
    ("context", "answer", "expected"),
    [
        ("Parts are in New\nYork City.", "New York City", (True, True)),
        ("It is in New\u00a0York.", "New York", (False, True)),
        ("It left O’Hare.", "O'Hare", (False, True)),
        ("It left O’Hara.", "O'Hare", (False, False)),
        ("It costs 35.", "3.5", (False, False)),
    ],
)
def test_a_context_has_its_answer_with_other_blanks_and_marks(
    context: str, answer: str, expected: tuple[bool, bool]
) -> None:
    row = make_sample(0, context=context, answers=[answer])
    assert (repeats_answer(row), has_answer(row)) == expected
