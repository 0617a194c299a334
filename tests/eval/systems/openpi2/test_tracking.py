"""What the prompts show in their two views."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.chat_template import Messages
from eval.systems.crepe import gold as crepe_gold
from eval.systems.openpi2.clusters import ToCluster, cluster_prompt
from eval.systems.openpi2.complete import parse_sentences
from eval.systems.openpi2.downstream.crepe import likelihood_prompt
from eval.systems.openpi2.downstream.entity_states import StateChange
from eval.systems.openpi2.downstream.pddl import PlanningTask, pddl_prompt
from eval.systems.openpi2.expansion import expansion_prompt
from eval.systems.openpi2.gold import Procedure, read_procedures, states_by_step
from eval.systems.openpi2.schemata import parse_schema
from eval.systems.openpi2.states import parse_states
from eval.systems.openpi2.tracking import listing_prompt, states_chat_prompt, states_text_prompt
from tests.eval.systems.files import save
from tests.eval.systems.openpi2.procedures import ranked

# A goal and steps with words of their own, so that one of them in a prompt is seen.
SECRET = ("GOALWORD", "STEPONE", "STEPTWO")


@pytest.fixture
def procedure(tmp_path: Path) -> Procedure:
    content = {"1": ranked()["1"] | {"goal": "goalword", "steps": ["STEPONE.", "STEPTWO."]}}
    return read_procedures(save(tmp_path / "p.json", content))["1"]


def shown(messages: Messages) -> str:
    return "\n".join(message["content"] for message in messages).upper()


def assert_turns(messages: Messages) -> None:
    """The user begins after the system message, and has the last word."""
    roles = [message["role"] for message in messages]
    roles = roles[1:] if roles[0] == "system" else roles
    assert roles == ["user" if place % 2 == 0 else "assistant" for place in range(len(roles))]
    assert roles[-1] == "user"
    assert not any(re.search(r"\{\w+\}", message["content"]) for message in messages)


def with_event(procedure: Procedure, event: str) -> crepe_gold.Procedure:
    blocks = [[], *([{"type": "step", "step": step}] for step in procedure.steps)]
    blocks[1].append({"type": "event", "event": event, "change": "more likely"})
    row = {"id": procedure.id, "goal": procedure.goal, "steps": blocks, "raw": {}}
    return crepe_gold.Procedure.model_validate(row)


def every_prompt(procedure: Procedure, *, hidden: bool) -> dict[str, Messages]:
    changes = states_by_step(procedure)
    cluster = ToCluster.model_validate({"goal": procedure.goal, "steps": procedure.steps, "entity_attr_dict": {}})
    crepe = with_event(procedure, "It whistles.")
    task = PlanningTask(**procedure.model_dump(include={"id", "goal", "steps"}), task="drink")
    states = [[StateChange("pot", "heat", "low", "STEPONE")], []]
    prompts: dict[str, Any] = {
        f"{listing}, {form}": listing_prompt(listing, form, procedure, ["STEPONE (size)"], hidden=hidden)
        for listing in ("schemata", "complete")
        for form in ("chat", "completion")
    }
    return prompts | {
        "states, chat": states_chat_prompt(procedure, 0, changes[0][0], hidden=hidden),
        "states, text": states_text_prompt(procedure, changes, ["STEPONE before and b after"], hidden=hidden),
        "entities": cluster_prompt(cluster, "", ["pot", "kettle"], hidden=hidden),
        "attributes": cluster_prompt(cluster, "pot", ["heat", "place"], hidden=hidden),
        "expansion": expansion_prompt(procedure, "pot", "", ["pot"], hidden=hidden),
        "expansion of an attribute": expansion_prompt(procedure, "pot", "heat", ["heat"], hidden=hidden),
        "crepe": likelihood_prompt(crepe, "It whistles.", ["more likely"], states, hidden=hidden),
        "pddl": pddl_prompt(task, states, hidden=hidden),
    }


def test_the_imagined_view_lacks_goal_and_steps_alone(procedure: Procedure) -> None:
    originals, imagined = (every_prompt(procedure, hidden=hidden) for hidden in (False, True))
    for name, messages in originals.items():
        assert_turns(messages)
        assert_turns(imagined[name])
        assert SECRET[0] in shown(messages), name
        assert SECRET[1] in shown(messages), name
        assert not any(word in shown(imagined[name]) for word in SECRET), name
        assert imagined[name] == every_prompt(procedure, hidden=True)[name]


@pytest.mark.parametrize("form", ["chat", "completion"])
def test_a_step_is_asked_with_the_answers_to_those_before_it(procedure: Procedure, form: Any) -> None:
    first = shown(listing_prompt("schemata", form, procedure, []))
    assert "STEPONE" in first
    assert "STEPTWO" not in first
    second = listing_prompt("schemata", form, procedure, ["pot (heat)"])
    assert shown(second).index("STEPONE") < shown(second).index("POT (HEAT)") < shown(second).index("STEPTWO")


def test_the_demonstration_is_of_the_form_that_is_parsed(procedure: Procedure) -> None:
    answers = {
        task: [m["content"] for m in listing_prompt(task, "chat", procedure, []) if m["role"] == "assistant"][1:5]
        for task in ("schemata", "complete")
    }
    listed = [parse_schema(answer) for answer in answers["schemata"]]
    sentences = [parse_sentences(answer) for answer in answers["complete"]]
    assert [sum(map(len, schema.values())) for schema in listed] == list(map(len, sentences)) == [3, 5, 3, 2]
    asked = states_chat_prompt(procedure, 0, states_by_step(procedure)[0][0])
    solved = [m["content"] for m in asked if m["content"].startswith("Before: ")]
    assert len(solved) == 13
    assert parse_states(solved[0]) == ("watertight", "able to drain")


def test_states_in_line_are_continued_change_by_change(procedure: Procedure) -> None:
    changes = states_by_step(procedure)
    first = states_text_prompt(procedure, changes, [])[0]["content"]
    assert first.endswith("Step: STEPONE.\n- temperature of water was")
    last = states_text_prompt(procedure, changes, ["a before and b after"] * 3)[0]["content"]
    assert last.endswith("kettle was a before and b after\nStep: STEPTWO.\n- existence of tea was")
    asked = states_chat_prompt(procedure, 1, changes[1][0])[-1]["content"]
    assert asked == "Step: STEPTWO.\nWhat is the existence of tea before and after it?"


def test_entity_states_are_told_where_there_are_some(procedure: Procedure) -> None:
    crepe = with_event(procedure, "It whistles.")
    states = [[StateChange("pot", "heat", "low", "high")], []]
    told = likelihood_prompt(crepe, "It whistles.", ["more likely"], states)
    plain = likelihood_prompt(crepe, "It whistles.", ["more likely"], None)
    assert "heat of pot was low before and high after" in told[3]["content"]
    assert [a == b for a, b in zip(told, plain, strict=True)] == [True, True, True, False, True, True]
    task = PlanningTask(**procedure.model_dump(include={"id", "goal", "steps"}), task="drink")
    assert "heat of pot was low" in pddl_prompt(task, states)[0]["content"]
    assert "heat of pot" not in pddl_prompt(task, None)[0]["content"]
