"""A sweep of which all but the first point is scored, made up from a few predictions."""

from __future__ import annotations

from pathlib import Path

from eval.sweep.grid import grid, parse_axes
from eval.sweep.record import DONE_FILE, Sweep
from eval.sweep.results import PointResult, collect
from tests.factories import choice, make_run, prediction, story


def make_sweep(folder: Path, *, tagged: bool = False) -> tuple[Sweep, list[PointResult]]:
    """α 0.1 and 1.0, with debiasing and without, where both are alike.

    Args:
        tagged: its rows have subsets; of two conflict rows the first scored point has both right, the others one.
    """
    recipe, out = folder / "recipe.yaml", folder / "out"
    recipe.write_text("model: {name: tiny}\ndata: {train: train.jsonl}\ntrain: {output_dir: unused}\n")
    axes = parse_axes(["d2e.debias=true,false", "d2e.alpha=0.1,1.0"])
    sweep = Sweep(str(recipe), axes, grid(str(recipe), axes, out), out, ("--bench", "mini"), [], [])
    for number, point in enumerate(sweep.to_score[1:]):
        rows = [prediction(1, True), prediction(2, number == 0), choice(3, True, relation="causal")]
        if tagged:
            rows = [story(n, "aligned", "garage", habit="garage") for n in range(2)]
            rows += [story(2 + n, "conflict", "garage" if number == 0 or n else "kitchen") for n in range(2)]
        make_run(out / point.name, rows)
        (out / point.name / DONE_FILE).write_text("mini\n")
    return sweep, collect(sweep)
