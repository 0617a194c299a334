"""Boxes: its files, what is right by both rules, scores by hand, and predictions in each form."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.util.encrypted_zip import write_encrypted
from d2e_sft.util.errors import UserError
from data_builders.boxes.source import official_rows
from eval.systems.benchmark import BenchmarkCall
from eval.systems.boxes.answers import read_all, right, right_officially
from eval.systems.boxes.benchmark import BOXES, BoxesOptions, as_masked, completed, prompt_about
from eval.systems.boxes.gold import (
    BoxQuestion,
    balanced,
    official_tsv,
    predictions_text,
    read_predictions,
    read_questions,
    states,
)
from eval.systems.boxes.scorer import candidates, outcomes, plot, random_answers, score, tables
from tests.data_builders.boxes.simulation import contents_by_text, scenarios, things_in
from tests.eval.systems.files import MOVED, ROWS, START, save
from tests.factories import ScriptedAsker


@pytest.fixture
def questions(tmp_path: Path) -> list[BoxQuestion]:
    return read_questions(save(tmp_path / "test.jsonl", ROWS), split="test")


def generated(folder: Path, variant: Any, form: Any, split: str = "train", count: int = 9) -> list[BoxQuestion]:
    rows = [row for name, row in official_rows(variant, scenarios=count, seed=0, row_format=form) if name == split]
    return read_questions(save(folder / f"{split}.jsonl", rows), split=split)


RULES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", [(form, *case) for form, cases in RULES.items() for case in cases])
def test_the_two_rules(case: tuple[str, str | None, str, bool, bool]) -> None:
    form, prediction, gold, official, corrected = case
    assert right_officially(prediction, gold, t5=form == "t5") is official
    assert right(prediction, gold) is corrected


def test_questions_know_the_start_and_what_changed(questions: list[BoxQuestion]) -> None:
    assert [question.box for question in questions] == ["Box 0", "Box 1", "Box 2"] * 2
    assert [question.changed for question in questions] == [False] * 3 + [True] * 3
    assert [group[0].description for group in states(questions)] == [START, MOVED]


@pytest.mark.parametrize(
    ("variant", "form"), [("base", "t5"), ("altforms", "few_shot"), ("move_contents", "t5"), ("ambiref", "few_shot")]
)
def test_generated_files_and_predictions_are_read_in_all_wordings(tmp_path: Path, variant: str, form: str) -> None:
    questions = generated(tmp_path, variant, form)
    assert (len(questions), {len(state) for state in states(questions)}) == (4 * 91, {7})
    assert {question.form for question in questions} == {form}
    assert not any(question.changed for question in questions if question.numops == 0)
    texts = [None if number % 7 == 3 else f"{question.answer}, more" for number, question in enumerate(questions)]
    assert read_predictions(save(tmp_path / "p.tsv", official_tsv(questions, texts)), questions) == (questions, texts)


def test_a_balanced_subsample_has_states_of_every_number_of_operations(tmp_path: Path) -> None:
    everything = states(generated(tmp_path, "base", "t5", "test", 20))
    there = Counter(numops for group in everything for numops in {question.numops for question in group})
    chosen = balanced(everything, 3, seed=0)
    kept = Counter(numops for group in chosen for numops in {question.numops for question in group})
    assert all(kept[numops] >= min(3, count) for numops, count in there.items())
    places = [everything.index(group) for group in chosen]
    assert places == sorted(set(places))
    assert len(chosen) <= 3 * len(there)
    assert balanced(everything, 3, seed=0) == chosen != balanced(everything, 3, seed=1)
    assert balanced(everything, 10**6, seed=0) == everything


def test_a_split_is_found_in_folders_and_archives(tmp_path: Path) -> None:
    save(tmp_path / "plain" / "test-subsample.jsonl", ROWS)
    write_encrypted(tmp_path / "a.zip", {"x/test.jsonl": [json.dumps(row) for row in ROWS], "x/train.jsonl": ["{}"]})
    for path in (tmp_path / "plain", tmp_path / "a.zip"):
        assert len(read_questions(path, split="test")) == 6


def test_the_published_format_is_read_whole(published_raw: Path) -> None:
    path = published_raw / "boxes" / "boxes-regenerated.zip"
    if not path.is_file():
        pytest.skip(f"no {path}")
    with pytest.raises(UserError, match="found several"):
        read_questions(path, split="test")
    counts = {"train": (990, 1), "dev": (220, 2), "few_shot_boxes_nso_exp2_max3_move_contents/test": (990, 1)}
    for split, (count, states_each) in counts.items():
        questions = read_questions(path, split=split)
        assert len(questions) == count * states_each * 7
        assert len(states(questions)) == count * states_each
        assert all(question.numops or not question.changed for question in questions)


def test_predictions_keep_whatever_the_model_wrote(tmp_path: Path, questions: list[BoxQuestion]) -> None:
    odd = ["the cup\u2028and more", "a\nb", None, "nothing", "", "the hat"]
    path = save(tmp_path / "p.jsonl", predictions_text(questions, odd))
    assert read_predictions(path, questions) == (questions, odd)
    lines = official_tsv(questions, ["the\tcup\nand", *["nothing"] * 5]).splitlines()
    assert lines[0] == "\ttarget\tprediction\tinput"
    assert lines[1] == f"0\tthe cup\tthe cup and\tDescription: {START}\\nStatement: Box 0 contains"


def test_an_input_may_be_a_whole_prompt_without_a_number(tmp_path: Path, questions: list[BoxQuestion]) -> None:
    shown = "Say what is in the boxes. Description: Box 0 contains the saw.\\nStatement: Box 0 contains the saw.\\n"
    lines = (
        "\ttarget\tprediction\tinput",
        f'7\tthe pen.\tthe pen\t"{shown}Description: {MOVED}\\nStatement: Box 1 contains"',
        f"the cup\tthe hat\tComplete the sentence. It is about boxes. {START} Box 0 contains",
        f"3\tnothing\t\t{MOVED} Box 0 contains .",
    )
    chosen, texts = read_predictions(save(tmp_path / "p.tsv", "\n".join(lines) + "\n"), questions)
    assert [question.line for question in chosen] == [1, 4, 5]
    assert texts == ["the hat", None, "the pen"]


def test_accuracy_is_by_operations_and_a_state_needs_all_its_boxes(
    questions: list[BoxQuestion],
) -> None:
    #  state 0: right, right, right;  state 1: by meaning alone right, right, then unread
    predictions = ["cup", "the pen, the hat", "nothing", "is empty", "the Pen", None]
    baseline = ["the cup", "nothing", "nothing", "the cup", "the pen", "the hat"]
    scores = score(outcomes(questions, predictions, baseline), 1, boxes=3, seed=0)
    found = {key: value["mean"] for key, value in scores.items() if isinstance(value, dict) and "mean" in value}
    assert {key: found[key] for key in ("accuracy", "accuracy_changed", "accuracy_unchanged", "state_accuracy")} == {
        "accuracy": 3 / 6, "accuracy_changed": 0, "accuracy_unchanged": 1, "state_accuracy": 1 / 2
    }  # fmt: skip
    assert {key: value["mean"] for key, value in scores["corrected"].items()} == {
        "accuracy": 5 / 6, "accuracy_changed": 2 / 3, "accuracy_unchanged": 1, "state_accuracy": 1 / 2
    }  # fmt: skip
    assert found["baseline_accuracy"] == 4 / 6
    assert (scores["unparsed"], scores["states"]) == (1 / 6, 2)
    assert [
        (row["numops"], row["changed"], row["n"], row["accuracy"]["mean"], row["corrected"]["mean"])
        for row in scores["by_numops"]
    ] == [(1, True, 3, 0.0, 2 / 3), (0, False, 3, 1.0, 1)]
    main, detail = tables(scores, total=8)
    assert [row[:2] for row in main.rows()] == [
        ["all questions", "6"], ["changed boxes", "3"], ["unchanged boxes", "3"], ["whole states", "2"]
    ]  # fmt: skip
    assert detail.rows()[0][:3] == ["1", "yes", "3"]
    assert plot(scores) == plot(scores)


def test_the_random_baseline_draws_from_clauses_with_the_box(tmp_path: Path, questions: list[BoxQuestion]) -> None:
    assert [candidates(question) for question in questions[3:]] == [["cup"], ["hat", "pen"], ["hat"]]
    questions = generated(tmp_path, "ambiref", "t5", "dev", 20)
    drawn = random_answers(questions, seed=0)
    assert all(text == "is empty" or text.startswith("contains the ") for text in drawn)
    assert all(" " in thing for question in questions for thing in candidates(question))
    scores = score(outcomes(questions, [q.answer for q in questions], drawn), 0, boxes=7, seed=0)
    assert scores["accuracy"]["mean"] == scores["corrected"]["state_accuracy"]["mean"] == 1
    assert 0.05 < scores["baseline_accuracy"]["mean"] < 0.6


def test_the_prompts_of_training_are_those_of_the_generators_rows(tmp_path: Path) -> None:
    questions = generated(tmp_path, "base", "few_shot", "test", 3)
    asker: Any = ScriptedAsker(lambda name, chat: f"The answer is: {questions[int(chat.id.split()[1]) - 1].answer}.")
    _, said = BOXES.ask(states(questions), BenchmarkCall(Path(), BoxesOptions(prompt="trained"), None, 0), asker)
    assert said == [question.answer for question in questions]
    prompts, ((_, chats),) = load_prompt_set("default"), asker.passes
    for chat, row in zip(chats, scenarios(3)["test"], strict=True):
        assert (chat.messages, chat.imagined) == (prompts.messages(row, "original"), prompts.messages(row, "imagined"))
    trained = {
        row.conversation.messages(row.context)[0]["content"]: row.conversation  # type: ignore[union-attr]
        for row in scenarios(3, form="t5")["test"]
    }
    for question in generated(tmp_path, "base", "t5", "test", 3):
        chat = as_masked(question)
        assert chat.imagined == trained[chat.messages[0]["content"]].messages("")  # type: ignore[union-attr]


def test_replies_to_masked_prompts_are_scored_as_they_are(tmp_path: Path) -> None:
    masked = generated(tmp_path, "base", "t5", "train", 3)
    texts = {f"line {question.line}": question.masked_content for question in masked}
    texts["line 2"] = masked[1].answer + "."  # the official script counts the full stop
    asker: Any = ScriptedAsker(lambda name, chat: texts[chat.id])
    options = BoxesOptions(prompt="masked")
    answers = BOXES.ask(states(masked), BenchmarkCall(Path(), options, None, 0), asker)
    scores = BOXES.evaluate(states(masked), answers, options, seed=0).scores
    assert scores["accuracy"]["mean"] == pytest.approx(1 - 1 / len(masked))
    assert scores["corrected"]["accuracy"]["mean"] == 1


def test_what_a_cloze_completes_ends_where_another_example_begins(questions: list[BoxQuestion]) -> None:
    for reply, text in (
        (" the pen.\n\nDescription: Box 1 contains the cup.", "the pen."),
        (" the pen.\nBox 2 contains the cup", "the pen.\nBox 2 contains the cup"),
        (" the pen. Description: Box 0", "the pen."),
    ):
        assert completed(questions[4], reply) == f"Box 1 contains {text}"


def test_demonstrations_say_what_their_descriptions_imply(questions: list[BoxQuestion]) -> None:
    turns = prompt_about(questions[0], "plain", whole=True).messages
    for asked, answered in ((turns[1], turns[2]), (turns[3], turns[4])):
        told = read_all(answered["content"], [f"Box {number}" for number in range(7)])
        contents = contents_by_text(asked["content"].removeprefix("Description: ").partition("\n")[0])
        assert [things_in(said or "?") for said in told] == [contents[str(number)] for number in range(7)]
