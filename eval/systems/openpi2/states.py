"""States before and after a step, entity and attribute given, and complete sentences (section 3.2, tables 3 and 4).

A sentence, "ATTRIBUTE of ENTITY was BEFORE before and AFTER after", is scored against those of each entity that
changes at the step. Officially a prediction is correct if it is part of any gold sentence, as the empty string always
is. The corrected score compares whole sentences, takes any accepted state, and counts a distinct sentence once.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

from d2e_sft.data.chat_template import Continuation
from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table
from eval.run.task import TaskItem
from eval.score.measures import digest, measure
from eval.score.statistics import bootstrap_average
from eval.systems.asking import Asker, ask_by_turns, conversation
from eval.systems.benchmark import BenchmarkCall, BenchmarkResult
from eval.systems.openpi2.gold import (
    RANKED,
    Change,
    GoldState,
    Procedure,
    Procedures,
    alternatives,
    digest_of,
    expansions,
    mean,
    read_by_step,
    read_official,
    read_procedures,
    sentence,
)
from eval.systems.openpi2.task import (
    TRACKING,
    ListingTask,
    OpenPITask,
    PrecisionRecall,
    bertscore_table,
    best_scores,
    cell,
    cut_answer,
    f1_measure,
    scored,
    scorer_of,
)

_STATES_TOKENS = 64
ERROR = "Error"
_LABELLED = re.compile(r"Before: (.*?)\nAfter: (.*)", re.DOTALL)
GoldStates = Mapping[str, Sequence[Sequence[GoldState]]]  # by procedure, the gold changes of each step


class StatePair(NamedTuple):
    entity: str
    attribute: str
    before: str
    after: str


Predictions = Mapping[str, Sequence[Sequence[StatePair]]]  # by procedure and step, one for each gold change


def parse_states(reply: str) -> tuple[str, str]:
    """Return the states of `Before: …` and `After: …` on two lines, or of `… before and … after`; else `Error`s."""
    reply = reply.strip()
    labelled = _LABELLED.search(reply)
    if labelled:
        return labelled[1].strip(), labelled[2].split("\nBefore: ")[0].strip()
    before, joint, after = reply.partition(" before and ")
    return (before, after.split(" after")[0]) if joint else (ERROR, ERROR)


def lines_so_far(changes: Sequence[Sequence[GoldState]], replies: Sequence[str]) -> list[list[str]]:
    """Return by step the gold changes as lines that their replies continue, up to the first one without a reply."""
    answers, lines = iter([*map(" {}".format, replies), ""]), list[list[str]]()
    for states in changes:
        lines.append([])
        for state, reply in zip(states, answers, strict=False):
            lines[-1].append(f"- {state.attribute[0]} of {state.entity[0]} was{reply}")
        if sum(map(len, lines)) > len(replies):
            break
    return lines


class States(OpenPITask[GoldStates, Predictions]):
    kind = "states"
    official = (RANKED,)

    def read_gold(self, path: Path, options: Any) -> GoldStates:
        """Read `dev-ranked.json`, or gold states in the format of predictions; UserError if the file is damaged."""
        if all(isinstance(value, list) for value in read_official(path).values()):
            return {
                key: [[GoldState(*map(alternatives, pair)) for pair in step] for step in steps]
                for key, steps in read_official(path, list[list[StatePair]]).items()
            }
        return {key: procedure.changes_by_step for key, procedure in read_procedures(path).items()}

    def ask(self, gold: GoldStates, call: BenchmarkCall, asker: Asker) -> Predictions:
        """Ask for the states of each gold change (the ranked form, with raw mentions)."""
        scorer_of(call.options)
        procedures = call.drawn_from(read_procedures(self.gold_at(call.data, call.options, "--data")))
        changes = {key: procedure.changes_by_step for key, procedure in procedures.items()}

        def prompt(key: str, number: str, steps: Sequence[str], group: str = "", **values: Any) -> TaskItem:
            fields = {"task": "states", "form": call.form, "goal": procedures[key].goal, "sentence": sentence}
            name = f"{key}/{number}"
            return conversation("openpi2", name, TRACKING, group=group, steps=steps, replies=(), **fields, **values)

        def next_change(key: str, replies: Sequence[str]) -> TaskItem:
            lines = lines_so_far(changes[key], replies)
            return prompt(key, str(len(replies) + 1), procedures[key].steps[: len(lines)], begun=lines)

        if call.form == "chat":  # each change on its own, all in one pass
            chats = [
                prompt(key, f"{place}/{n}", [step], key, state=(state.entity[0], state.attribute[0]))
                for key, steps in changes.items()
                for place, (step, states) in enumerate(zip(procedures[key].steps, steps, strict=True), start=1)
                for n, state in enumerate(states, start=1)
            ]
            replies = iter(asker.ask("states", chats, max_new_tokens=_STATES_TOKENS, **call.sampling))
        else:  # each change as a line to be continued, after the answers to those before it
            replied = ask_by_turns(
                asker,
                "states-{}",
                {key: sum(map(len, steps)) for key, steps in changes.items()},
                next_change,
                read=lambda output: cut_answer(output, call.form, "states"),
                max_new_tokens=_STATES_TOKENS,
                style=Continuation(cue=None, stops=("\n",)),
                **call.sampling,
            )
            replies = chain.from_iterable(replied[key] for key in changes)
        return {
            key: [[StatePair(*state.names, *parse_states(next(replies))) for state in states] for states in steps]
            for key, steps in changes.items()
        }

    def read_predictions(self, path: Path, gold: GoldStates, options: Any) -> Predictions:
        predictions: dict[str, list[list[StatePair]]] = read_by_step(path, gold, list[StatePair])
        for key, steps in predictions.items():
            for place, (step, changes) in enumerate(zip(steps, gold[key], strict=True), start=1):
                if len(step) != len(changes):
                    raise UserError(
                        f"{path}: {key}: got {len(step)} predictions; expected one for each of the {len(changes)} "
                        f"gold changes of step {place}",
                        remedy="name dev-ranked.json, for whose 1,324 changes the official predictions are",
                    )
        return predictions

    def evaluate(self, gold: GoldStates, answers: Predictions, options: Any, seed: int) -> BenchmarkResult:
        """Return accuracy with its interval, officially and with any accepted state, and BERTScore."""
        scorer, sha = scorer_of(options), digest([[key, gold[key]] for key in sorted(answers)])
        pairs = {
            key: [pair for step in zip(steps, gold[key], strict=True) for pair in zip(*step, strict=True)]
            for key, steps in answers.items()
        }
        flat = list(chain.from_iterable(pairs.values()))
        bert = None
        if scorer is not None:  # of all states, each against the first accepted one
            candidates = [text for predicted, _ in flat for text in (predicted.before, predicted.after)]
            bert = mean(scorer(candidates, [text for _, state in flat for text in (state.before[0], state.after[0])]))
        detail: dict[str, Any] = {"procedures": len(answers), "changes": len(flat)}
        rows, measures = [], []
        # Both states of a change equal a gold one: officially the first accepted ones, corrected any.
        for rule, state, most in (("official", "first", 1), ("corrected", "any", None)):
            right = {
                key: [p.before in gold.before[:most] and p.after in gold.after[:most] for p, gold in changes]
                for key, changes in pairs.items()
            }
            matches = [float(match) for changes in right.values() for match in changes]
            interval = bootstrap_average([matches], seed=seed) if matches else None
            detail[rule] = interval and {"accuracy": interval.mean, "low": interval.low, "high": interval.high}
            cells = map(cell, detail[rule].values()) if interval else ("", "", "")
            rows.append((f"{state} accepted state ({rule})", *cells))
            counts = {key: (sum(changes), len(changes)) for key, changes in right.items()}
            name = "states accuracy" + ", corrected" * (rule == "corrected")
            measures += measure(name, "share", "procedures", sha, counts)
        detail["bertscore"] = bert
        total = sum(len(step) for steps in gold.values() for step in steps)
        title = f"States, exact match with 95 % interval ({scored(len(flat), total, 'changes')}); BERTScore "
        title += cell(bert) if bert is not None else "not computed, set bertscore_model=NAME"
        accuracy = detail["official"]["accuracy"] if flat else 0.0
        scores = {"states_accuracy": accuracy, "states_bertscore": bert, "states": detail}
        table = Table.of(("gold", "accuracy", "low", "high"), rows, title)
        return BenchmarkResult(scores, [table], measures=measures)

    def score(self, predictions: Path, gold: Path, options: Any) -> BenchmarkResult:
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
                for entity, attribute in [change.names for change in changes] or [("", "")]:
                    row = {"procedure": key, "step": step, "entity": entity, "attribute": attribute}
                    yield {**row, "before": "", "after": ""}


def parse_sentences(reply: str) -> list[str]:
    """Return one sentence per line, without the dash before it."""
    return [line.strip(" -") for line in reply.strip().split("\n")]


def parse_change(text: str) -> tuple[str, str, str, str] | None:
    """Return entity, attribute, before and after of "ATTRIBUTE of ENTITY was BEFORE before and AFTER after"."""
    match = re.fullmatch(r"(.+?) of (.+?) (?:was|were) (.+?) before and (.+?) after(?:wards)?\.?", text.strip())
    return None if match is None else (match[2], match[1], match[3], match[4])


def gold_sentences(procedure: Procedure, *, expanded: bool, any_state: bool = False) -> list[list[list[str]]]:
    """Return by step, for each entity that changes, every sentence that its clusters' names make.

    With `expanded` paraphrases are names too; `any_state` takes any accepted state, officially it is the first.
    """
    kept = None if any_state else 1

    def texts(entities: Sequence[str], attributes: Sequence[str], change: Change) -> list[str]:
        fields = product(entities, attributes, change.before[:kept], change.after[:kept])
        return [sentence(attribute, entity, before, after) for entity, attribute, before, after in fields]

    return procedure.texts_by_step(texts, expanded=expanded)


def score_sentences(
    procedure: Procedure, steps: Sequence[Sequence[str]], *, expanded: bool, official: bool
) -> PrecisionRecall:
    """Return precision over predictions, recall over (entity, step) pairs.

    Officially a prediction finds the first entity that it fits. Corrected, whole sentences are compared, in lower case
    and without a full stop, and each distinct one finds every entity that has it.
    """
    figures = PrecisionRecall()
    expected = gold_sentences(procedure, expanded=expanded, any_state=not official)
    for entities, step in zip(expected, steps, strict=True):
        if official:
            fits = [
                next((i for i, sentences in enumerate(entities) if any(text in gold for gold in sentences)), None)
                for text in step
            ]
            right, entities_found, predicted = len(fits) - fits.count(None), len({*fits} - {None}), len(step)
        else:
            texts = set(filter(None, map(_plain, step)))
            shared = [texts.intersection(map(_plain, sentences)) for sentences in entities]
            right, entities_found, predicted = len(set().union(*shared)), sum(map(bool, shared)), len(texts)
        figures.predicted += predicted
        figures.predicted_right += right
        figures.gold += len(entities)
        figures.gold_found += entities_found
    return figures


def _plain(text: str) -> str:
    return text.strip().rstrip(".").lower()


class Complete(ListingTask):
    kind = "complete"
    schema = list[str]

    def parse(self, reply: str) -> list[str]:
        return parse_sentences(reply)

    def evaluate(
        self, gold: Procedures, answers: Mapping[str, Sequence[Sequence[str]]], options: Any, seed: int
    ) -> BenchmarkResult:
        """Return F1 and BERTScore; the official exact match always uses the clusters without paraphrases."""
        scorer, kinds, sha = scorer_of(options), expansions(gold), digest_of(gold, answers)
        forms = {"official": (False, True), **{f"corrected, {kind}": (flag, False) for kind, flag in kinds.items()}}
        detail: dict[str, Any] = {"procedures": len(answers)}
        rows, measures = [], []
        for name, (expanded, official) in forms.items():
            figures = {
                key: score_sentences(gold[key], steps, expanded=expanded, official=official)
                for key, steps in answers.items()
            }
            total = PrecisionRecall.total(figures.values())
            detail[name] = total.as_json()
            rows.append((name, *map(cell, (total.precision, total.recall, total.f1))))
            title = "complete F1" + " + expansion" * expanded + ", corrected" * (not official)
            measures += f1_measure(title, sha, figures)
        detail["bertscore"] = bert = {}
        for kind, expanded in kinds.items():
            candidates = [
                (text, [*chain.from_iterable(entities)])
                for key, steps in answers.items()
                for entities, step in zip(gold_sentences(gold[key], expanded=expanded), steps, strict=True)
                for text in step
            ]
            bert[kind] = mean(best_scores(scorer, candidates)) if scorer else None
        tables = [
            Table.of(
                ("scorer", "precision", "recall", "F1"),
                rows,
                f"Complete sentences, exact match ({scored(len(answers), len(gold))})",
            ),
            bertscore_table("Complete sentences, BERTScore", [("sentences", bert["plain"], bert.get("expanded"))]),
        ]
        scores = {"complete_f1": detail["official"]["f1"], "complete": detail}
        return BenchmarkResult(scores, tables, measures=measures)
