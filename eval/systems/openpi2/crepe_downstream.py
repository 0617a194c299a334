"""CREPE with no, all and salient entity states, zero-shot (paper section 4.3.1, table 9)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from d2e_sft.data.chat_template import ChatEncoder, Messages
from eval.run.engines.conversation_task import Conversation
from eval.systems.asker import Asker
from eval.systems.openpi2.crepe_data import LABELS, CrepeProcedure
from eval.systems.openpi2.entity_states import StateChange, StateChanges, entities_a_step
from eval.systems.openpi2.tables import cell
from eval.systems.openpi2.tracking import DATASET
from eval.systems.openpi2.wording import system, turns, wording
from eval.systems.system import ScoreTable, SystemResult

_TOKENS = 16
_LABEL = re.compile(r"(equally|less|more) likely", re.IGNORECASE)


@dataclass(frozen=True)
class Setting:
    """One row of the table.

    Attributes:
        replies: by (procedure, event) the reply at each step.
        prompt_length: of all prompts together.
    """

    name: str
    states: StateChanges | None
    replies: Mapping[tuple[str, str], Sequence[str]]
    prompt_length: int


def likelihood_prompt(
    procedure: CrepeProcedure,
    event: str,
    replies: Sequence[str],
    states: Sequence[Sequence[StateChange]] | None,
    *,
    hidden: bool = False,
) -> Messages:
    """What the step after those that have been answered does to the event.

    Args:
        replies: to the steps so far.
        states: what each step changes, to be told; None tells nothing.
        hidden: the imagined view.
    """
    told = wording("crepe")
    if hidden:
        start, asked = told["hidden_start"].format(event=event), [f"{told['hidden_step']}\n{told['question']}"]
    else:
        start = told["start"].format(goal=procedure.procedure.goal.lower(), event=event)
        steps = procedure.procedure.steps[: len(replies) + 1]
        asked = [_turn(step, states[place] if states else ()) for place, step in enumerate(steps)]
    said = () if hidden else replies
    texts = [text for pair in zip(asked, said, strict=False) for text in pair]
    return [*system(told["system"]), *turns(start, told["accept"], *texts, asked[-1])]


def _turn(step: str, changes: Sequence[StateChange]) -> str:
    told = wording("crepe")
    listed = told["states"].format(states="; ".join(change.text for change in changes)) if changes else ""
    return "\n".join(filter(None, (told["step"].format(step=step), listed, told["question"])))


def ask_setting(
    asker: Asker,
    name: str,
    procedures: Mapping[str, CrepeProcedure],
    states: StateChanges | None,
    length: Callable[[Messages], int],
    **sampling: Any,
) -> Setting:
    """Ask about every event after every step, each with the answers to the steps before."""
    events = [(key, event) for key, procedure in procedures.items() for event in procedure.events]
    replies: dict[tuple[str, str], list[str]] = {item: [] for item in events}
    total = 0
    for place in range(max((len(item.procedure.steps) for item in procedures.values()), default=0)):
        left = [item for item in events if place < len(procedures[item[0]].procedure.steps)]
        asked = []
        for key, event in left:
            told = None if states is None else states[key]
            prompt = likelihood_prompt(procedures[key], event, replies[key, event], told)
            imagined = likelihood_prompt(procedures[key], event, replies[key, event], told, hidden=True)
            asked.append(Conversation(DATASET, f"{key}/{event}", prompt, imagined, group=key))
            total += length(prompt)
        outputs = asker.ask(f"crepe-{name}-step{place + 1}", asked, max_new_tokens=_TOKENS, **sampling)
        for item, output in zip(left, outputs, strict=True):
            replies[item].append(output.strip())
    return Setting(name, states, replies, total)


def prompt_length(asker: Asker) -> tuple[Callable[[Messages], int], str]:
    """How long a prompt is, and in what: tokens, or words where an endpoint's tokens are not known."""
    if asker.decoding.engine == "openai":
        return lambda messages: sum(len(message["content"].split()) for message in messages), "words"
    from d2e_sft.model.loading import load_tokenizer

    tokenizer, encoder_decoder = load_tokenizer(asker.model)
    encoder = ChatEncoder(tokenizer, encoder_decoder=encoder_decoder)
    return lambda messages: len(encoder.ids([messages])[0]), "tokens"


def parse_label(reply: str) -> int | None:
    """The first label in a reply, as its place in `LABELS`."""
    found = _LABEL.search(reply)
    return None if found is None else LABELS.index(found[0].lower())


def downstream_result(
    procedures: Mapping[str, CrepeProcedure], settings: Sequence[Setting], unit: str
) -> SystemResult:
    """Macro-F1 of each setting, and how much shorter its prompts are than with all entity states.

    Args:
        unit: in which prompts are measured.
    """
    whole = next(setting.prompt_length for setting in settings if setting.name == "all")
    gold = [label for item in procedures.values() for labels in item.events.values() for label in labels]
    rows, detail = [], {}
    for setting in settings:
        parsed = [
            parse_label(reply)
            for key, item in procedures.items()
            for event in item.events
            for reply in setting.replies[key, event]
        ]
        score = _macro_f1(gold, [label or 0 for label in parsed])
        entities = None if setting.states is None else entities_a_step(setting.states)
        saved = 1 - setting.prompt_length / whole if whole else 0.0
        detail[setting.name] = {
            "macro_f1": score,
            "unparsed": sum(label is None for label in parsed),
            "entities_a_step": entities,
            f"prompt_{unit}": setting.prompt_length,
            "saved": saved,
        }
        shown = "-" if entities is None else f"{entities:.1f}"
        rows.append((setting.name, cell(score), shown, str(setting.prompt_length), f"{100 * saved:.1f} %"))
    columns = ("entity states", "macro-F1", "entities a step", f"prompt {unit}", "saved, against all")
    title = f"CREPE, zero-shot ({len(gold)} pairs of event and step)"
    headline = {f"crepe_macro_f1_{name}": found["macro_f1"] for name, found in detail.items()}
    return SystemResult({**headline, "crepe": {"pairs": len(gold), **detail}}, [ScoreTable(title, columns, rows)])


def _macro_f1(gold: Sequence[int], predicted: Sequence[int]) -> float:
    from sklearn.metrics import f1_score

    if not gold:
        return 0.0
    return float(f1_score(gold, predicted, average="macro", zero_division=0))
