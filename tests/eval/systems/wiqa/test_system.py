"""The prompt of training on WIQA's rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.prompts import load_prompt_set
from eval.systems.system import SystemCall
from eval.systems.wiqa.system import WIQA, WiqaOptions
from tests.data_builders.reading import rows_of_split
from tests.eval.systems.files import save
from tests.eval.systems.wiqa.files import QUESTIONS, read_questions
from tests.factories import ScriptedAsker


@pytest.mark.parametrize("published", [False, True])
def test_a_model_that_was_trained_on_the_rows_is_asked_in_their_words(
    published: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    raw = request.getfixturevalue("published_raw") if published else tmp_path
    if not published:
        save(tmp_path / "wiqa" / "test.jsonl", QUESTIONS)
    rows, prompts = rows_of_split(raw, "wiqa", "test"), load_prompt_set("default")
    gold = WIQA.read_gold(raw / "wiqa" / "test.jsonl", None)
    answers = {one.id: prompts.response(row) for one, row in zip(gold, rows, strict=True)}
    asker: Any = ScriptedAsker(lambda name, chat: answers[chat.id])
    options = WiqaOptions(prompt="trained")
    found = WIQA.ask(gold, SystemCall(raw, options, None, 0), asker)
    assert found.labels == {one.id: one.answer for one in gold}
    for chat, row in zip(asker.passes[0][1], rows, strict=True):
        assert (chat.messages, chat.imagined) == (prompts.messages(row, "original"), prompts.messages(row, "imagined"))


def test_without_the_paragraph_the_prompt_of_training_is_the_imagined_one(tmp_path: Path) -> None:
    gold = read_questions(save(tmp_path / "test.jsonl", QUESTIONS))
    asker: Any = ScriptedAsker(lambda name, chat: "I cannot tell.")
    options = WiqaOptions(prompt="trained", paragraph="no")
    found = WIQA.ask(gold, SystemCall(tmp_path, options, None, 0), asker)
    assert set(found.labels.values()) == {None}
    for chat in asker.passes[0][1]:
        assert chat.messages == chat.imagined
    with pytest.raises(ValueError, match="prompt=trained is the prompt of training, without solved examples"):
        WiqaOptions(prompt="trained", shots=1)
