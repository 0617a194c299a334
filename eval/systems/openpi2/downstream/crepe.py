"""CREPE (Zhang et al., 2023) with no, all and salient entity states, zero-shot (paper section 4.3.1, table 9)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from d2e_sft.data.chat_template import CUED, ChatEncoder, Messages
from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table
from eval.run.task import Conversation
from eval.systems.asker import Asker
from eval.systems.conversations import ask_by_turns, system, turns, wording
from eval.systems.crepe import gold as crepe
from eval.systems.crepe.gold import LABELS
from eval.systems.crepe.scorer import macro_f1
from eval.systems.openpi2.downstream import entity_states
from eval.systems.openpi2.downstream.entity_states import StateChange, StateChanges
from eval.systems.openpi2.gold import Procedure
from eval.systems.openpi2.metrics import cell
from eval.systems.openpi2.task import OpenPIOptions, Task, conversation, drawn, sampling
from eval.systems.system import SystemCall, SystemResult

_WORDING: Any = wording("openpi2/prompts/crepe")
_TOKENS = 16
_LABEL = re.compile(r"(equally|less|more) likely", re.IGNORECASE)


# Replies at each step by (procedure, event), and the length of all prompts together.
Replies = tuple[Mapping[tuple[str, str], Sequence[str]], int]


def likelihood_prompt(
    procedure: crepe.Procedure,
    event: str,
    replies: Sequence[str],
    states: Sequence[Sequence[StateChange]] | None,
    *,
    hidden: bool = False,
) -> Messages:
    """Ask what a step does to the event, after the replies to the steps before it.

    The prompt shows the changes of each step if `states` has them; `hidden` is the imagined view.
    """
    if hidden:
        start = _WORDING["hidden_start"].format(event=event)
        asked = [f"{_WORDING['hidden_step']}\n{_WORDING['question']}"]
    else:
        start = _WORDING["start"].format(goal=procedure.goal.lower(), event=event)
        blocks = procedure.blocks[: len(replies) + 1]
        asked = [_turn(block.step, states[place] if states else ()) for place, block in enumerate(blocks)]
    said = () if hidden else replies
    texts = [text for pair in zip(asked, said, strict=False) for text in pair]
    return [system(_WORDING["system"]), *turns(start, _WORDING["accept"], *texts, asked[-1])]


def _turn(step: str, changes: Sequence[StateChange]) -> str:
    listed = _WORDING["states"].format(states="; ".join(change.text for change in changes)) if changes else ""
    return "\n".join(filter(None, (_WORDING["step"].format(step=step), listed, _WORDING["question"])))


def ask_setting(
    asker: Asker,
    name: str,
    procedures: Mapping[str, crepe.Procedure],
    states: StateChanges | None,
    length: Callable[[Messages], int],
    **sampling: Any,
) -> Replies:
    """Ask about every event after every step, each with the answers to the steps before."""
    lengths = []

    def next_step(about: tuple[str, str], replies: Sequence[str]) -> Conversation:
        key, event = about
        told = None if states is None else states[key]
        chat = conversation(f"{key}/{event}", likelihood_prompt, procedures[key], event, replies, told, group=key)
        lengths.append(length(chat.messages))
        return chat

    counts = {(key, event): len(item.blocks) for key, item in procedures.items() for event in item.events}
    pass_name = f"crepe-{name}-step{{}}"
    replies = ask_by_turns(asker, pass_name, counts, next_step, max_new_tokens=_TOKENS, **sampling)
    return replies, sum(lengths)


def prompt_length(asker: Asker) -> tuple[Callable[[Messages], int], str]:
    """Return how to measure prompts, and the unit: tokens, or words if the endpoint's tokens are unknown."""
    if asker.config.engine == "openai":
        return lambda messages: sum(len(message["content"].split()) for message in messages), "words"
    from d2e_sft.model.loading import load_tokenizer

    tokenizer, encoder_decoder = load_tokenizer(asker.model)
    form = asker.config.form
    encoder = ChatEncoder(tokenizer, encoder_decoder=encoder_decoder, as_text=form == "completion")
    return lambda messages: len(encoder.ids([CUED.shaped(messages, form)])[0]), "tokens"


def downstream_result(
    procedures: Mapping[str, crepe.Procedure],
    told: Mapping[str, StateChanges | None],
    settings: Mapping[str, Replies],
    unit: str,
) -> SystemResult:
    """Return macro-F1 of each setting, and how much shorter its prompts are than with all entity states.

    `told` are the states in the prompts of each setting, `unit` is that of the prompt lengths.
    """
    _, whole = settings["all"]
    gold = [
        crepe.label_in(block.events, event, official=True)
        for item in procedures.values()
        for event in item.events
        for block in item.blocks
    ]
    rows, detail = [], {}
    for name, (replies, length) in settings.items():
        said = [reply for key, item in procedures.items() for event in item.events for reply in replies[key, event]]
        parsed = [found and LABELS.index(found[0].lower()) for found in map(_LABEL.search, said)]
        score = macro_f1(gold, [label or 0 for label in parsed]) or 0.0
        states = told[name]
        entities = None if states is None else entity_states.entities_a_step(states)
        saved = 1 - length / whole if whole else 0.0
        detail[name] = {
            "macro_f1": score,
            "unparsed": sum(label is None for label in parsed),
            "entities_a_step": entities,
            f"prompt_{unit}": length,
            "saved": saved,
        }
        shown = "-" if entities is None else f"{entities:.1f}"
        rows.append((name, cell(score), shown, str(length), f"{100 * saved:.1f} %"))
    columns = ("entity states", "macro-F1", "entities a step", f"prompt {unit}", "saved, against all")
    title = f"CREPE, zero-shot ({len(gold)} pairs of event and step)"
    headline = {f"crepe_macro_f1_{name}": found["macro_f1"] for name, found in detail.items()}
    return SystemResult({**headline, "crepe": {"pairs": len(gold), **detail}}, [Table.of(columns, rows, title)])


def crepe_procedures(call: SystemCall) -> dict[str, crepe.Procedure]:
    """Return the procedures of CREPE that are asked about; UserError without CREPE's data file."""
    file = call.options.crepe_file
    if file is None:
        raise UserError(
            f"task={call.options.task}: needs CREPE's data file, and none is named",
            remedy="add --set crepe_file=PATH/data_dev_v2.json, of github.com/zharry29/"
            "causal_reasoning_of_entities_and_events",
        )
    return drawn(call, {item.id: item for item in crepe.read_procedures(file)})


class CrepeDownstream(Task[Any, Any]):
    """CREPE's questions with entity states."""

    def run(self, call: SystemCall, asker: Asker) -> SystemResult:
        """Ask about CREPE's events with no, all and salient entity states; the states are kept for `--bench crepe`."""
        own: OpenPIOptions = call.options
        procedures = crepe_procedures(call)
        (length, unit), how = prompt_length(asker), sampling(call)
        plain = {
            key: Procedure(id=key, goal=item.goal, steps=tuple(block.step for block in item.blocks))
            for key, item in procedures.items()
        }
        every, other = entity_states.ask_entity_states(asker, call.form, plain, with_salience=True, **how)
        kept = entity_states.salient(every, own.salient)
        told: dict[str, StateChanges | None] = {"none": None, "all": every, "salient": kept}
        settings = {name: ask_setting(asker, name, procedures, states, length, **how) for name, states in told.items()}
        files = {
            "entities-all.json": entity_states.crepe_entities_file(every),
            "entities-salient.json": entity_states.crepe_entities_file(kept),
        }
        result = downstream_result(procedures, told, settings, unit)
        return replace(entity_states.with_other_lines(result, other), files=files)
