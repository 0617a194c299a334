"""Sources that draw: half of CIDER's triplets become false, TRACIE's labels even out, training questions are drawn."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from data_builders.sources.reading import first_of_each, keep_unseen
from tests.data_builders.reading import read, use_substitutes

SEEDS = range(8)


def test_half_of_each_cider_relation_is_false_and_no_annotated_pair(raw: Path) -> None:
    possible = {
        "Causes": {"'lit a candle' causes 'lamp broke'."},  # the other dialogue has its pair both ways
        "Before": {"'read a book' happens before 'lamp broke'.", "'we talked' happens before 'hungry'."},
        "Simutaneous": {
            f"'read a book' happens at the same time as '{span}'." for span in ("lit a candle", "lamp", "thing")
        },
    }
    for seed in SEEDS:
        rows = read(raw, "cider", seed=seed)["test"].rows
        false = [row for row in rows if row.answers == ["negative"]]
        assert len(rows) == 7
        assert Counter(row.meta["cider_relation"] for row in false) == {"Causes": 1, "Before": 1, "Simutaneous": 1}
        assert all(row.question in possible[row.meta["cider_relation"]] for row in false)


def test_a_cider_turn_has_a_line_of_its_own(raw: Path) -> None:
    first = read(raw, "cider")["test"].rows[0]
    assert first.context == ("A: The lamp broke . it was late .\nB: Then I lit a candle .\nA: And I read a book .")


def test_tracie_keeps_one_row_of_each_pair_of_events_with_even_labels(raw: Path) -> None:
    path = raw / "tracie/iid/tracie_test.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    only_positive = [line for line in lines[:8] if line.endswith("positive")]  # of two events
    for content in (lines, only_positive + lines[8:]):
        path.write_text("\n".join(content) + "\n", encoding="utf-8")
        rows = read(raw, "tracie")["test"].rows
        assert len({row.context for row in rows}) == len(rows) == 10
        assert Counter(row.answers[0] for row in rows) == {"positive": 5, "negative": 5}


def test_cosmosqa_draws_wrong_answers_from_other_stories(raw: Path) -> None:
    use_substitutes(raw, "cosmosqa")
    places = set()
    for seed in SEEDS:
        rows = read(raw, "cosmosqa", seed=seed)["train"].rows
        assert len(rows) == 20  # one story is in the test
        for row in rows:
            number = int(row.question.split()[-2])
            assert row.answers == [f"It is {number} ."]
            others = {int(option.split()[-2]) // 2 for option in row.options if option != row.answers[0]}
            assert number // 2 not in others
            places.add(row.options.index(row.answers[0]))
    assert places == {0, 1, 2, 3}


def test_cosmosqa_needs_enough_answers_to_draw_from(raw: Path) -> None:
    use_substitutes(raw, "cosmosqa")
    few = {"Instances": [{"input": "Context: A . \nQuestion: B ?", "output": ["C ."]}]}
    (raw / "cosmosqa/subtask024_cosmosqa_answer_generation.json").write_text(json.dumps(few))
    with pytest.raises(UserError, match="its 1 questions have too few answers to draw wrong ones from"):
        read(raw, "cosmosqa")


@pytest.mark.parametrize("name", ["tracie", "cosmosqa"])
def test_a_draw_depends_on_the_seed_only(raw: Path, name: str) -> None:
    use_substitutes(raw, "cosmosqa")
    drawn = [[row.model_dump() for row in read(raw, name, seed=seed)["train"].rows] for seed in (0, 0, 2)]
    drawn += [[row.model_dump() for row in read(raw, name, ("train",), seed=0)["train"].rows]]
    assert drawn[0] == drawn[1] == drawn[3] != drawn[2]


def test_exchanged_matres_pairs_are_asked_the_other_way_round_in_training_only(raw: Path) -> None:
    plain, turned = (read(raw, "matres", ("train", "test"), f"exchanged_share={share}") for share in (0, 1))
    assert plain["test"].rows == turned["test"].rows
    other = {"before": ["after"], "after": ["before"]}
    for one, exchanged in zip(plain["train"].rows, turned["train"].rows, strict=True):
        assert exchanged.answers == other.get(one.answers[0], one.answers)
        assert exchanged.subset == ("aligned" if exchanged.answers == ["before"] else "conflict")
        assert exchanged.context == one.context.replace("e1>", "e0>").replace("e2>", "e1>").replace("e0>", "e2>")
        assert exchanged.meta["exchanged"] is True
    assert turned["train"].rows[1].question == (
        "Does the event <e1>agreed</e1> start before or after the event <e2>said</e2>?"
    )
    half = read(raw, "matres", ("train",), "exchanged_share=0.5")["train"].rows
    assert {bool(row.meta.get("exchanged")) for row in half} == {True, False}


def test_a_subset_file_that_does_not_fit_the_rows_of_matres_is_an_error(raw: Path) -> None:
    path = raw / "conflict/event-temporal/matres/valid_text_features_matres_roberta_erp_bias.json"
    path.write_text(json.dumps(json.loads(path.read_text())[::-1]))
    with pytest.raises(UserError, match=r"roberta_erp_bias\.json, item 2: equals none of the following rows of"):
        read(raw, "matres", ("dev",))


@pytest.mark.parametrize("name", ["kre_squad", "nq_swap"])
def test_drawn_training_rows_are_aligned_and_share_no_passage_with_the_test(raw: Path, name: str) -> None:
    sizes = set()
    for seed in SEEDS:
        found = read(raw, name, ("train", "test"), "train_share=0.4", seed=seed)
        train, test = found["train"].rows, found["test"].rows
        assert {row.subset for row in train} <= {"aligned"}
        assert not {row.context for row in train} & {row.context for row in test}
        assert not {row.question for row in train} & {row.question for row in test}
        sizes.add(len(train))
    assert max(sizes) > 0


def test_the_first_row_of_each_key_stays_and_a_key_of_the_test_goes() -> None:
    assert first_of_each(["b1", "a1", "b2", "a2"], lambda row: row[0]) == ["b1", "a1"]
    rows, test = [("a", ""), ("b", "x"), ("c", "y")], [("a", ""), ("z", "y")]
    unseen = keep_unseen("unseen", "in the test", lambda row: row[0], lambda row: row[1])
    assert unseen.keep(rows, test) == [("b", "x")]  # an empty key is never shared


def golden(number: int, passage: str, answer: str, *others: str, question: str = "") -> dict[str, object]:
    """A row of KRE-SQuAD's golden file."""
    asked = question or f"What is thing {number}?"
    choices = [f" {other} " for other in others] + [answer]
    return {"question": asked, "choices": choices, "id": f"squad_{number}", "answer": answer, "context": passage}


def number_of(row: EventSample) -> int:
    return int(row.meta["squad_id"].removeprefix("squad_"))


def test_a_revised_passage_states_another_option_wherever_the_answer_stood(raw: Path) -> None:
    passages = [f"Place {n} has a lake. In it the harbour {n} is amber. Amber was chosen by all." for n in range(12)]
    rows = [golden(n, text, "amber", "Blue", "White", "Grey") for n, text in enumerate(passages)]
    # None of these can be revised: the question names the answer, a part of a name, a clause, another article.
    rows += [
        golden(20, "The amber gate is old.", "amber", "blue", "white", "grey", question="Is it amber or not?"),
        golden(21, "Ann Dow left. Dow came back.", "Ann Dow", "Bo Ray", "Cy Fay", "Di Ash"),
        golden(
            22, "They may be less willing to travel or to move.", "less willing to travel or to move", "x", "y", "z"
        ),
        golden(23, "It was an owl.", "owl", "bear", "cat", "dog"),
        golden(24, "It was built in 1902.", "1902", "old", "new", "red"),
    ]
    (raw / "conflict/kre-squad/squad_golden.json").write_text(json.dumps(rows))
    found = read(raw, "revised", ("train", "test"), "train_samples=6", "test_samples=4", "max_words=20")
    train, test = found["train"].rows, found["test"].rows
    assert [row.subset for row in train] == [None] * 6
    by_number = {number_of(row): row for row in train}
    for aligned, conflict in zip(test[::2], test[1::2], strict=True):
        number = number_of(aligned)
        new = conflict.answers[0]
        assert (aligned.subset, conflict.subset, aligned.answers) == ("aligned", "conflict", ["amber"])
        assert new in ("blue", "white", "grey")
        assert aligned.habit == conflict.habit == ["amber"]
        assert aligned.context == passages[number]
        assert conflict.context == passages[number].replace("amber", new).replace("Amber", new.capitalize())
        trained = aligned.dataset == "revised"
        assert (number in by_number) == trained == aligned.meta["trained"]
        if trained:  # `--swap` in training must not state the test's answer
            assert {*by_number[number].meta["choices"], new} == {"blue", "white", "grey"}
    assert Counter(row.dataset for row in test) == {"revised": 8, "revised_untrained": 8}
    assert [one.dataset for one in test[:8]] == ["revised"] * 8, "the probe's first dataset is that of training"


def test_the_passages_of_untrained_questions_are_not_trained(raw: Path) -> None:
    rows = [golden(n, f"In place {n // 3} the wall is amber.", "amber", "blue", "white", "grey") for n in range(30)]
    (raw / "conflict/kre-squad/squad_golden.json").write_text(json.dumps(rows))
    for seed in SEEDS:
        found = read(raw, "revised", ("train", "test"), "train_samples=10", "test_samples=30", seed=seed)
        trained = {number_of(row) // 3 for row in found["train"].rows}
        untrained = {number_of(row) // 3 for row in found["test"].rows if row.dataset == "revised_untrained"}
        assert untrained
        assert not trained & untrained
