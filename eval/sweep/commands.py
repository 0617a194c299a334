"""The `d2e` commands of a sweep: how a point's data are built, and how it is trained and scored."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from d2e_sft.config.recipe import RECIPE_FILE
from d2e_sft.data.hub_rows import is_hub
from d2e_sft.train.run_folder import checkpoints_of
from d2e_sft.util.errors import UserError
from eval.score.scores import SCORES_FILE, RunScores, read_scores
from eval.sweep.plan import Sweep
from eval.sweep.points import Point, data_folder
from eval.sweep.rows import Row, rows_of
from eval.sweep.spec import OWN_DATA

DONE_FILE = "scored.txt"  # in the folder of a scored point; holds the name of the benchmark's folder
LOGS = "logs"


def point_scores(sweep: Sweep, point: Point) -> RunScores | None:
    """Return the scores of a point, or of the one that is scored the same; None before they are there."""
    done = sweep.out / point.scored_in / DONE_FILE
    if not done.is_file():
        return None
    scores = sweep.out / point.scored_in / "eval" / bench_folder(sweep, point) / SCORES_FILE
    return read_scores(scores) if scores.is_file() else None


def bench_folder(sweep: Sweep, point: Point) -> str:
    """Return the name of the folder under eval/ that holds a scored point's results."""
    return (sweep.out / point.scored_in / DONE_FILE).read_text(encoding="utf-8").strip()


def is_trained(run: Path) -> bool:
    """Return whether a training is complete; the trainer's state is written last."""
    return (run / "trainer_state.json").is_file() and next(run.glob("*.safetensors"), None) is not None


def is_done(sweep: Sweep, point: Point, rows: Sequence[Row]) -> bool:
    """Return whether a point is scored and the accuracies during its training are in `rows`."""
    probed = sweep.spec.probe is None or bool(rows_of(rows, sweep.axes_of(point)))
    return probed and (sweep.bench is None or point_scores(sweep, point) is not None)


def steps(sweep: Sweep, point: Point) -> Iterator[tuple[Point, list[str]]]:
    """Yield the commands left to do for a point, each with the point whose log takes its output.

    What is left is looked up when a command is asked for, after the commands before it have run.
    """
    trainer = trainer_of(sweep, point)
    untrained = point.train and not is_trained(sweep.out / trainer.name)
    if point.build and (untrained or sweep.spec.bench == OWN_DATA) and not is_built(sweep, point):
        yield trainer, ["data", "build", *point.build, "--out", str(data_folder(sweep.out, point.build))]
    if untrained:
        yield trainer, train_arguments(sweep, trainer)
    if sweep.bench is not None and point_scores(sweep, point) is None:
        option, suite = sweep.bench_of(point) or ("", "")
        if builds_suites(sweep) and option == "--suite" and not is_built_in(data_root(sweep) / suite):
            yield point, ["data", "build", "--suite", suite, "--out", str(data_root(sweep) / suite)]
        yield point, eval_arguments(sweep, scored_together(sweep, point))
        if point.evaluation.without_context:
            bench = newest_bench(sweep, point)
            yield point, eval_arguments(sweep, [point], without_context=True)
            yield point, ["errors", str(sweep.out / point.scored_in), "--bench", bench]


def newest_bench(sweep: Sweep, point: Point) -> str:
    """Return the name of the folder under eval/ that was scored last, or will be scored."""
    scored = list((sweep.out / point.scored_in).glob(f"eval/*/{SCORES_FILE}"))
    if scored:
        return max(scored, key=lambda file: file.stat().st_mtime_ns).parent.name
    option, given = sweep.bench_of(point) or ("", "")
    path = Path(given).resolve()
    return path.name if option == "--suite" or path.is_dir() else f"{path.parent.name}-{path.stem}"


def trainer_of(sweep: Sweep, point: Point) -> Point:
    """Return the point whose run folder holds the point's model."""
    return next(other for other in sweep.points if other.name == point.trained_in)


def is_built(sweep: Sweep, point: Point) -> bool:
    return is_built_in(data_folder(sweep.out, point.build))


def is_built_in(folder: Path) -> bool:
    """Return whether a folder holds a complete build; the manifest is written last."""
    return (folder / "manifest.json").is_file()


def builds_suites(sweep: Sweep) -> bool:
    """Return whether the sweep builds its suites, as it does if it builds its training data; `--data` names others."""
    return any(point.build for point in sweep.points) and "--data" not in split_words("", sweep.spec.eval_args)


def data_root(sweep: Sweep) -> Path:
    return sweep.out / "data"


def train_arguments(sweep: Sweep, trainer: Point) -> list[str]:
    # Overrides are YAML, where an unquoted "a=b,c: d" would be more than a text.
    folder = "'" + str(sweep.out / trainer.name).replace("'", "''") + "'"
    how = filter(None, [how_to_begin(sweep, trainer)])
    arguments = ["train", sweep.spec.recipe, *trainer.overrides, f"train.output_dir={folder}", *how]
    return [*arguments, *split_words("--train-args", sweep.spec.train_args)]


def how_to_begin(sweep: Sweep, trainer: Point) -> str:
    """Return `--resume`, `--overwrite`, or nothing for a new training."""
    run = sweep.out / trainer.name
    if not (run / RECIPE_FILE).is_file():
        return ""
    # A training that gave up, as on a diverged loss, would give up again or pass with its last checkpoint. A probe
    # measures the seconds of one process.
    anew = failed_file(sweep, trainer).is_file() or sweep.spec.probe is not None
    resumable = checkpoints_of(run) or next(run.glob("*.safetensors"), None) is None
    return "--overwrite" if anew or not resumable else "--resume"


def scored_together(sweep: Sweep, point: Point) -> list[Point]:
    """Return the points of one `d2e eval`: all decoders of a model that scores options, which share the prompts."""
    words = [part for word in split_words("--eval-args", sweep.spec.eval_args) for part in word.split("=")]
    single = {"--alpha", "--decoder", "--engine", "--launch"} & set(words) or point.evaluation.without_context
    if single or ("--answer", "likelihood") not in pairwise(words):
        return [point]
    bench = sweep.bench_of(point)
    alike = (one for one in sweep.work if one.trained_in == point.trained_in and sweep.bench_of(one) == bench)
    same = (one for one in alike if not one.evaluation.without_context)
    return [one for one in same if point_scores(sweep, one) is None]


def eval_arguments(sweep: Sweep, points: Sequence[Point], *, without_context: bool = False) -> list[str]:
    """Return the call of `d2e eval` that scores these points of one model."""
    point = points[0]
    target = str(sweep.out / point.scored_in)
    model = str(sweep.out / point.trained_in) if point.train else point.recipe.model.name
    bench = sweep.bench_of(point) or ()
    own_data = ["--data", str(data_root(sweep))] if builds_suites(sweep) and "--suite" in bench else []
    arguments = ["eval", model, *bench, *own_data, *split_words("--eval-args", sweep.spec.eval_args)]
    if len(points) > 1:
        for one in points:
            decoding = one.decoding
            name = f"d2e:alpha={decoding.alpha!r}" if decoding.decoder == "d2e" else decoding.decoder
            decoder = name if decoding.needs_imagined else "plain"
            arguments += ["--decoder", decoder, "--out", str(sweep.out / one.scored_in)]
        return arguments
    how = {key: str(value) for key, value in point.decoding.record().items() if value is not None}
    if {"--alpha", "--decoder"} & set(arguments):
        how.pop("alpha", None)
    if without_context:
        how.pop("decoder", None)  # a decoder contrasts two views, and here there is one
    arguments += ["--out", target] if target != model else []
    arguments += [word for key, value in how.items() for word in (f"--{key}", value)]
    return [*arguments, "--without-context"] if without_context else arguments


def failed_file(sweep: Sweep, point: Point) -> Path:
    """Return the file that marks a training that ended with an error."""
    return sweep.out / LOGS / f"{point.name}.failed"


def check_inputs(sweep: Sweep) -> None:
    """Check before hours of training what would fail after them.

    UserError if the sweep is not measured, or data are missing.
    """
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
    elif spec.bench is not None and not Path(spec.bench).exists():
        raise UserError(f"--bench {spec.bench}: no such file or folder", "give a folder of `d2e data build`")
    words = split_words("--eval-args", spec.eval_args)
    root = Path(dict(pairwise(words)).get("--data", "data"))
    for suite in () if builds_suites(sweep) else sweep.suites:
        if not (root / suite).is_dir() and not is_built_in(root):
            build = f"d2e data build --suite {suite} --out {root / suite}"
            raise UserError(f"--suite {suite}: {root / suite} does not exist", remedy=build)


def split_words(option: str, text: str) -> list[str]:
    """Split arguments like a shell does; UserError if a quotation is not closed."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{option} {text!r}: {error}; expected arguments as a shell reads them") from None
