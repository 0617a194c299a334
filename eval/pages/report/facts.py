"""What produced each run's scores, side by side: evaluation, training with its curves, versions, data, instructions.

Rows in which runs differ are marked. The instructions are the system messages of each format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from markupsafe import Markup

from d2e_sft.config.d2e import D2ESection
from d2e_sft.config.decoding import describe
from d2e_sft.config.recipe import recipe_of
from d2e_sft.data.data_record import DATA_FILE, DataRecord
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_json_as
from d2e_sft.util.table import NONE, percent
from eval.compare.runs import MeasuredRun, RunResult, ScoredRun
from eval.pages.report.plots import Curve, line_chart
from eval.run.journal import WITH_CONTEXT, PassFiles, read_record
from eval.score.extract import Mode
from eval.score.scores import GroupKey

CURVES = {
    "loss": "Loss",
    "ce": "Cross-entropy (CE)",
    "kl": "KL between original and refined",
    "preference": "Loss of a pair of answers",
    "rewards/margins": "Reward of the gold answer minus that of the rejected one",
    "mean_token_accuracy": "Token accuracy, as decoded",
    "plain_accuracy": "Token accuracy of the original view, without subtraction",
    "bias_share": "Bias share: answer tokens guessed without the context",
}
LOSSES = ("loss", "ce", "kl", "preference")  # their terms depend on the objective


@dataclass(frozen=True)
class Training:
    """The log of a training; `curves` and `held_out` map a key of `CURVES` to (step, finite value).

    Speed is the median of the logged values. Losses are only comparable if `terms`, the objective with its ratios, are
    equal.
    """

    curves: dict[str, list[tuple[int, float]]]
    held_out: dict[str, list[tuple[int, float]]]
    steps: int
    tokens_per_second: float | None
    terms: str = ""


def read_training(run: RunResult) -> Training | None:
    """Read a run's training log, None without one; UserError if it is damaged."""
    entries = [(int(entry["step"]), entry) for entry in run.log if "step" in entry]
    if not entries:
        return None

    def values(name: str) -> list[tuple[int, float]]:
        pairs = [(step, entry.get(name)) for step, entry in entries]
        return sorted((step, float(x)) for step, x in pairs if isinstance(x, int | float) and math.isfinite(x))

    def series(prefix: str) -> dict[str, list[tuple[int, float]]]:
        return {key: points for key in CURVES if (points := values(prefix + key))}

    speeds = [value for _, value in values("tokens_per_second")]
    return Training(
        curves=series(""),
        held_out=series("eval_"),
        steps=max(step for step, _ in entries),
        tokens_per_second=median(speeds) if speeds else None,
        terms=_terms(run.path),
    )


def _equal(one: Sequence[tuple[int, float]] | None, other: Sequence[tuple[int, float]] | None) -> bool:
    if not one or not other or len(one) != len(other):
        return one == other
    return all(a[0] == b[0] and math.isclose(a[1], b[1], rel_tol=1e-4) for a, b in zip(one, other, strict=True))


def _terms(run: Path) -> str:
    try:
        recipe = recipe_of(str(run))
    except UserError:
        return ""
    if recipe is None:
        return ""
    parts = recipe.d2e.of_training()
    name, views = parts.pop("objective"), parts.pop("views", None)
    parts.pop("view_gradients", None)  # affects gradients, not the loss
    if parts.get("kl_direction") == D2ESection.model_fields["kl_direction"].default:
        del parts["kl_direction"]
    ratios = [f"{key} {value}" for key, value in parts.items() if value]
    return ", ".join(["sft" if name == "d2e" and views == ("original",) else name, *ratios])


def curves(labels: Sequence[str], trainings: Sequence[Training | None]) -> list[Markup]:
    """A chart for each logged value; losses with different terms get separate charts."""
    charts = []
    runs = [(index, label, t) for index, (label, t) in enumerate(zip(labels, trainings, strict=True)) if t]
    # A cross-entropy that is the whole loss is drawn once.
    repeats = [all(_equal(logs.get("ce"), logs.get("loss")) for logs in (t.curves, t.held_out)) for _, _, t in runs]
    every_term = list(dict.fromkeys(training.terms for _, _, training in runs))
    for key, title in CURVES.items():
        separate = key in LOSSES and len(every_term) > 1
        for terms in every_term if separate else [None]:
            drawn = [
                Curve(index, label + suffix, points[key], marked=bool(suffix))
                for (index, label, training), is_loss in zip(runs, repeats, strict=True)
                if (terms is None or training.terms == terms) and not (key == "ce" and is_loss)
                for suffix, points in (("", training.curves), (", held out", training.held_out))
                if key in points
            ]
            if drawn:
                charts.append(line_chart(f"{title} ({terms})" if terms else title, drawn))
    return charts


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
    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        return len({value for value in self.values if value != NONE}) > 1

    @property
    def shared(self) -> bool:
        return len(set(self.values)) == 1


def run_facts(runs: Sequence[ScoredRun], trainings: Sequence[Training | None]) -> dict[str, list[Fact]]:
    """Title of a table → its rows, of runs and their training logs; UserError if a run's `data.json` is damaged."""
    tables: dict[str, list[dict[str, Any]]] = {
        "Evaluation": [_evaluation(run) for run in runs],
        "Environment of the evaluation": [dict(run.scores.environment) for run in runs],
        "Training and its environment": [_training(*pair) for pair in zip(runs, trainings, strict=True)],
    }
    by_title = {}
    for title, columns in tables.items():
        names = dict.fromkeys(name for column in columns for name in column)
        rows = [Fact(name, tuple(_written(column.get(name)) for column in columns)) for name in names]
        by_title[title] = [row for row in rows if set(row.values) != {NONE}]
    return {title: rows for title, rows in by_title.items() if rows}


_OF_RESULTS = ("model", "model_name", "decoder", "alpha", "plausibility", "options", "max_samples", "seed", "date")


def measured_facts(runs: Sequence[MeasuredRun]) -> dict[str, list[Fact]]:
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
    by_prompt: dict[tuple[str, str, str], tuple[list[str], list[GroupKey]]] = {}
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
                labels, groups = by_prompt.setdefault(key, ([], []))
                labels += [run.label] * (run.label not in labels)
                groups.append(group.key)
    return [Instruction(*wording, *where) for wording, where in by_prompt.items()]
