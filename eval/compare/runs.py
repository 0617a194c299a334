"""Find and read results as evaluation writes them: RUN/eval/BENCH/{predictions.jsonl, scores.json}.

Runs are read together to check that they fit: one benchmark and the same samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel

from d2e_sft.config.recipe import RECIPE_FILE, Recipe
from d2e_sft.data.built import MANIFEST
from d2e_sft.data.chat_template import FORMS
from d2e_sft.data.prompts import SETTINGS
from d2e_sft.train.run_folder import TRAINER_STATE
from d2e_sft.train.samples import DEBIASED, IMAGINED, PLAIN, PREFIX, PROBED
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import load_yaml, read_json_as, read_results
from eval.compare.lm_eval import holds_samples, read_samples_folder
from eval.run.benchmark import DATA_ROOT, SUITES, rows_file
from eval.run.journal import WITHOUT_CONTEXT
from eval.score.measures import Measure, read_measures
from eval.score.predictions import Prediction, SampleKey, read_predictions
from eval.score.scores import SCORE_AGAIN, SCORES_FILE, RunScores, read_scores

Row = dict[str, Any]  # of a probe: an evaluation of a training, answered in one way
SEED = "seed"
TRAINING = "training"  # in a row of a sweep: the digest of the training
# Keys of a row that are no axis; others begin with a subset.
_MEASURED = {"decoder", "samples", "step", "n", "seconds", "cpu_seconds", "tokens", "overrides", TRAINING}
_OF_TRAINING = (RECIPE_FILE, TRAINER_STATE, "training_args.bin")


@dataclass(frozen=True)
class RunResult:
    """One run's result on one benchmark, in `folder`.

    `label` is distinct among the runs that are read together, but runs compared over seeds share that of their group.
    """

    path: Path
    label: str
    folder: Path
    seed: int | None = field(default=None, kw_only=True)

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """The log of the run's training, as of `training_log`."""
        return training_log(self.path)

    @property
    def home(self) -> Path:
        """The run's folder, which for a checkpoint is the one above it."""
        return self.path.parent if _is_checkpoint(self.path.name) else self.path

    @property
    def is_trained(self) -> bool:
        """Whether a training left its traces in the run's folder; a base model's has only results."""
        return any((folder / name).exists() for folder in (self.path, self.home) for name in _OF_TRAINING)


Run = TypeVar("Run", bound=RunResult)


@dataclass(frozen=True)
class ScoredRun(RunResult):
    """A result with predictions by (dataset, id), in the order of the first run's file."""

    scores: RunScores
    predictions: dict[SampleKey, Prediction]

    @property
    def model(self) -> str:
        return self.scores.model


@dataclass(frozen=True)
class MeasuredRun(RunResult):
    """A result with measures, and the content of `scores.json` or, for lm-eval, what its results file says."""

    bench: str
    measures: Sequence[Measure]
    scores: dict[str, Any]

    @property
    def model(self) -> str:
        return str(self.scores.get("model", ""))


def load_results(paths: Sequence[Path], bench: str | None = None) -> Sequence[ScoredRun | MeasuredRun]:
    """Read the runs' results on one benchmark, of rows or with a scorer of its own."""
    return load_measured(paths, bench) or load_runs(paths, bench)


def load_measured(paths: Sequence[Path], bench: str | None = None) -> list[MeasuredRun] | None:
    """Read the runs' results on a benchmark with its own scorer; None if they share one of rows.

    Args:
        paths: run folders, folders of results themselves, or folders that `lm-eval --log_samples` wrote.
        bench: the folder's name under RUN/eval; None means the only one that all runs share.

    UserError if the runs share several benchmarks and none is chosen, or a result is damaged.
    """
    benches = [_measured_benches(path) for path in paths]
    shared, rows = _shared(benches, bench), _shared([row_benches(path) for path in paths], bench)
    if not shared:
        return None
    if len(shared) + len(rows) > 1:
        raise UserError(
            f"the runs share {len(shared) + len(rows)} benchmarks: {', '.join([*rows, *shared])}",
            remedy="choose one: --bench NAME",
        )
    runs = []
    for path, label, folders in zip(paths, distinct_labels(paths), benches, strict=True):
        folder = folders[shared[0]]
        if shared == ["lm-eval"] and holds_samples(folder):
            measures, scores = read_samples_folder(folder)
        else:
            scores = read_results(dict[str, Any], folder / SCORES_FILE, "scores", SCORE_AGAIN)
            measures = read_measures(folder)
        runs.append(MeasuredRun(path, label, folder, shared[0], measures, scores))
    return runs


def _measured_benches(path: Path) -> dict[str, Path]:
    """Benchmark → folder of its result; a folder of a result stands for any variant of its system."""
    if holds_samples(path):
        return {"lm-eval": path}
    files = [file for file in (path / SCORES_FILE, *sorted(path.glob(f"eval/*/{SCORES_FILE}"))) if file.is_file()]
    systems = [(file, system_of(file)) for file in files]
    return {system if file.parent == path else file.parent.name: file.parent for file, system in systems if system}


def _shared(benches: Sequence[Collection[str]], bench: str | None) -> list[str]:
    names = sorted(set.intersection(*map(set, benches)))
    return [name for name in names if bench in (None, name)]


def load_runs(paths: Sequence[Path], bench: str | None = None) -> list[ScoredRun]:
    """Read the runs' results on one benchmark; `bench` as for `load_measured`.

    UserError if a run is missing, given twice, not scored or damaged; the benchmark is unknown or ambiguous; or the
    runs were scored on different files or samples, or a sample's subset differs.
    """
    labels = distinct_labels(paths)
    name = _shared_bench(paths, bench)
    runs = [_load_run(path, label, name) for path, label in zip(paths, labels, strict=True)]
    for run in runs[1:]:
        _check_same_samples(runs[0], run)
    return [replace(run, predictions={key: run.predictions[key] for key in runs[0].predictions}) for run in runs]


def scored_benches(path: Path, bench: str | None = None, file: str | None = None) -> list[str]:
    """List the benchmarks with complete results in a run folder, or check for `bench`; UserError without a result.

    `file` has the benchmark's rows, if that is known.
    """
    if not path.is_dir():
        raise UserError(f"{path}: no such run folder", "check the path; `d2e train` and `d2e eval` make run folders")
    benches = row_benches(path)
    if not benches:
        names = sorted(file.parent.name for file in path.glob(f"eval/*/{SCORES_FILE}"))
        if names:
            raise UserError(
                f"{path}: scored only on {', '.join(names)}, by their own scorers; expected scores of rows"
                + (f", and of {bench!r}" if bench else ""),
                remedy=f"d2e compare, report and table read {names[0]} of runs that all have it: --bench {names[0]}",
            )
        if (path / MANIFEST).is_file() or rows_file(path, "test"):
            raise UserError(
                f"{path}: holds rows, no run; expected a run folder with scores",
                remedy=f"score a run on them, d2e eval RUN --bench {path}, and give RUN instead of {path}",
            )
        raise UserError(f"{path}: the run has no scores", remedy=f"d2e eval {path} --bench BENCH")
    if bench is not None and bench not in benches:
        raise UserError(
            f"{path}: not scored on {bench!r}, only on {', '.join(benches)}.{did_you_mean(bench, benches)}",
            remedy=f"d2e eval {path} {_options_of(bench, file)}",
        )
    return benches if bench is None else [bench]


def _options_of(bench: str, file: str | None = None) -> str:
    """The options of `d2e eval` that write to RUN/eval/BENCH; the rows of BENCH are in `file` or below `data`."""
    known = dict.fromkeys(SETTINGS[1:], "--setting") | dict.fromkeys(FORMS[1:], "--form") | {"likelihood": "--answer"}
    name, more = bench, ""
    while (parts := name.rpartition("-"))[0] and parts[2] in known and not (DATA_ROOT / name).is_dir():
        name, more = parts[0], f" {known[parts[2]]} {parts[2]}{more}"
    if name in SUITES:
        return f"--suite {name}{more}"
    return f"--bench {file or (DATA_ROOT / name if (DATA_ROOT / name).is_dir() else name)}{more}"


def row_benches(path: Path) -> list[str]:
    return sorted(file.parent.name for file in path.glob(f"eval/*/{SCORES_FILE}") if system_of(file) is None)


def system_of(file: Path) -> str | None:
    """Return the related system whose scores a file holds, None for scores of rows; the checksums are not compared."""
    system = read_json_as(dict[str, Any], file, "scores", SCORE_AGAIN).get("system")
    return system if isinstance(system, str) else None


def reference_first(runs: Sequence[Run], name: str | None) -> list[Run]:
    """The runs, with those of this label or path first (None keeps the order); UserError if no run has that name."""
    if name is None:
        return list(runs)
    chosen = {run.label for run in runs if name == run.label or Path(name).resolve() == run.path.resolve()}
    if chosen:
        return sorted(runs, key=lambda run: run.label not in chosen)
    labels = dict.fromkeys(run.label for run in runs)
    raise UserError(
        f"--reference {name}: none of the runs; expected {', '.join(labels)}.{did_you_mean(name, labels)}",
        remedy="name one of the runs that are compared",
    )


def presented(runs: Sequence[RunResult]) -> int:
    """The place of the run that is set against the first: the next trained one, else the second; 0 for one run."""
    trained = (place for place, run in enumerate(runs) if place and run.is_trained)
    return next(trained, min(1, len(runs) - 1))


def only_subset(runs: Sequence[ScoredRun | MeasuredRun], subset: str) -> list[ScoredRun | MeasuredRun]:
    """Return the runs with only the samples of one subset; UserError if no sample has that tag."""
    rows = [run for run in runs if isinstance(run, ScoredRun)]
    if not rows:
        raise UserError(f"--subset {subset}: {runs[0].folder.name} has no subsets", remedy="drop it")
    counts = Counter(p.subset for p in rows[0].predictions.values() if p.subset is not None)
    if subset not in counts:
        tags = ", ".join(f"{name} ({count:,} samples)" for name, count in counts.items())
        expected = tags or "rows with the field `subset`"
        bench, hint = rows[0].scores.bench.name, did_you_mean(subset, counts)
        raise UserError(
            f"--subset {subset}: {bench} has none; expected {expected}.{hint}",
            remedy="choose one of these" if tags else "drop it, or tag the benchmark's rows and score the runs again",
        )
    return [
        replace(run, predictions={key: p for key, p in run.predictions.items() if p.subset == subset}) for run in rows
    ]


def _shared_bench(paths: Sequence[Path], bench: str | None) -> str:
    known = [path / "eval" / str(bench) / SCORES_FILE for path in paths]
    file = next((read_scores(f).bench.file for f in known if f.is_file() and system_of(f) is None), None)
    benches = {path: scored_benches(path, bench, file) for path in paths}
    shared = sorted(set.intersection(*(set(names) for names in benches.values())))
    if len(shared) == 1:
        return shared[0]
    if shared:
        raise UserError(f"the runs share {len(shared)} benchmarks: {', '.join(shared)}", "choose one: --bench NAME")
    per_run = "; ".join(f"{path}: {', '.join(names)}" for path, names in benches.items())
    raise UserError(f"the runs share no benchmark ({per_run})", "score all of them on one: d2e eval RUN --bench BENCH")


def distinct_labels(paths: Sequence[Path]) -> list[str]:
    """The runs' names, with enough of their paths to be distinct, such as `d2e/checkpoint-30` of a checkpoint."""
    parts = [path.resolve().parts for path in paths]
    labels = []
    for path, names in zip(paths, parts, strict=True):
        if parts.count(names) > 1:
            raise UserError(f"{path}: the same run folder is given twice", remedy="name each run once")
        depth = 2 if _is_checkpoint(names[-1]) else 1
        while depth < len(names) and sum(rival[-depth:] == names[-depth:] for rival in parts) > 1:
            depth += 1
        labels.append("/".join(names[-depth:]))
    return labels


class _TrainerState(BaseModel):
    log_history: list[dict[str, Any]]


def training_log(run: Path) -> list[dict[str, Any]]:
    """Return the log of a training, empty without one; UserError if it is not JSON with a list `log_history`."""
    path, remedy = run / TRAINER_STATE, "copy it again from the run's last checkpoint, or remove it"
    return read_json_as(_TrainerState, path, "a trainer state", remedy).log_history if path.is_file() else []


def probe_rows(
    log: Sequence[Mapping[str, Any]],
    recipe: Recipe,
    values: Mapping[str, str],
    overrides: Mapping[str, str],
    training: str = "",
) -> list[Row]:
    """Return a row for each evaluation and decoder in the log of a training; none without a probe.

    Rows have the `values`, `decoder`, `samples` and `step` so far. `aligned` and `conflict` are shares, also as
    `conflict_DATASET` for further datasets; `n` is the size of a subset. The compute of training so far is `seconds`,
    `cpu_seconds` (which depends little on other work on the machine) and `tokens` of all views.
    `training` is a digest of the training, by which a sweep knows its rows.
    """
    rows = list[Row]()
    for entry in log:
        for name in (PLAIN, DEBIASED, IMAGINED):
            prefix = f"{PREFIX}{name}_"
            if f"{prefix}conflict" not in entry:
                continue
            decoder = {PLAIN: PLAIN, IMAGINED: WITHOUT_CONTEXT}.get(name, f"d2e:alpha={entry[PREFIX + 'alpha']:g}")
            starts = tuple(f"{prefix}{subset}" for subset in PROBED)
            tokens = entry.get(f"{PREFIX}train_tokens")  # older runs did not count them
            rows.append(
                {
                    **{axis: typed(value) for axis, value in values.items()},
                    "decoder": decoder,
                    "samples": int(entry["step"]) * recipe.train.batch_size,
                    "step": int(entry["step"]),
                    **{key.removeprefix(prefix): round(entry[key], 4) for key in entry if key.startswith(starts)},
                    "n": int(entry[f"{PREFIX}n"]),
                    "seconds": round(entry[f"{PREFIX}train_seconds"], 3),
                    "cpu_seconds": round(entry[f"{PREFIX}train_cpu_seconds"], 3),
                    **({} if tokens is None else {"tokens": int(tokens)}),
                    **({"overrides": dict(overrides)} if overrides else {}),
                    **({TRAINING: training} if training else {}),
                }
            )
    return rows


def has_axes(row: Row, axes: Collection[str]) -> bool:
    """Return whether a row was measured along these axes and no further one."""
    extra = row.keys() - _MEASURED - set(axes)
    return row.keys() >= set(axes) and all(key.startswith(PROBED) for key in extra)


def typed(name: str) -> Any:
    try:
        value = load_yaml(name)
    except (yaml.YAMLError, ValueError):
        return name
    return value if isinstance(value, int | float) and not isinstance(value, bool) else name


def costs_of_runs(runs: Sequence[RunResult]) -> dict[str, dict[str, float]]:
    """Return label → `steps` and `cpu_seconds` of the training, if it recorded them; over seeds their means."""
    found = dict[str, list[tuple[float, float]]]()
    for run in runs:
        for entry in run.log:
            if "train_cpu_seconds" in entry:
                found.setdefault(run.label, []).append((entry["step"], entry["train_cpu_seconds"]))
    return {
        label: {"steps": fmean(steps for steps, _ in costs), "cpu_seconds": fmean(seconds for _, seconds in costs)}
        for label, costs in found.items()
    }


def _is_checkpoint(name: str) -> bool:
    return name.startswith("checkpoint-")


def _load_run(path: Path, label: str, bench: str) -> ScoredRun:
    folder = path / "eval" / bench
    scores = read_scores(folder / SCORES_FILE)
    rows = read_predictions(folder / "predictions.jsonl", foreign=scores.engine is None)
    predictions = {(row.dataset, row.id): row for row in rows}
    if len(predictions) != len(rows):
        raise UserError(
            f"{folder / 'predictions.jsonl'}: {len(rows) - len(predictions)} of {len(rows)} predictions repeat "
            "the id of another; expected one for each sample",
            remedy=f"d2e eval {path} {_options_of(bench, scores.bench.file)} --overwrite",
        )
    return ScoredRun(path, label, folder, scores, predictions)


def _check_same_samples(first: ScoredRun, other: ScoredRun) -> None:
    one, two = first.scores.bench, other.scores.bench
    if one.sha256 != two.sha256:
        raise UserError(
            f"{first.path} and {other.path} were scored on different benchmarks: "
            f"{one.file} (sha256 {one.sha256}) and {two.file} (sha256 {two.sha256})",
            remedy="score both on the same file with d2e eval",
        )
    strangers = sorted(first.predictions.keys() ^ other.predictions.keys())
    if strangers:
        dataset, sample = strangers[0]
        raise UserError(
            f"{first.path} ({len(first.predictions)} samples) and {other.path} ({len(other.predictions)} samples) "
            f"were scored on different samples: {len(strangers)} are in one only, such as {sample!r} of {dataset}",
            remedy=how_to_score_alike({str(run.path): run.scores for run in (first, other)}),
        )
    for key, p in first.predictions.items():
        if other.predictions[key].subset != p.subset:
            raise UserError(
                f"{other.folder / 'predictions.jsonl'}: sample {p.id!r} of {p.dataset} has the subset "
                f"{other.predictions[key].subset}, in {first.folder / 'predictions.jsonl'} {p.subset}",
                remedy="one of them was scored before rows had subsets; score both again with d2e eval",
            )


def how_to_score_alike(scored: Mapping[str, RunScores]) -> str:
    """Return the remedy for runs that were scored on different rows; the keys are the paths of their folders."""
    capped = {path: scores.subset["of"] for path, scores in scored.items() if scores.subset is not None}
    calls = [f"add --max-samples {rows} --overwrite to the d2e eval of {path}" for path, rows in capped.items()]
    return f"score all rows: {', '.join(calls)}" if calls else "score both on the same rows with d2e eval"
