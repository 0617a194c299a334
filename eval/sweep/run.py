"""Train and score a grid of recipes, point by point, each in processes of its own.

A point is done when its scores are there; what is done is never repeated. So a sweep that was killed goes on with the
next call: a training from its last checkpoint, an evaluation from its last answer. A point that fails is kept in mind
and does not keep the others from being trained.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from d2e_sft.config.recipe import RECIPE_FILE
from d2e_sft.train.checkpoints import checkpoints_of
from d2e_sft.util.files import write_whole
from eval.score.scores import SCORES_FILE, RunScores, read_scores
from eval.sweep.grid import Point, describe_point
from eval.sweep.process import last_lines, run_logged
from eval.sweep.record import DONE_FILE, Sweep, locked, refuse_other_sweep, save_record

Step = Literal["train", "eval", "errors"]
Say = Callable[[str], None]
_LOGS = "logs"


@dataclass(frozen=True)
class Failure:
    """A step that ended with a status other than 0."""

    point: Point
    step: Step
    status: int
    log: Path

    def describe(self) -> str:
        """One line."""
        how = f"killed by signal {-self.status}" if self.status < 0 else f"exit status {self.status}"
        return f"{self.point.name}: d2e {self.step} failed ({how}), see {self.log}"


def run_sweep(sweep: Sweep, say: Say) -> list[Failure]:
    """Train and score whatever is not yet; says what it does.

    Returns:
        the steps that failed.

    Raises:
        UserError: the folder belongs to another sweep, or another process is at work in it.
    """
    refuse_other_sweep(sweep)
    failures: list[Failure] = []
    with locked(sweep.out) as lock:
        save_record(sweep)
        for number, point in enumerate(sweep.to_score, start=1):
            place = f"[{number}/{len(sweep.to_score)}] {describe_point(point, sweep.axes)}"
            if point_scores(sweep, point) is not None:
                say(f"{place}: already scored")
                continue
            lacking = next((f for f in failures if (f.step, f.point.name) == ("train", point.trained_in)), None)
            if lacking is not None:
                say(f"{place}: not scored, as {point.trained_in} was not trained")
                continue
            failure = _work_on(sweep, point, place, say, lock)
            if failure is not None:
                failures.append(failure)
                say(f"{place}: FAILED\n{last_lines(failure.log)}")
    return failures


def point_scores(sweep: Sweep, point: Point) -> RunScores | None:
    """What a point (or the one that is decoded the same) scored; None before that."""
    folder = sweep.out / point.scored_in
    done = folder / DONE_FILE
    if not done.is_file():
        return None
    scores = folder / "eval" / done.read_text(encoding="utf-8").strip() / SCORES_FILE
    return read_scores(scores) if scores.is_file() else None


def bench_folder(sweep: Sweep, point: Point) -> str:
    """The name of the folder under eval/ that holds a scored point's results."""
    return (sweep.out / point.scored_in / DONE_FILE).read_text(encoding="utf-8").strip()


def is_trained(run: Path) -> bool:
    """Whether a training in the folder came to its end; the trainer's state is written last."""
    return (run / "trainer_state.json").is_file() and next(run.glob("*.safetensors"), None) is not None


def commands(sweep: Sweep, point: Point) -> list[list[str]]:
    """What is left to do for a point, as arguments of `d2e`; none where it is scored."""
    if point_scores(sweep, point) is not None:
        return []
    needs_training = point.train and not is_trained(sweep.out / point.trained_in)
    left = [_train_arguments(sweep, _trainer(sweep, point))] if needs_training else []
    left.append(_eval_arguments(sweep, _scored_together(sweep, point)))
    if point.evaluation.without_context:
        left.append(_eval_arguments(sweep, [point], without_context=True))
        left.append(_errors_arguments(sweep, point, _bench_name(sweep.bench)))
    return left


def _work_on(sweep: Sweep, point: Point, place: str, say: Say, lock: int) -> Failure | None:
    run = sweep.out / point.trained_in
    if point.train and not is_trained(run):
        trainer = _trainer(sweep, point)
        how = {"--resume": " (continued)", "--overwrite": " (anew)"}.get(_how_to_begin(sweep, trainer), "")
        say(f"{place}: training in {run}{how}")
        failure = _step(sweep, trainer, "train", _train_arguments(sweep, trainer), lock)
        if failure is not None:
            return failure
    together = _scored_together(sweep, point)
    before = [_score_files(sweep.out / one.scored_in) for one in together]
    decoders = f" by {len(together)} decoders at once" if len(together) > 1 else ""
    say(f"{place}: scoring {_model(sweep, point)}{decoders}")
    failure = _step(sweep, point, "eval", _eval_arguments(sweep, together), lock)
    if failure is not None:
        return failure
    names = [
        _written(files, _score_files(sweep.out / one.scored_in), sweep.bench)
        for one, files in zip(together, before, strict=True)
    ]
    name = names[0]
    if name is None or None in names:
        return Failure(point, "eval", 1, _log(sweep, point, "eval"))
    if point.evaluation.without_context:
        say(f"{place}: asking without the contexts")
        failure = _step(sweep, point, "eval", _eval_arguments(sweep, [point], without_context=True), lock) or _step(
            sweep, point, "errors", _errors_arguments(sweep, point, name), lock
        )
        if failure is not None:
            return failure
    for one, written in zip(together, names, strict=True):
        write_whole(sweep.out / one.scored_in / DONE_FILE, f"{written}\n")
    return None


def _how_to_begin(sweep: Sweep, point: Point) -> str:
    run = sweep.out / point.name
    if not (run / RECIPE_FILE).is_file():
        return ""
    # One that gave up by itself (a loss that diverged) would give up again, or worse, pass with its last checkpoint.
    gave_up = _failed_file(sweep, point).is_file()
    resumable = checkpoints_of(run) or next(run.glob("*.safetensors"), None) is None
    return "--overwrite" if gave_up or not resumable else "--resume"


def _trainer(sweep: Sweep, point: Point) -> Point:
    return next(other for other in sweep.points if other.name == point.trained_in)


def _train_arguments(sweep: Sweep, trainer: Point) -> list[str]:
    # Overrides are YAML, to which "a=b,c: d" is more than a text.
    folder = "'" + str(sweep.out / trainer.name).replace("'", "''") + "'"
    how = filter(None, [_how_to_begin(sweep, trainer)])
    return ["train", sweep.recipe, *trainer.overrides, f"train.output_dir={folder}", *how, *sweep.train_arguments]


def _scored_together(sweep: Sweep, point: Point) -> list[Point]:
    """The points of one `d2e eval`: all decoders of a model that scores options, and so reads a prompt once."""
    told = [one for words in sweep.eval_arguments for one in words.split("=")]
    alone = {"--alpha", "--decoder", "--engine", "--launch"} & set(told) or point.evaluation.without_context
    if sweep.plan is None or alone or ("--answer", "likelihood") not in pairwise(told):
        return [point]
    return [
        other
        for other in sweep.to_score
        if other.trained_in == point.trained_in
        and not other.evaluation.without_context
        and point_scores(sweep, other) is None
    ]


def _eval_arguments(sweep: Sweep, points: Sequence[Point], *, without_context: bool = False) -> list[str]:
    point = points[0]
    model, target = _model(sweep, point), str(sweep.out / point.scored_in)
    arguments = ["eval", model, *sweep.bench, *sweep.eval_arguments]
    if len(points) > 1:
        passes = [("--decoder", _decoder(one), "--out", str(sweep.out / one.scored_in)) for one in points]
        return [*arguments, *(word for one in passes for word in one)]
    if target != model:
        arguments += ["--out", target]
    how = {key: str(value) for key, value in point.decoding.record().items() if value is not None}
    # Else the run's recipe says it, which the evaluation reads.
    own = sweep.plan is not None or point.recipe.eval.alpha is not None or target != model
    if not own or {"--alpha", "--decoder"} & set(arguments):
        how.pop("alpha", None)
    if without_context:
        how.pop("decoder", None)  # which contrasts the views, and there only one is left
    arguments += [word for key, value in how.items() for word in (f"--{key}", value)]
    return [*arguments, "--without-context"] if without_context else arguments


def _decoder(point: Point) -> str:
    """The decoder of a point with its options, as one word."""
    if not point.decoding.needs_imagined:
        return "plain"
    return f"d2e:alpha={point.decoding.alpha!r}" if point.decoding.decoder == "d2e" else point.decoding.decoder


def _errors_arguments(sweep: Sweep, point: Point, bench: str) -> list[str]:
    return ["errors", str(sweep.out / point.scored_in), "--bench", bench]


def _model(sweep: Sweep, point: Point) -> str:
    """What is scored: a run folder, or the recipe's model as it is."""
    return str(sweep.out / point.trained_in) if point.train else point.recipe.model.name


def _step(sweep: Sweep, point: Point, step: Step, arguments: list[str], lock: int) -> Failure | None:
    """Run `d2e` in a process of its own, its output in a log; None where it succeeds."""
    log, failed = _log(sweep, point, step), _failed_file(sweep, point)
    status = run_logged(arguments, log, lock, os.environ)
    if status == 0:
        failed.unlink(missing_ok=True)
        return None
    if step == "train" and status > 0:
        failed.touch()
    return Failure(point, step, status, log)


def _score_files(folder: Path) -> dict[str, int]:
    return {file.parent.name: file.stat().st_mtime_ns for file in folder.glob(f"eval/*/{SCORES_FILE}")}


def _written(before: dict[str, int], after: dict[str, int], bench: tuple[str, str]) -> str | None:
    """The benchmark folder that an evaluation wrote, or found complete."""
    changed = [name for name, changed_at in after.items() if before.get(name) != changed_at]
    name = _bench_name(bench)
    candidates = changed or list(after)
    return candidates[0] if len(candidates) == 1 else name if name in candidates else None


def _bench_name(bench: tuple[str, str]) -> str:
    option, given = bench
    path = Path(given).resolve()
    return path.name if option == "--suite" or path.is_dir() else f"{path.parent.name}-{path.stem}"


def _log(sweep: Sweep, point: Point, step: Step) -> Path:
    return sweep.out / _LOGS / f"{point.name}.{step}.log"


def _failed_file(sweep: Sweep, point: Point) -> Path:
    return sweep.out / _LOGS / f"{point.name}.failed"
