"""States of CREPE's steps, predicted by a model that was trained on OpenPI's rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.data.conversation import prompt_turns
from d2e_sft.util.errors import UserError
from data_builders.sources import SOURCES
from eval.run.task import Conversation
from eval.systems.crepe.gold import read_procedures, read_states
from tests.eval.systems.files import save
from tests.eval.systems.openpi2.downstream.test_crepe import CREPE
from tests.eval.systems.openpi2.procedures import run


def test_states_of_crepes_steps_are_asked_in_the_words_of_the_training_rows(tmp_path: Path) -> None:
    file, source = save(tmp_path / "data_dev_v2.json", CREPE), SOURCES["openpi"]

    def answer(_: str, chat: Conversation) -> str:
        heated = "- heat of kettle was cold before and hot afterwards\nHm."
        return heated if chat.id == "7/1" else "There will be no change."

    result, asker = run(tmp_path, answer, "task=crepe_states", f"crepe_file={file}")
    ((_, chats),) = asker.passes
    row = prompt_turns(source.prompt, source.system, "What does the latest step change?")
    assert [chat.id for chat in chats] == ["7/1", "7/2"]
    assert (chats[1].messages, chats[1].imagined) == (row.messages("Heat the kettle. Take it off."), row.messages(""))
    assert result.scores["crepe_states"] == {"procedures": 1, "steps": 2, "changes": 1, "entities_a_step": 0.5}
    assert result.scores["lines_that_are_no_state_change"] == 1
    hot = {"entity": "kettle", "attribute": "hot", "change": "more likely"}
    states = save(tmp_path / "states.json", json.loads(result.files["entities-all.json"]))
    assert json.loads(states.read_text()) == {"7": {"1": [hot, hot | {"attribute": "cold", "change": "less likely"}]}}
    assert [len(step) for step in read_states(states, read_procedures(file))["7"]] == [2, 0]


def test_they_need_crepes_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="task=crepe_states: needs CREPE's data file"):
        run(tmp_path, lambda *_: "", "task=crepe_states")
