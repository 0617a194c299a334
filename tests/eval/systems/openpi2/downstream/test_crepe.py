"""CREPE's questions with no, all and salient entity states."""

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
from tests.eval.systems.openpi2.procedures import run

CREPE = {
    "7": {
        "goal": "Brew tea",
        "steps": [
            [{"step": "Start."}],
            [
                {"type": "step", "step": "Heat the kettle."},
                {"type": "event", "event": "It whistles.", "change": "more likely"},
            ],
            [
                {"type": "step", "step": "Take it off."},
                {"type": "entity", "entity": "kettle", "attribute": "hot", "change": "less likely"},
                {"type": "event", "event": "It whistles.", "change": "less likely"},
            ],
        ],
    }
}


def test_crepe_with_no_all_and_salient_states(tmp_path: Path) -> None:
    file = save(tmp_path / "data_dev_v2.json", CREPE)

    def answer(name: str, chat: Conversation) -> str:
        if name == "entity-states-step1":
            return "- heat of kettle was cold before and hot after\n- noise of room was low before and high after\nBye"
        if name == "entity-states-step2":
            return "- heat of kettle was hot before and hot after"
        if name.startswith("salience"):
            return "5" if chat.messages[-1]["content"] == "kettle" else "2"
        told = "heat of kettle" in chat.messages[-1]["content"]
        if name.startswith("crepe-none"):
            assert not told
            return "Hm."
        assert told
        return "More likely." if name.endswith("step1") else "It is less likely now."

    result, asker = run(tmp_path, answer, "task=crepe", f"crepe_file={file}")
    assert result.scores["crepe_macro_f1_all"] == result.scores["crepe_macro_f1_salient"] == 1
    assert result.scores["crepe_macro_f1_none"] == 0
    found = result.scores["crepe"]
    assert found["pairs"] == found["none"]["unparsed"] == 2
    assert (found["all"]["entities_a_step"], found["salient"]["entities_a_step"]) == (1.5, 1)
    assert result.scores["lines_that_are_no_state_change"] == 1
    assert "no state change, and are left out: 1" in result.tables[0].markdown()
    # An endpoint has no tokenizer, so words are counted; the salient prompts lack a sentence, in two turns.
    words = found["all"]["prompt_words"] - found["salient"]["prompt_words"]
    assert words == 2 * len(["noise", "of", "room", "was", "low", "before", "and", "high", "after"])
    assert found["salient"]["saved"] == pytest.approx(words / found["all"]["prompt_words"])
    hot = {"entity": "kettle", "attribute": "hot", "change": "more likely"}
    cold = {"entity": "kettle", "attribute": "cold", "change": "less likely"}
    assert json.loads(result.files["entities-salient.json"]) == {"7": {"1": [hot, cold], "2": [hot]}}
    assert len(json.loads(result.files["entities-all.json"])["7"]["1"]) == 4
    assert asker.asked["crepe-all-step2"][0].messages[-2]["content"] == "More likely."


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


def test_crepe_needs_its_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs CREPE's data file"):
        run(tmp_path, lambda *_: "", "task=crepe")
    with pytest.raises(UserError, match="task=crepe_states: needs CREPE's data file"):
        run(tmp_path, lambda *_: "", "task=crepe_states")
    broken = save(tmp_path / "broken.json", {"7": {"goal": "x", "steps": [[], [{"type": "event"}]]}})
    with pytest.raises(UserError, match=r"broken.json: 7.steps.1.0: .*event is missing"):
        run(tmp_path, lambda *_: "", "task=crepe", f"crepe_file={broken}")
