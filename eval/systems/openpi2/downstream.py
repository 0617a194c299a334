"""What predicted entity states are good for: CREPE with no, all and salient ones (paper section 4.3.1, table 9).

The model writes complete sentences for each step; the salience of their entities at that step is asked as in section
4.1. What is salient enough is then all that a prompt tells. `crepe_states` asks a model that was trained on OpenPI's
rows instead, in their words, with the steps so far and without examples (section 5.3 of CREPE's paper).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from d2e_sft.data.chat_template import CUED, ChatEncoder, Form, Messages
from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table
from eval.run.task import TaskItem
from eval.systems.asking import Asker, ask_by_turns, conversation
from eval.systems.benchmark import BenchmarkCall, BenchmarkResult
from eval.systems.crepe import gold as crepe
from eval.systems.crepe.gold import LABELS, LESS, MORE, CrepeProcedure, EntityChange
from eval.systems.crepe.scorer import macro_f1
from eval.systems.openpi2.gold import Procedure, Procedures, mean, official_text, sentence
from eval.systems.openpi2.salience import ask_local
from eval.systems.openpi2.states import parse_change, parse_sentences
from eval.systems.openpi2.task import OpenPIOptions, OpenPITask, ask_listing, cell

_NO_CHANGE = "There will be no change."  # as OpenPI's training rows say it
_TRAINED = "openpi2/prompts/trained"
_TOKENS = 16
_TRAINED_TOKENS = 400  # 23,681 changes in 3,216 training steps: seven a step, of about 15 tokens
_LABEL = re.compile(r"(equally|less|more) likely", re.IGNORECASE)


@dataclass(frozen=True)
class StateChange:
    """One predicted change, and how salient its entity is at that step; None where that was not asked."""

    entity: str
    attribute: str
    before: str
    after: str
    salience: int | None = None

    @property
    def text(self) -> str:
        return sentence(self.attribute, self.entity, self.before, self.after)


StateChanges = Mapping[str, Sequence[Sequence[StateChange]]]  # by procedure id: the changes of each step


def ask_entity_states(asker: Asker, form: Form, procedures: Procedures, **sampling: Any) -> tuple[StateChanges, int]:
    """Return predicted changes by step, rated, and the number of lines in the answers that are no such sentence."""
    replies = ask_listing(asker, "complete", form, procedures, name="entity-states", **sampling)
    changes, other_lines = read_changes(replies)
    entities = {key: [list(dict.fromkeys(c.entity for c in step)) for step in steps] for key, steps in changes.items()}
    rated = ask_local(asker, procedures, entities, **sampling)
    return {
        key: [
            [replace(change, salience=ratings[names.index(change.entity)]) for change in step]
            for step, names, ratings in zip(steps, entities[key], rated[key], strict=True)
        ]
        for key, steps in changes.items()
    }, other_lines


def read_changes(replies: Mapping[str, Sequence[str]]) -> tuple[StateChanges, int]:
    """Return the changes in the replies about each step, and the number of lines that are no such sentence."""
    parsed = {
        key: [
            [parse_change(line) for line in parse_sentences(reply) if line not in ("", _NO_CHANGE)] for reply in texts
        ]
        for key, texts in replies.items()
    }
    changes = {
        key: [list(dict.fromkeys(StateChange(*fields) for fields in step if fields is not None)) for step in steps]
        for key, steps in parsed.items()
    }
    return changes, sum(fields is None for steps in parsed.values() for step in steps for fields in step)


def salient(changes: StateChanges, threshold: int) -> StateChanges:
    return {
        key: [[c for c in step if c.salience is not None and c.salience >= threshold] for step in steps]
        for key, steps in changes.items()
    }


def entities_a_step(changes: StateChanges) -> float:
    return mean(len({change.entity for change in step}) for steps in changes.values() for step in steps)


def crepe_entities_file(changes: StateChanges) -> str:
    """Return the changes in CREPE's form (`entities_file=`): what holds after a step, and what no longer does."""

    def converted(step: Sequence[StateChange]) -> list[EntityChange]:
        rows = [
            EntityChange(change.entity, state, LABELS[label])
            for change in step
            for state, label in ((change.after, MORE), (change.before, LESS))
            if label == MORE or state != change.after
        ]
        return list(dict.fromkeys(rows))

    content = {
        key: {str(n): list(map(vars, step)) for n, step in enumerate(map(converted, steps), start=1) if step}
        for key, steps in changes.items()
    }
    return official_text(content, indent=2)


def with_other_lines(result: BenchmarkResult, count: int) -> BenchmarkResult:
    first, *rest = result.tables
    if count:
        note = f"lines of the predicted entity states that are no state change, and are left out: {count}"
        first = replace(first, caption=f"{first.caption}; {note}")
    scores = {**result.scores, "lines_that_are_no_state_change": count}
    return replace(result, scores=scores, tables=[first, *rest])


def prompt_length(asker: Asker) -> tuple[Callable[[Messages], int], str]:
    """Return how to measure prompts, and the unit: tokens, or words if the endpoint's tokens are unknown."""
    if asker.config.engine == "openai":
        return lambda messages: sum(len(message["content"].split()) for message in messages), "words"
    from d2e_sft.model.loading import load_tokenizer

    tokenizer, encoder_decoder = load_tokenizer(asker.model)
    form = asker.config.form
    encoder = ChatEncoder(tokenizer, encoder_decoder=encoder_decoder, as_text=form == "completion")
    return lambda messages: len(encoder.ids([CUED.shaped(messages, form)])[0]), "tokens"


# Replies at each step by (procedure, event), and the length of all prompts together.
Replies = tuple[Mapping[tuple[str, str], Sequence[str]], int]


def ask_setting(
    asker: Asker,
    name: str,
    procedures: Mapping[str, CrepeProcedure],
    states: StateChanges | None,
    length: Callable[[Messages], int],
    **sampling: Any,
) -> Replies:
    """Ask about every event after every step, each with the answers to the steps before."""
    lengths = []

    def next_step(pair: tuple[str, str], replies: Sequence[str]) -> TaskItem:
        key, event = pair
        shown = None if states is None else states[key]
        steps = [block.step for block in procedures[key].blocks[: len(replies) + 1]]
        prompt = {"goal": procedures[key].goal, "event": event, "steps": steps, "replies": replies, "states": shown}
        chat = conversation("openpi2", f"{key}/{event}", "openpi2/prompts/crepe", group=key, **prompt)
        lengths.append(length(chat.messages))
        return chat

    counts = {
        (key, event): len(procedure.blocks) for key, procedure in procedures.items() for event in procedure.events
    }
    pass_name = f"crepe-{name}-step{{}}"
    replies = ask_by_turns(asker, pass_name, counts, next_step, max_new_tokens=_TOKENS, **sampling)
    return replies, sum(lengths)


def downstream_result(
    procedures: Mapping[str, CrepeProcedure],
    states_of: Mapping[str, StateChanges | None],
    settings: Mapping[str, Replies],
    unit: str,
) -> BenchmarkResult:
    """Return macro-F1 of each setting, and how much shorter its prompts are than with all entity states.

    `states_of` are the states in the prompts of each setting, `unit` is that of the prompt lengths.
    """
    _, whole = settings["all"]
    events = [(key, event, procedure.blocks) for key, procedure in procedures.items() for event in procedure.events]
    gold = [crepe.label_of(block.events.get(event), official=True) for _, event, blocks in events for block in blocks]
    rows, detail = [], {}
    for name, (replies, length) in settings.items():
        labels = [_LABEL.search(reply) for key, event, _ in events for reply in replies[key, event]]
        predicted = [LABELS.index(label[0].lower()) if label else 0 for label in labels]
        states = states_of[name]
        score, saved = macro_f1(gold, predicted) or 0.0, 1 - length / whole if whole else 0.0
        entities = None if states is None else entities_a_step(states)
        detail[name] = {
            "macro_f1": score,
            "unparsed": labels.count(None),
            "entities_a_step": entities,
            f"prompt_{unit}": length,
            "saved": saved,
        }
        shown = "-" if entities is None else f"{entities:.1f}"
        rows.append((name, cell(score), shown, str(length), f"{100 * saved:.1f} %"))
    columns = ("entity states", "macro-F1", "entities a step", f"prompt {unit}", "saved, against all")
    title = f"CREPE, zero-shot ({len(gold)} pairs of event and step)"
    headline = {f"crepe_macro_f1_{name}": figures["macro_f1"] for name, figures in detail.items()}
    scores = {**headline, "crepe": {"pairs": len(gold), **detail}}
    return BenchmarkResult(scores, [Table.of(columns, rows, title)])


def crepe_procedures(call: BenchmarkCall) -> dict[str, CrepeProcedure]:
    """Return the procedures of CREPE that are asked about; UserError without CREPE's data file."""
    file = call.options.crepe_file
    if file is None:
        raise UserError(
            f"task={call.options.task}: needs CREPE's data file, and none is named",
            remedy="add --set crepe_file=PATH/data_dev_v2.json, of github.com/zharry29/"
            "causal_reasoning_of_entities_and_events",
        )
    return call.drawn_from({procedure.id: procedure for procedure in crepe.read_procedures(file)})


class CrepeDownstream(OpenPITask[Any, Any]):
    def run(self, call: BenchmarkCall, asker: Asker) -> BenchmarkResult:
        """Ask about CREPE's events with no, all and salient entity states; the states are kept for `--bench crepe`."""
        options: OpenPIOptions = call.options
        procedures = crepe_procedures(call)
        (length, unit), sampling = prompt_length(asker), call.sampling
        plain = {
            key: Procedure(id=key, goal=procedure.goal, steps=tuple(block.step for block in procedure.blocks))
            for key, procedure in procedures.items()
        }
        all_states, other_lines = ask_entity_states(asker, call.form, plain, **sampling)
        kept = salient(all_states, options.salient)
        shown: dict[str, StateChanges | None] = {"none": None, "all": all_states, "salient": kept}
        settings = {
            name: ask_setting(asker, name, procedures, states, length, **sampling) for name, states in shown.items()
        }
        states_files = {"all": all_states, "salient": kept}
        files = {f"entities-{name}.json": crepe_entities_file(states) for name, states in states_files.items()}
        result = downstream_result(procedures, shown, settings, unit)
        return replace(with_other_lines(result, other_lines), files=files)


class CrepeStates(OpenPITask[Any, Any]):
    """What the steps of CREPE's procedures change; kept for `--bench crepe`, nothing is scored."""

    def run(self, call: BenchmarkCall, asker: Asker) -> BenchmarkResult:
        steps = {key: procedure.steps for key, procedure in crepe_procedures(call).items()}
        chats = [
            conversation("openpi2", f"{key}/{count}", _TRAINED, group="crepe-states", steps=texts[:count])
            for key, texts in steps.items()
            for count in range(1, len(texts) + 1)
        ]
        outputs = iter(asker.ask("crepe-states", chats, max_new_tokens=_TRAINED_TOKENS, **call.sampling))
        changes, other_lines = read_changes({key: [next(outputs) for _ in texts] for key, texts in steps.items()})
        counts = {
            "procedures": len(steps),
            "steps": len(chats),
            "changes": sum(len(step) for by_step in changes.values() for step in by_step),
            "entities_a_step": entities_a_step(changes),
        }
        rows = [(name.replace("_", " "), f"{value:,.1f}".removesuffix(".0")) for name, value in counts.items()]
        table = Table.of(("predicted states", ""), rows, "Entity states of CREPE's steps, not scored")
        result = with_other_lines(BenchmarkResult({"crepe_states": counts}, [table]), other_lines)
        return replace(result, files={"entities-all.json": crepe_entities_file(changes)})
