"""States: an attribute before and after a step, entity and attribute given (paper section 3.2, table 3).

They are scored by exact match and BERTScore. The official gold keeps only the first of the accepted states of each
field; the corrected score takes any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table
from eval.compare.measures.measure import Measure, digest, measure
from eval.score.statistics import bootstrap_average
from eval.systems.asker import Asker
from eval.systems.conversations import ask_by_turns
from eval.systems.json_file import Node
from eval.systems.openpi2.gold import (
    RANKED,
    GoldState,
    Procedure,
    alternatives,
    check_known,
    find_official,
    official_text,
    read_by_step,
    read_official,
    read_procedures,
    states_by_step,
)
from eval.systems.openpi2.metrics import NOT_COMPUTED, Scorer, cell, mean, scored
from eval.systems.openpi2.task import (
    Form,
    OpenPIOptions,
    ScorerOptions,
    Task,
    conversation,
    drawn,
    sampling,
    scorer_of,
)
from eval.systems.openpi2.tracking import cut_answer, states_chat_prompt, states_text_prompt
from eval.systems.system import SystemCall, SystemResult

_STATES_TOKENS = 64
ERROR = "Error"
_BEFORE_AND = " before and "
_LABELLED = re.compile(r"Before: (.*?)\nAfter: (.*)", re.DOTALL)
# By procedure, the gold changes of each step.
GoldStates = Mapping[str, Sequence[Sequence[GoldState]]]


class StatePair(NamedTuple):
    """One item of the states task, as the official files write it."""

    entity: str
    attribute: str
    before: str
    after: str


# By procedure and step, one for each gold change.
Predictions = Mapping[str, Sequence[Sequence[StatePair]]]


def parse_states(reply: str) -> tuple[str, str]:
    """States before and after: of `Before: …` and `After: …` on two lines, or of `… before and … after`.

    A reply of another form gives `Error` for both.
    """
    reply = reply.strip()
    labelled = _LABELLED.search(reply)
    if labelled:
        return labelled[1].strip(), labelled[2].split("\nBefore: ")[0].strip()
    before, found, after = reply.partition(_BEFORE_AND)
    if found:
        return before, after.split(" after")[0]
    return ERROR, ERROR


def read_gold_states(path: Path) -> dict[str, list[list[GoldState]]]:
    """Gold states of `dev-ranked.json`, or of a file in the official format of predictions.

    Raises:
        UserError: the file is missing or damaged.
    """
    root = read_official(path)
    if not all(isinstance(value, list) for value in root.value.values()):
        return {key: states_by_step(procedure) for key, procedure in read_procedures(path).items()}
    return {
        key: [[GoldState(*map(alternatives, _state(item))) for item in step.items()] for step in node.items()]
        for key, node in root.members()
    }


def read_states(path: Path, steps: Mapping[str, int]) -> dict[str, list[list[StatePair]]]:
    """Predicted states by step of each procedure; arguments and errors as of `read_by_step`."""
    return read_by_step(path, steps, lambda node: [_state(item) for item in node.items()])


def _state(node: Node) -> StatePair:
    if len(node.texts()) != len(StatePair._fields):
        raise node.wrong("entity, attribute, before and after")
    return StatePair(*node.texts())


def check_aligned(predictions: Predictions, gold: GoldStates, path: Path) -> None:
    """Refuse predictions that do not have one item for each gold change.

    Raises:
        UserError: the first place where the two differ.
    """
    check_known(predictions, gold, path)
    for key, steps in predictions.items():
        for place, (step, gold_step) in enumerate(zip(steps, gold[key], strict=True)):
            if len(step) != len(gold_step):
                raise UserError(
                    f"{path}, {key}[{place}]: got {len(step)} predictions; expected one for each of the "
                    f"{len(gold_step)} gold changes of step {place + 1}",
                    remedy="the official predictions are for dev-ranked.json, which has 1,324 changes; name that file",
                )


def ask_states(
    asker: Asker, form: Form, procedures: Mapping[str, Procedure], **sampling: Any
) -> dict[str, list[list[StatePair]]]:
    """Predicted states of each gold change, by step of each procedure (the ranked form, with raw mentions)."""
    changes = {key: states_by_step(procedure) for key, procedure in procedures.items()}
    ask = _ask_by_turns if form == "chat" else _ask_in_line
    replies = ask(asker, procedures, changes, max_new_tokens=_STATES_TOKENS, **sampling)
    predictions: dict[str, list[list[StatePair]]] = {}
    for key, steps in changes.items():
        answers = iter(replies[key])
        predictions[key] = [
            [
                StatePair(" | ".join(state.entity), " | ".join(state.attribute), *parse_states(next(answers)))
                for state in states
            ]
            for states in steps
        ]
    return predictions


def _ask_by_turns(
    asker: Asker, procedures: Mapping[str, Procedure], changes: GoldStates, **options: Any
) -> dict[str, list[str]]:
    """Each change by itself, all in one pass."""
    questions = [
        (key, place, number, state)
        for key, steps in changes.items()
        for place, states in enumerate(steps)
        for number, state in enumerate(states)
    ]
    asked = [
        conversation(f"{key}/{place + 1}/{number + 1}", states_chat_prompt, procedures[key], place, state, group=key)
        for key, place, number, state in questions
    ]
    replies: dict[str, list[str]] = {key: [] for key in changes}
    for (key, *_), output in zip(questions, asker.ask("states", asked, **options), strict=True):
        replies[key].append(output)
    return replies


def _ask_in_line(
    asker: Asker, procedures: Mapping[str, Procedure], changes: GoldStates, **options: Any
) -> dict[str, list[str]]:
    """Each change as a line to be continued, after the answers to those before it."""
    return ask_by_turns(
        asker,
        "states-{}",
        {key: sum(map(len, steps)) for key, steps in changes.items()},
        lambda key, replies: conversation(
            f"{key}/{len(replies) + 1}", states_text_prompt, procedures[key], changes[key], replies
        ),
        read=lambda output: cut_answer(output, "text", "states"),
        **options,
    )


def _pairs(predictions: Predictions, gold: GoldStates) -> list[tuple[StatePair, GoldState]]:
    return [
        pair
        for key, steps in predictions.items()
        for step, gold_step in zip(steps, gold[key], strict=True)
        for pair in zip(step, gold_step, strict=True)
    ]


def exact_matches(predictions: Predictions, gold: GoldStates, *, any_alternative: bool) -> list[bool]:
    """Whether both states of each change are exactly a gold one, letter by letter.

    Args:
        any_alternative: take any of the accepted states; officially it is the first.
    """
    kept = None if any_alternative else 1
    return [
        predicted.before in state.before[:kept] and predicted.after in state.after[:kept]
        for predicted, state in _pairs(predictions, gold)
    ]


def states_bertscore(predictions: Predictions, gold: GoldStates, scorer: Scorer) -> float:
    """Mean F1 of all states before and after, each against the first accepted one."""
    pairs = _pairs(predictions, gold)
    candidates = [text for predicted, _ in pairs for text in (predicted.before, predicted.after)]
    references = [text for _, state in pairs for text in (state.before[0], state.after[0])]
    return mean(scorer(candidates, references))


def states_result(gold: GoldStates, predictions: Predictions, scorer: Scorer | None, seed: int = 0) -> SystemResult:
    """Accuracy with its interval, officially and with any accepted state, and BERTScore."""
    official = exact_matches(predictions, gold, any_alternative=False)
    corrected = exact_matches(predictions, gold, any_alternative=True)
    bert = None if scorer is None else states_bertscore(predictions, gold, scorer)
    rows, accuracies = [], {}
    for name, matches in (
        ("first accepted state (official)", official),
        ("any accepted state (corrected)", corrected),
    ):
        found = bootstrap_average([[float(match) for match in matches]], seed=seed) if matches else None
        accuracies[name] = {"accuracy": found.mean, "low": found.low, "high": found.high} if found else None
        rows.append((name, *((cell(found.mean), cell(found.low), cell(found.high)) if found else ("", "", ""))))
    total = sum(len(step) for steps in gold.values() for step in steps)
    title = f"States, exact match with 95 % interval ({scored(len(official), total, 'changes')}); BERTScore "
    title += cell(bert) if bert is not None else f"{NOT_COMPUTED}, set bertscore_model=NAME"
    detail = {
        "procedures": len(predictions),
        "changes": len(official),
        "official": accuracies["first accepted state (official)"],
        "corrected": accuracies["any accepted state (corrected)"],
        "bertscore": bert,
    }
    table = Table.of(("gold", "accuracy", "low", "high"), rows, title)
    headline = {"states_accuracy": mean(official), "states_bertscore": bert, "states": detail}
    return SystemResult(headline, [table], measures=_measures(gold, predictions))


def _measures(gold: GoldStates, predictions: Predictions) -> list[Measure]:
    """Accuracy procedure by procedure."""
    about = digest([[key, gold[key]] for key in sorted(predictions)])
    found = []
    for name, any_alternative in (("states accuracy", False), ("states accuracy, corrected", True)):
        matches = {
            key: exact_matches({key: steps}, gold, any_alternative=any_alternative)
            for key, steps in predictions.items()
        }
        counts = {key: (sum(own), len(own)) for key, own in matches.items()}
        found += measure(name, "share", "procedures", about, counts)
    return found


def _run(call: SystemCall, asker: Asker) -> SystemResult:
    own: OpenPIOptions = call.options
    gold = read_procedures(find_official(call.data, RANKED, needed_by="task=states"))
    scorer = scorer_of(own)
    predictions = ask_states(asker, own.prompt, drawn(call, gold), **sampling(call))
    by_step = {key: states_by_step(procedure) for key, procedure in gold.items()}
    result = states_result(by_step, predictions, scorer, call.seed)
    return replace(result, files={"states.json": official_text(predictions)})


def _score(predictions: Path, gold: Path, options: ScorerOptions) -> SystemResult:
    companion = predictions.with_name(f"{predictions.stem}_gold.json")
    try:
        changes, found = _read_aligned(predictions, gold)
    except UserError:
        if not companion.is_file():
            raise
        changes, found = _read_aligned(predictions, companion)
    else:
        return states_result(changes, found, scorer_of(options))
    result = states_result(changes, found, scorer_of(options))
    warning = (
        f"{predictions} is not about the changes of {gold}: it was scored against {companion}, the gold file beside "
        "it, as officially"
    )
    return replace(result, scores={**result.scores, "gold": str(companion)}, warnings=[warning])


def _read_aligned(predictions: Path, gold: Path) -> tuple[GoldStates, Predictions]:
    changes = read_gold_states(gold)
    found = read_states(predictions, {key: len(steps) for key, steps in changes.items()})
    check_aligned(found, changes, predictions)
    return changes, found


def _template(gold: Path) -> Iterator[dict[str, Any]]:
    """A line for each gold change, and one for each step without."""
    for key, steps in read_gold_states(gold).items():
        for step, changes in enumerate(steps, start=1):
            named = [(" | ".join(change.entity), " | ".join(change.attribute)) for change in changes] or [("", "")]
            for entity, attribute in named:
                about = {"procedure": key, "step": step, "entity": entity, "attribute": attribute}
                yield {**about, "before": "", "after": ""}


TASK = Task(_run, {"states": _score}, {"states": _template})
