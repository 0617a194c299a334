"""The facts that produced each run's scores, side by side: evaluation, training, versions, data.

Rows in which runs differ are marked. The instructions are the system messages of each format.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from d2e_sft.config.decoding import describe
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.train.data_record import DATA_FILE, DataRecord
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_json_as
from d2e_sft.util.table import NONE, percent
from eval.compare.runs import MeasuredRun, ScoredRun
from eval.pages.report.training import Training
from eval.run.journal import WITH_CONTEXT, PassFiles, read_record
from eval.score.extract import Mode
from eval.score.scores import GroupKey

_EXTRACTION: dict[Mode, str] = {"strict": "in the response form", "lenient": "read leniently", "none": "not parsed"}
_COUNTS = {  # fields of scores.json
    "without_options": "rows without options left out",
    "bad_rows": "bad rows left out",
    "empty_contexts": "samples without a context",
    "truncated": "contexts cut to fit",
    "resumed": "answers of earlier sessions",
}


@dataclass(frozen=True)
class Fact:
    """A row with one value for each run."""

    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether two runs have different values."""
        return len({value for value in self.values if value != NONE}) > 1

    @property
    def shared(self) -> bool:
        """Whether all runs have the same value."""
        return len(set(self.values)) == 1


def run_facts(runs: Sequence[ScoredRun], trainings: Sequence[Training | None]) -> dict[str, list[Fact]]:
    """Title of a table → its rows, of runs and their training logs; UserError if a run's `data.json` is damaged."""
    tables: dict[str, list[dict[str, Any]]] = {
        "Evaluation": [_evaluation(run) for run in runs],
        "Environment of the evaluation": [dict(run.scores.environment) for run in runs],
        "Training and its environment": [_training(*pair) for pair in zip(runs, trainings, strict=True)],
    }
    found = {}
    for title, columns in tables.items():
        names = dict.fromkeys(name for column in columns for name in column)
        rows = [Fact(name, tuple(_written(column.get(name)) for column in columns)) for name in names]
        found[title] = [row for row in rows if set(row.values) != {NONE}]
    return {title: rows for title, rows in found.items() if rows}


_OF_RESULTS = ("model", "model_name", "decoder", "alpha", "plausibility", "options", "max_samples", "seed", "date")


def measured_facts(runs: Sequence[MeasuredRun]) -> dict[str, list[Fact]]:
    """The same of results with measures: what their scores record, and their folders."""
    columns = [{**{name: run.scores.get(name) for name in _OF_RESULTS}, "folder": str(run.folder)} for run in runs]
    rows = [Fact(name, tuple(_written(column[name]) for column in columns)) for name in columns[0]]
    return {"Results": [row for row in rows if set(row.values) != {NONE}]}


def _written(value: Any) -> str:
    if value is None or value in ("", [], {}):
        return NONE
    if isinstance(value, str):
        return value
    if isinstance(value, bool | dict | list):
        return json.dumps(value, ensure_ascii=False)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _evaluation(run: ScoredRun) -> dict[str, Any]:
    scores = run.scores
    extraction = scores.overall.extraction
    shares = ", ".join(f"{percent(extraction.get(mode, 0.0))} % {name}" for mode, name in _EXTRACTION.items())
    by_length = "" if scores.normalise == "none" else f" (log-probability by {scores.normalise})"
    return {
        "model": scores.model,
        "decoded": describe(scores.decoding),
        "engine": scores.engine,
        "setting": scores.setting,
        "form": scores.form,
        "prompt set": scores.prompt_set,
        "longest answer, tokens": scores.max_new_tokens,
        "benchmark": f"{scores.bench.name}, {scores.bench.file}",
        "benchmark sha256": scores.bench.sha256,
        "datasets lacking": ", ".join(scores.lacking),
        **{f"subset: {name}": value for name, value in (scores.subset or {}).items()},
        "answers": shares if scores.answer == "generate" else f"the likeliest option{by_length}",
        **{name: getattr(scores, key) or None for key, name in _COUNTS.items()},
        "evaluation time": None if scores.seconds is None else f"{scores.seconds:,.0f} s",
    }


def _training(run: ScoredRun, training: Training | None) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if training is not None:
        speed = training.tokens_per_second
        facts = {
            "training steps": training.steps,
            "training tokens/s": None if speed is None else f"{speed:,.0f} (median)",
        }
    if (path := run.home / DATA_FILE).is_file():  # a base model has none
        remedy = "copy it again from where the run was trained, or remove it"
        record = read_json_as(DataRecord, path, "the record of a training", remedy)
        source = record.source
        facts |= {
            "training file": source.train,
            "training file sha256": source.train_sha256,
            "rows in it": source.rows,
            "samples trained on": record.samples,
            "prompt set": record.wording or source.prompt_set,
            "processes": record.processes,
            **record.versions,
        }
    return facts


class Instruction(NamedTuple):
    """One wording of a format's instruction, its prompt set, the runs that used it, and the groups that it words."""

    format: str
    text: str
    prompt_set: str
    labels: list[str]
    groups: list[GroupKey]


def instructions(runs: Sequence[ScoredRun]) -> list[Instruction]:
    """The instructions of each format, of runs whose prompt set is unchanged; UserError if a record is damaged."""
    given: dict[tuple[str, str, str], tuple[list[str], list[GroupKey]]] = {}
    for run in runs:
        record = read_record(PassFiles(run.folder, WITH_CONTEXT)) or {"fingerprint": {}}
        try:
            wording = load_prompt_set(run.scores.prompt_set_given or run.scores.prompt_set)
            wording = wording.in_setting(run.scores.setting)
            digest = wording.digest()
        except UserError:
            continue  # a custom set that has disappeared
        if not str(record["fingerprint"].get("prompt_set") or digest).endswith(digest):
            continue
        for group in run.scores.groups:
            used = wording.set_for(group)
            prompts: Any = getattr(used, run.scores.setting) or used.zero_shot
            if group.format in prompts:
                key = group.format, prompts[group.format].system, used.name
                labels, groups = given.setdefault(key, ([], []))
                labels += [run.label] * (run.label not in labels)
                groups.append(group.key)
    return [Instruction(*wording, *where) for wording, where in given.items()]
