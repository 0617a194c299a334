"""CREPE's questions with no, all and salient entity states."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.run.task import Conversation
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


def test_crepe_needs_its_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs CREPE's data file"):
        run(tmp_path, lambda *_: "", "task=crepe")
    broken = save(tmp_path / "broken.json", {"7": {"goal": "x", "steps": [[], [{"type": "event"}]]}})
    with pytest.raises(UserError, match=r"broken.json: 7.steps.1.0: .*event is missing"):
        run(tmp_path, lambda *_: "", "task=crepe", f"crepe_file={broken}")
