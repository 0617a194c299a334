"""CREPE as a benchmark: ask a model about each event after each step, and score what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from eval.systems.asker import Asker
from eval.systems.crepe.baselines import baselines
from eval.systems.crepe.demonstrations import load_demonstrations
from eval.systems.crepe.entities import States, fitting_states, gold_states, read_states
from eval.systems.crepe.gold import Procedure, read_procedures
from eval.systems.crepe.labels import EQUALLY
from eval.systems.crepe.options import CrepeOptions, CrepeScoreOptions
from eval.systems.crepe.predictions import Predicted, read_predictions, write_predictions
from eval.systems.crepe.prompts.chat import ask_chat
from eval.systems.crepe.prompts.code import ask_code
from eval.systems.crepe.prompts.code_given import ask_code_given
from eval.systems.crepe.prompts.family import Answer, Family, Request
from eval.systems.crepe.prompts.flat import ask_flat
from eval.systems.crepe.prompts.texts import ask_texts
from eval.systems.crepe.report import tables
from eval.systems.crepe.scorer import flatten, score_pairs
from eval.systems.system import SystemCall, SystemOptions, SystemResult

PREDICTIONS_FILE = "crepe_predictions.json"
_FILES = {"dev": "data_dev_v2.json", "test": "data_test_v2.json"}
_FAMILIES: dict[str, Family] = {
    "text": ask_texts,
    "cot": ask_texts,
    "self_ask": ask_texts,
    "chat": ask_chat,
    "code_flat": ask_flat,
}


@dataclass(frozen=True)
class Crepe:
    """See `eval.systems.system.System`; `--max-samples` counts procedures."""

    name: str = "crepe"
    title: str = "CREPE (Zhang et al., Findings of EACL 2023)"
    files: str = f"{' and '.join(_FILES.values())} of github.com/zharry29/causal_reasoning_of_entities_and_events"
    obtain: str = "d2e data download crepe"
    options: type[SystemOptions] = CrepeOptions
    score_options: type[SystemOptions] = CrepeScoreOptions

    def run(self, call: SystemCall, asker: Asker) -> SystemResult:
        """Ask about all (event, step) pairs of a split and score the answers."""
        options: CrepeOptions = call.options
        everything = read_procedures(_gold_file(call.data, options.split))
        procedures = call.drawn(everything)
        request = Request(
            dataset=f"crepe-{options.split}",
            procedures=procedures,
            prompt=options.prompt,
            entities=options.entities,
            demonstrations=load_demonstrations()[: options.shown],
            states=_states(options, everything, procedures, call.seed),
            parse=options.parse,
        )
        answers = _family(options)(request, asker)
        labels = {name: _settled(answer) for name, answer in answers.items()}
        predicted = {name: Predicted(rows, rows) for name, rows in labels.items()}
        scores = _scores(procedures, predicted, draws=options.chance_draws, seed=call.seed)
        scores["unparsed"] = _unparsed(answers)
        title = f"CREPE {options.split}, prompt={options.prompt}, entities={options.entities}"
        written = write_predictions(procedures, labels, {name: answer.entities for name, answer in answers.items()})
        return SystemResult(scores, tables(scores, title, []), {PREDICTIONS_FILE: written})

    def score(self, predictions: Path, gold: Path, options: Any) -> SystemResult:
        """Score an official output file, or one in the gold file's shape."""
        procedures = read_procedures(gold)
        found = read_predictions(predictions, procedures, options.read, options.missing)
        scores = _scores(procedures, found.procedures, draws=options.chance_draws, seed=options.seed)
        scores |= {
            "read": found.read,
            "strangers": found.strangers,
            "missing": len(procedures) - len(found.procedures),
        }
        notes = []
        if options.read == "auto" and found.same_events:
            notes.append(
                "nothing is marked as predicted, and the events are the gold ones, so they score as perfect "
                "predictions; of an official output without a predicted change say so: --set read=predicted"
            )
        elif options.read == "auto" and found.read == "event":
            notes.append("nothing is marked as predicted: the event dictionaries were read as the predictions")
        if found.strangers:
            notes.append(f"{found.strangers} predicted changes are of events that the gold file has not")
        if scores["missing"]:
            notes.append(f"{scores['missing']} of {len(procedures)} procedures have no predictions and are left out")
        return SystemResult(scores, tables(scores, f"CREPE, {predictions.name}", notes))


def _gold_file(data: Path, split: str) -> Path:
    path = data / _FILES[split] if data.is_dir() else data
    if not path.is_file():
        raise UserError(
            f"{path}: no such file; expected CREPE's {split} split", remedy=f"give --data DIR with {_FILES[split]}"
        )
    return path


def _states(
    options: CrepeOptions, everything: Sequence[Procedure], procedures: Sequence[Procedure], seed: int
) -> States:
    if options.entities == "gold":
        return gold_states(procedures)
    if options.entities_file is None:
        return {}
    states = read_states(options.entities_file, everything)
    return {procedure.id: fitting_states(procedure, states[procedure.id], seed) for procedure in procedures}


def _family(options: CrepeOptions) -> Family:
    if options.prompt == "code" and options.entities in ("gold", "predicted"):
        return ask_code_given
    return _FAMILIES.get(options.prompt, ask_code)


def _settled(answer: Answer) -> list[list[int]]:
    """What could not be read counts as equally likely, as in the official code."""
    return [[EQUALLY if label is None else label for label in row] for row in answer.labels]


def _unparsed(answers: Mapping[str, Answer]) -> dict[str, Any]:
    labels = [label for answer in answers.values() for row in answer.labels for label in row]
    missing = sum(label is None for label in labels)
    return {"share": missing / len(labels) if labels else 0.0, "pairs": missing}


def _scores(
    procedures: Sequence[Procedure], predicted: Mapping[str, Predicted], *, draws: int, seed: int
) -> dict[str, Any]:
    pairs = flatten(procedures, predicted)
    if not len(pairs.gold):
        raise UserError("CREPE: there is no (event, step) pair to score; expected procedures whose events change")
    return {**score_pairs(pairs, seed), "baselines": baselines(pairs.gold, seeds=draws, seed=seed)}


CREPE = Crepe()
