"""What is asked in both views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.util.errors import UserError
from data_builders.boxes.official import official_rows
from eval.systems.boxes.answers import read_all
from eval.systems.boxes.gold import Question, read_questions, states
from eval.systems.boxes.system import (
    BOXES,
    BoxesOptions,
    Demonstrations,
    as_masked,
    completed,
    prompt_about,
)
from eval.systems.system import SystemCall
from tests.data_builders.boxes.simulation import contents_by_text, scenarios, things_in
from tests.eval.systems.boxes.rows import MOVED, ROWS
from tests.eval.systems.files import save
from tests.factories import ScriptedAsker


@pytest.fixture
def questions(tmp_path: Path) -> list[Question]:
    return read_questions(save(tmp_path / "test.jsonl", ROWS), split="test")


def test_the_imagined_prompts_lack_the_asked_description_and_nothing_else(questions: list[Question]) -> None:
    chats = [
        prompt_about(questions[3], "plain", whole=True),
        prompt_about(questions[4], "alternate"),
        prompt_about(questions[3], "none", whole=True),
    ]
    for chat in chats:
        assert MOVED in chat.messages[-1]["content"]
        assert MOVED not in str(chat.imagined)
        assert chat.imagined[:-1] == chat.messages[:-1]
        assert chat.imagined[-1]["content"].strip()
    assert "Box" not in str(chats[1].messages[:-1]), "the alternate demonstrations speak of containers"


def test_the_prompt_of_training_is_that_of_the_generators_rows(tmp_path: Path) -> None:
    gold = [row for split, row in official_rows("base", scenarios=3, seed=0, row_format="few_shot") if split == "test"]
    questions = read_questions(save(tmp_path / "test.jsonl", gold), split="test")
    asker: Any = ScriptedAsker(lambda name, chat: f"The answer is: {questions[int(chat.id.split()[1]) - 1].answer}.")
    _, said = BOXES.ask(states(questions), SystemCall(Path(), BoxesOptions(prompt="trained"), None, 0), asker)
    assert said == [question.answer for question in questions]
    prompts, ((_, chats),) = load_prompt_set("default"), asker.passes
    for chat, row in zip(chats, scenarios(3)["test"], strict=True):
        assert (chat.messages, chat.imagined) == (prompts.messages(row, "original"), prompts.messages(row, "imagined"))


@pytest.fixture
def masked(tmp_path: Path) -> list[Question]:
    """The rows of a scenario in the form for fine-tuning T5."""
    rows = [row for _, row in official_rows("base", scenarios=3, seed=0, row_format="t5")]
    return read_questions(save(tmp_path / "t5.jsonl", rows), split="test")


def test_a_masked_prompt_is_that_of_training_in_the_same_form_in_both_views(masked: list[Question]) -> None:
    trained = [sample for samples in scenarios(3, form="t5").values() for sample in samples]
    by_prompt = {sample.conversation.messages(sample.context)[0]["content"]: sample for sample in trained}  # type: ignore[union-attr]
    assert len(masked) == len(trained) == len(by_prompt)
    for question in masked:
        chat = as_masked(question)
        conversation = by_prompt[chat.messages[0]["content"]].conversation
        assert conversation is not None
        assert chat.imagined == conversation.messages("")
        assert len(chat.messages) == 1


def test_replies_to_masked_prompts_are_scored_as_they_are(masked: list[Question], questions: list[Question]) -> None:
    texts = {f"line {one.line}": one.masked_content for one in masked}
    texts["line 2"] = masked[1].answer + "."  # the official script counts the full stop
    asker: Any = ScriptedAsker(lambda name, chat: texts[chat.id])
    options = BoxesOptions(prompt="masked")
    found = BOXES.ask(states(masked), SystemCall(Path(), options, None, 0), asker)
    scores = BOXES.evaluate(states(masked), found, options, seed=0).scores
    assert scores["accuracy"]["mean"] == pytest.approx(1 - 1 / len(masked))
    assert scores["corrected"]["accuracy"]["mean"] == 1
    with pytest.raises(UserError, match="prompt=masked: line 1 of the questions has 'contains' before its mask"):
        as_masked(questions[0])


@pytest.mark.parametrize("demonstrations", ["plain", "alternate", "none"])
def test_a_cloze_is_one_text_that_ends_in_an_unfinished_statement(
    questions: list[Question], demonstrations: Demonstrations
) -> None:
    for chat, box in (
        (prompt_about(questions[3], demonstrations, "completion", whole=True), "Box 0"),
        (prompt_about(questions[4], demonstrations, "completion"), "Box 1"),
    ):
        (turn,) = chat.messages
        assert turn["content"].endswith(f"\n\nDescription: {MOVED}\nStatement: {box} contains")
        assert chat.imagined[0]["content"] == turn["content"].replace(f"Description: {MOVED}\n", "")
        assert turn["content"].count("\nStatement: ") == (1 if demonstrations == "none" else 3)
        assert ("in the form: Box 0 contains" in turn["content"]) == (demonstrations == "none")


def test_what_a_cloze_completes_ends_where_another_example_begins(questions: list[Question]) -> None:
    question = questions[4]
    assert completed(question, " the pen.\n\nDescription: Box 1 contains the cup.") == "Box 1 contains the pen."
    assert (
        completed(question, " the pen.\nBox 2 contains the cup") == "Box 1 contains the pen.\nBox 2 contains the cup"
    )
    assert completed(question, " the pen. Description: Box 0") == "Box 1 contains the pen."


def test_zero_shot_shows_no_example_and_says_the_form(questions: list[Question]) -> None:
    for chat in (prompt_about(questions[3], "none", whole=True), prompt_about(questions[3], "none")):
        assert [turn["role"] for turn in chat.messages] == ["system", "user"]
        assert "in the form: Box 0 contains the A" in chat.messages[0]["content"]


def test_demonstrations_say_what_their_descriptions_imply(questions: list[Question]) -> None:
    turns = prompt_about(questions[0], "plain", whole=True).messages
    for asked, answered in ((turns[1], turns[2]), (turns[3], turns[4])):
        description = asked["content"].removeprefix("Description: ").partition("\n")[0]
        told = read_all(answered["content"], [f"Box {number}" for number in range(7)])
        contents = contents_by_text(description)
        assert [things_in(said or "?") for said in told] == [contents[str(number)] for number in range(7)]
        assert all(told)
