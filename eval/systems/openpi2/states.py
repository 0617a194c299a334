"""States: an attribute before and after a step, entity and attribute given (paper section 3.2, table 3)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from d2e_sft.data.chat_template import Continuation
from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table
from eval.compare.measures.measure import Measure, digest, measure
from eval.score.statistics import bootstrap_average
from eval.systems.asker import Asker
from eval.systems.conversations import ask_by_turns
from eval.systems.openpi2 import gold as official_files
from eval.systems.openpi2.gold import GoldState, read_official, read_procedures, states_by_step
from eval.systems.openpi2.metrics import NOT_COMPUTED, Scorer, cell, mean, scored
from eval.systems.openpi2.task import Task, conversation, drawn, sampling, scorer_of
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
    """Return the states of `Before: …` and `After: …` on two lines, or of `… before and … after`; else `Error`s."""
    reply = reply.strip()
    labelled = _LABELLED.search(reply)
    if labelled:
        return labelled[1].strip(), labelled[2].split("\nBefore: ")[0].strip()
    before, found, after = reply.partition(_BEFORE_AND)
    if found:
        return before, after.split(" after")[0]
    return ERROR, ERROR


def exact_matches(predictions: Predictions, gold: GoldStates, *, any_alternative: bool) -> list[bool]:
    """Return whether both states of each change equal a gold one: officially the first accepted ones, or any."""
    kept = None if any_alternative else 1
    return [
        predicted.before in state.before[:kept] and predicted.after in state.after[:kept]
        for predicted, state in _pairs(predictions, gold)
    ]


def states_bertscore(predictions: Predictions, gold: GoldStates, scorer: Scorer) -> float:
    """Return mean F1 of all states before and after, each against the first accepted one."""
    pairs = _pairs(predictions, gold)
    candidates = [text for predicted, _ in pairs for text in (predicted.before, predicted.after)]
    references = [text for _, state in pairs for text in (state.before[0], state.after[0])]
    return mean(scorer(candidates, references))


def _pairs(predictions: Predictions, gold: GoldStates) -> list[tuple[StatePair, GoldState]]:
    steps = [pair for key, own in predictions.items() for pair in zip(own, gold[key], strict=True)]
    return [pair for step in steps for pair in zip(*step, strict=True)]


class States(Task[GoldStates, Predictions]):
    """States before and after each gold change."""

    kind = "states"
    official = (official_files.RANKED,)

    def read_gold(self, path: Path, options: Any) -> GoldStates:
        """Read `dev-ranked.json`, or gold states in the format of predictions; UserError if the file is damaged."""
        if all(isinstance(value, list) for value in read_official(path).values()):
            found = read_official(path, list[list[StatePair]])
            return {
                key: [[GoldState(*map(official_files.alternatives, pair)) for pair in step] for step in steps]
                for key, steps in found.items()
            }
        return {key: states_by_step(procedure) for key, procedure in read_procedures(path).items()}

    def ask(self, gold: GoldStates, call: SystemCall, asker: Asker) -> Predictions:
        """Ask for the states of each gold change (the ranked form, with raw mentions)."""
        scorer_of(call.options)
        procedures = drawn(call, read_procedures(self.gold_at(call.data, call.options, "--data")))
        changes = {key: states_by_step(procedure) for key, procedure in procedures.items()}
        if call.form == "chat":  # each change on its own, all in one pass
            asked = [
                conversation(f"{key}/{place}/{n}", states_chat_prompt, procedures[key], place - 1, state, group=key)
                for key, steps in changes.items()
                for place, states in enumerate(steps, start=1)
                for n, state in enumerate(states, start=1)
            ]
            replies = iter(asker.ask("states", asked, max_new_tokens=_STATES_TOKENS, **sampling(call)))
        else:  # each change as a line to be continued, after the answers to those before it
            said = ask_by_turns(
                asker,
                "states-{}",
                {key: sum(map(len, steps)) for key, steps in changes.items()},
                lambda key, replies: conversation(
                    f"{key}/{len(replies) + 1}", states_text_prompt, procedures[key], changes[key], replies
                ),
                read=lambda output: cut_answer(output, call.form, "states"),
                max_new_tokens=_STATES_TOKENS,
                style=Continuation(cue=None, stops=("\n",)),
                **sampling(call),
            )
            replies = chain.from_iterable(said[key] for key in changes)
        return {
            key: [[StatePair(*state.names, *parse_states(next(replies))) for state in states] for states in steps]
            for key, steps in changes.items()
        }

    def read_predictions(self, path: Path, gold: GoldStates, options: Any) -> Predictions:
        """Read predicted states, one for each gold change; UserError if the file is damaged or does not fit these."""
        found: dict[str, list[list[StatePair]]] = official_files.read_by_step(path, gold, list[StatePair])
        for key, steps in found.items():
            for place, (step, changes) in enumerate(zip(steps, gold[key], strict=True), start=1):
                if len(step) != len(changes):
                    raise UserError(
                        f"{path}: {key}: got {len(step)} predictions; expected one for each of the {len(changes)} "
                        f"gold changes of step {place}",
                        remedy="name dev-ranked.json, for whose 1,324 changes the official predictions are",
                    )
        return found

    def evaluate(self, gold: GoldStates, answers: Predictions, options: Any, seed: int) -> SystemResult:
        """Return accuracy with its interval, officially and with any accepted state, and BERTScore."""
        scorer = scorer_of(options)
        official = exact_matches(answers, gold, any_alternative=False)
        corrected = exact_matches(answers, gold, any_alternative=True)
        bert = None if scorer is None else states_bertscore(answers, gold, scorer)
        rows: list[tuple[str, ...]] = []
        accuracies: dict[str, dict[str, float] | None] = {}
        for kind, state, matches in (("official", "first", official), ("corrected", "any", corrected)):
            found = bootstrap_average([[float(match) for match in matches]], seed=seed) if matches else None
            accuracies[kind] = own = {"accuracy": found.mean, "low": found.low, "high": found.high} if found else None
            rows.append((f"{state} accepted state ({kind})", *(map(cell, own.values()) if own else [""] * 3)))
        total = sum(len(step) for steps in gold.values() for step in steps)
        title = f"States, exact match with 95 % interval ({scored(len(official), total, 'changes')}); BERTScore "
        title += cell(bert) if bert is not None else f"{NOT_COMPUTED}, set bertscore_model=NAME"
        detail = {"procedures": len(answers), "changes": len(official), **accuracies, "bertscore": bert}
        table = Table.of(("gold", "accuracy", "low", "high"), rows, title)
        headline = {"states_accuracy": mean(official), "states_bertscore": bert, "states": detail}
        about = digest([[key, gold[key]] for key in sorted(answers)])
        measures: list[Measure] = []
        for name, any_alternative in (("states accuracy", False), ("states accuracy, corrected", True)):
            counts = {}
            for key, steps in answers.items():
                right = exact_matches({key: steps}, gold, any_alternative=any_alternative)
                counts[key] = sum(right), len(right)
            measures += measure(name, "share", "procedures", about, counts)
        return SystemResult(headline, [table], measures=measures)

    def score(self, predictions: Path, gold: Path, options: Any) -> SystemResult:
        """Score predictions; those of other changes against the gold file next to them, as officially."""
        companion = predictions.with_name(f"{predictions.stem}_gold.json")
        try:
            return super().score(predictions, gold, options)
        except UserError:
            if not companion.is_file():
                raise
        result = super().score(predictions, companion, options)
        warning = (
            f"{predictions} is not about the changes of {gold}: it was scored against {companion}, the gold file "
            "next to it, as officially"
        )
        return replace(result, scores={**result.scores, "gold": str(companion)}, warnings=[warning])

    def template(self, gold: GoldStates, options: Any) -> Iterator[dict[str, Any]]:
        """Return one line per gold change, and one for each step without."""
        for key, steps in gold.items():
            for step, changes in enumerate(steps, start=1):
                for entity, attribute in [one.names for one in changes] or [("", "")]:
                    about = {"procedure": key, "step": step, "entity": entity, "attribute": attribute}
                    yield {**about, "before": "", "after": ""}
