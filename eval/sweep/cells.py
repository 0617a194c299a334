"""The folder of each point: what is there, and the `d2e` commands that are left to do.

A point is scored when its folder holds the scores of its benchmark (`eval/BENCH/scores.json`), and trained when its
folder holds the trainer's state and the weights. Nothing else is kept about a point.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from d2e_sft.config.recipe import RECIPE_FILE, recipe_of
from d2e_sft.data.foreign import refuse_foreign
from d2e_sft.data.hub_rows import is_hub
from d2e_sft.train.run_folder import TRAINER_STATE, checkpoints_of
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import CHECKSUMS, read_results, with_checksums, write_whole
from eval.compare.judged import PATTERNS_FILE
from eval.compare.runs import TRAINING, Row, has_axes, typed
from eval.run.benchmark import DATA_ROOT, locate_benchmark, locate_suite, results_name
from eval.score.scores import SCORES_FILE, RunScores, read_scores
from eval.sweep.plan import Point, Sweep
from eval.sweep.spec import OWN_DATA, split_words

LOGS = "logs"


def bench_folder(sweep: Sweep, point: Point) -> Path | None:
    """Return the folder with the scores of a point, or of the one that is scored the same; None before they exist."""
    folder = sweep.out / point.scored_in / "eval" / _results_name(sweep, point)
    return folder if (folder / SCORES_FILE).is_file() else None


def _results_name(sweep: Sweep, point: Point) -> str:
    option, bench = sweep.bench_of(point) or ("", "")
    path = Path(bench).resolve()
    name = path.name if option == "--suite" or path.is_dir() else f"{path.parent.name}-{path.stem}"
    recipe = point.recipe if point.train else recipe_of(point.recipe.model.name)
    asked = {"form": recipe.data.form} if recipe else {}
    return results_name(name, **asked | {option[2:]: value for option, value in _asked(sweep, point).items()})


def _asked(sweep: Sweep, point: Point) -> dict[str, str]:
    """Return the options that say how a point is asked and answered."""
    words = [*split_words("--eval-args", sweep.spec.eval_args), *point.eval_args]
    options = dict(pairwise(words))
    return {option: options[option] for option in ("--setting", "--form", "--answer") if option in options}


def is_scored(sweep: Sweep, point: Point) -> bool:
    folder = bench_folder(sweep, point)
    sorts = point.evaluation.without_context or point.errors
    return folder is not None and (not sorts or (folder / PATTERNS_FILE).is_file())


def point_scores(sweep: Sweep, point: Point) -> RunScores | None:
    """Return the scores of a point, or of the one that is scored the same; None before it is scored."""
    folder = bench_folder(sweep, point)
    return read_scores(folder / SCORES_FILE) if folder is not None and is_scored(sweep, point) else None


def is_trained(run: Path) -> bool:
    """Return whether a training is complete; the trainer's state is written last."""
    return (run / TRAINER_STATE).is_file() and next(run.glob("*.safetensors"), None) is not None


def is_done(sweep: Sweep, point: Point, rows: Sequence[Row]) -> bool:
    """Return whether a point is scored and the accuracies during its training are in `rows`."""
    probed = sweep.spec.probe is None or bool(rows_of(rows, sweep.axes_of(point)))
    return probed and (sweep.bench is None or is_scored(sweep, point))


def steps(sweep: Sweep, point: Point) -> Iterator[tuple[Point, list[str]]]:
    """Yield the commands left to do for a point, each with the point whose log takes its output.

    What is left is looked up when a command is asked for, after the commands before it have run.
    """
    trainer = trainer_of(sweep, point)
    untrained = point.train and not is_trained(sweep.out / trainer.name)
    needs_data = untrained or sweep.spec.bench == OWN_DATA or _shows_own(point)
    if point.build and needs_data and not is_built_in(sweep.data_of(point)):
        yield trainer, ["data", "build", *point.build, "--out", str(sweep.data_of(point))]
    if untrained:
        yield trainer, _train_arguments(sweep, trainer)
    if sweep.bench is None or is_scored(sweep, point):
        return
    option, suite = sweep.bench_of(point) or ("", "")
    folder = sweep.out / "data" / suite
    if builds_suites(sweep) and option == "--suite" and not is_built_in(folder):
        yield point, ["data", "build", "--suite", suite, "--out", str(folder)]
    if bench_folder(sweep, point) is None:
        yield point, _eval_arguments(sweep, _scored_together(sweep, point))
    if point.evaluation.without_context:
        yield point, _eval_arguments(sweep, [point], without_context=True)
        yield point, ["errors", str(sweep.out / point.scored_in), "--bench", _results_name(sweep, point)]
    elif point.errors:
        yield point, ["errors", str(sweep.out / point.scored_in), *point.errors]


def _shows_own(point: Point) -> bool:
    """Whether demonstrations come from the point's own data."""
    return bool(point.build) and "few_shot" in point.eval_args


def trainer_of(sweep: Sweep, point: Point) -> Point:
    return next(candidate for candidate in sweep.points if candidate.name == point.trained_in)


def is_built_in(folder: Path) -> bool:
    """Return whether a folder holds a complete build; the manifest is written last."""
    return (folder / "manifest.json").is_file()


def builds_suites(sweep: Sweep) -> bool:
    """Return whether the sweep builds its suites, as it does if it builds its training data; `--data` names others."""
    return any(point.build for point in sweep.points) and "--data" not in split_words("", sweep.spec.eval_args)


def failed_file(sweep: Sweep, point: Point) -> Path:
    return sweep.out / LOGS / f"{point.name}.failed"


def _train_arguments(sweep: Sweep, trainer: Point) -> list[str]:
    run, flags = sweep.out / trainer.name, list[str]()
    if (run / RECIPE_FILE).is_file():
        # A training that gave up, as on a diverged loss, would give up again or pass with its last checkpoint. A probe
        # measures the seconds of one process.
        anew = failed_file(sweep, trainer).is_file() or sweep.spec.probe is not None
        resumable = checkpoints_of(run) or next(run.glob("*.safetensors"), None) is None
        flags = ["--overwrite" if anew or not resumable else "--resume"]
    # Overrides are YAML, where an unquoted "a=b,c: d" would be more than a text.
    folder = "'" + str(run).replace("'", "''") + "'"
    arguments = ["train", sweep.spec.recipe, *trainer.overrides, f"train.output_dir={folder}", *flags]
    return [*arguments, *split_words("--train-args", sweep.spec.train_args)]


def _scored_together(sweep: Sweep, point: Point) -> list[Point]:
    """Return the points of one `d2e eval`: all decoders of a model that scores options, which share the prompts."""
    words = [*split_words("--eval-args", sweep.spec.eval_args), *point.eval_args]
    single = {"--alpha", "--decoder", "--engine", "--launch"} & set(words) or point.evaluation.without_context
    if single or ("--answer", "likelihood") not in pairwise(words):
        return [point]
    bench = sweep.bench_of(point)
    alike = (
        peer
        for peer in sweep.work
        if (peer.trained_in, peer.eval_args, sweep.bench_of(peer)) == (point.trained_in, point.eval_args, bench)
    )
    return [peer for peer in alike if not peer.evaluation.without_context and not is_scored(sweep, peer)]


def _eval_arguments(sweep: Sweep, points: Sequence[Point], *, without_context: bool = False) -> list[str]:
    point = points[0]
    target = str(sweep.out / point.scored_in)
    model = str(sweep.out / point.trained_in) if point.train else point.recipe.model.name
    bench = sweep.bench_of(point) or ()
    suites = ["--data", str(sweep.out / "data")] if builds_suites(sweep) and "--suite" in bench else []
    arguments = ["eval", model, *bench, *suites, *split_words("--eval-args", sweep.spec.eval_args), *point.eval_args]
    arguments += ["--demonstrations", str(sweep.data_of(point))] if _shows_own(point) else []
    if len(points) > 1:
        for member in points:
            decoding = member.decoding
            name = f"d2e:alpha={decoding.alpha!r}" if decoding.decoder == "d2e" else decoding.decoder
            decoder = name if decoding.needs_imagined else "plain"
            arguments += ["--decoder", decoder, "--out", str(sweep.out / member.scored_in)]
        return arguments
    options = {key: str(value) for key, value in point.decoding.record().items() if value is not None}
    if {"--alpha", "--decoder"} & set(arguments):
        options.pop("alpha", None)
    if without_context:
        options.pop("decoder", None)  # a decoder contrasts two views, and here there is one
    arguments += ["--out", target] if target != model else []
    arguments += [word for key, value in options.items() for word in (f"--{key}", value)]
    return [*arguments, "--without-context"] if without_context else arguments


def check_inputs(sweep: Sweep) -> None:
    """Check before hours of training what would fail after them; UserError if it is not measured, or lacks data."""
    spec = sweep.spec
    if (spec.bench is not None and spec.suite is not None) or (sweep.bench is None and spec.probe is None):
        raise UserError(
            "a sweep is scored on one benchmark; expected either --bench or --suite",
            remedy="add --bench FOLDER or --suite piper, or `probe` to the sweep's file",
        )
    for point in sweep.trainings:
        train = point.recipe.data.train
        if not point.build and not is_hub(train) and not Path(train).is_file():
            raise UserError(f"data.train={train!r}: no such file", remedy="build it with d2e data build")
    if spec.bench == OWN_DATA:
        for point in sweep.work:
            if not point.build:
                raise UserError(f"bench: {OWN_DATA!r}: {point.name} builds no data", "add `build`, or name a folder")
    elif spec.bench is not None:
        refuse_foreign(locate_benchmark(spec.bench).file)
    root = Path(dict(pairwise(split_words("--eval-args", spec.eval_args))).get("--data", DATA_ROOT))
    for option, suite in dict.fromkeys(sweep.bench_of(point) or ("", "") for point in sweep.work):
        if option == "--suite" and not builds_suites(sweep):
            locate_suite(suite, root)
    _refuse_different_rows(sweep)
    _refuse_deleted_models(sweep)


def _refuse_deleted_models(sweep: Sweep) -> None:
    """Raise UserError if a model is to be scored that was not kept: to train it again would clear its scores."""
    for point in sweep.work if sweep.bench is not None else ():
        run, trainer = sweep.out / point.trained_in, trainer_of(sweep, point)
        gone = (run / TRAINER_STATE).is_file() and not is_trained(run) and not failed_file(sweep, trainer).is_file()
        scored = sweep.spec.probe is None or next(run.glob(f"eval/*/{SCORES_FILE}"), None) is not None
        if point.train and gone and scored and not checkpoints_of(run) and not is_scored(sweep, point):
            raise UserError(
                f"{point.name}: not scored yet, and the model in {run} was not kept (keep_models: "
                f"{str(sweep.spec.keep_models).lower()}); expected its weights",
                remedy=f"take the evaluation back, or remove {run} to train it again and score all of it",
            )


def _refuse_different_rows(sweep: Sweep) -> None:
    """Raise UserError for a comparison or page of points that are scored on different rows, or in different ways."""
    points = {point.name: point for point in sweep.points}
    shown = sweep.spec.comparisons | {name: report.points for name, report in sweep.spec.reports.items()}
    for table, (first, *others) in shown.items() if sweep.bench is not None else ():
        was = _scored_how(sweep, points[first])
        for other in others:
            if (now := _scored_how(sweep, points[other])) != was:
                raise UserError(
                    f"{table}: {first} is scored on {' '.join(was)}; {other} on {' '.join(now)}; expected points that "
                    "are scored on the same rows in the same way",
                    remedy="name such points; results.html compares ways of training over seeds",
                )


def _scored_how(sweep: Sweep, point: Point) -> list[str]:
    """Return what the name of a point's scores follows from: the benchmark, setting, form and kind of answers."""
    rows = point.build if sweep.spec.bench == OWN_DATA and point.evaluation.suite is None else sweep.bench_of(point)
    return [*(rows or ()), *(part for pair in _asked(sweep, point).items() for part in pair)]


def read_rows(file: Path) -> list[Row]:
    """Return the rows of the probe, as `read_all_rows`."""
    return [row for row in read_all_rows(file) if "step" in row]


def read_all_rows(file: Path) -> list[Row]:
    """Return the rows of a sweep's file, none without a file; UserError if it holds no rows, or was edited."""
    if not file.is_file():
        return []
    content = read_results(dict[str, list[Row]], file, "the rows of a sweep", "restore it, or name another: --results")
    return content.get("rows", [])


def write_rows(rows: Sequence[Row], file: Path) -> None:
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    sums = json.dumps(with_checksums({"rows": rows})[CHECKSUMS])
    write_whole(file, f'{{"rows": [\n{lines}\n],\n"{CHECKSUMS}": {sums}}}\n')


def refuse_other_overrides(rows: Iterable[Row], expected: Mapping[str, str], file: Path) -> None:
    """Raise UserError if some rows were measured with other overrides than this call: one table would show both."""

    def words(overrides: Mapping[str, str]) -> str:
        return " ".join(f"{key}={value}" for key, value in overrides.items()) or "the file's own settings"

    for used in (row.get("overrides", {}) for row in rows):
        if used != expected:
            raise UserError(
                f"{file}: has rows measured with {words(used)}; this call asks for {words(expected)}",
                remedy="keep these in another file, --results FILE" + (f", or give {words(used)}" if used else ""),
            )


def refuse_other_trainings(rows: Iterable[Row], sweep: Sweep) -> None:
    """Raise UserError if a point's rows are of another recipe, `overrides` or `build`; older rows do not say."""
    known = [row for row in rows if TRAINING in row]
    for point in sweep.points if known else ():
        now = point.digest()
        if any(row[TRAINING] != now for row in rows_of(known, sweep.axes_of(point))):
            raise UserError(
                f"{sweep.results}: has rows of {point.name} with another recipe, overrides or build; expected rows of "
                f"{sweep.spec.file}",
                remedy="keep this sweep's in another file, --results FILE, or undo the change",
            )


def rows_of(rows: Iterable[Row], values: Mapping[str, str]) -> list[Row]:
    typed_values = {axis: typed(value) for axis, value in values.items()}
    fitting = (row for row in rows if all(row.get(axis) == value for axis, value in typed_values.items()))
    return [row for row in fitting if has_axes(row, values)]
