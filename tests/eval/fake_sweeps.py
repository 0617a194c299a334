"""Sweeps without a model: their files, points, scores and curves."""

from pathlib import Path
from typing import Any

from eval.compare.reading import Setting, settings
from eval.sweep.plan import Sweep, plan_sweep
from eval.sweep.results import PointResult, collect
from eval.sweep.spec import SweepSpec, read_spec
from tests.factories import choice, make_run, prediction, story


def write_sweep(folder: Path, text: str = "") -> str:
    """Write a recipe and the file of a sweep of it; without text return the recipe."""
    (folder / "train.jsonl").write_text("{}\n")
    recipe, file = folder / "recipe.yaml", folder / "sweep.yaml"
    recipe.write_text(f"model: {{name: tiny}}\ndata: {{train: {folder}/train.jsonl}}\ntrain: {{output_dir: unused}}\n")
    file.write_text(f"recipe: {recipe}\n{text}")
    return str(file if text else recipe)


def planned(folder: Path, *words: str, text: str = "", **changes: Any) -> Sweep:
    """Plan a sweep in FOLDER/out, scored on `mini` unless `changes` to its file say otherwise."""
    (folder / "mini").mkdir(exist_ok=True)
    bench = {"bench": str(folder / "mini"), **changes}
    spec: SweepSpec = read_spec(write_sweep(folder, text)).model_copy(update=bench)
    return plan_sweep(spec, words, folder / "out", "x")


def make_sweep(folder: Path, *, tagged: bool = False) -> tuple[Sweep, list[PointResult]]:
    """Score all but the first point of α 0.1 and 1.0, with and without debiasing; without, both are the same."""
    sweep = planned(folder, "d2e.debias=true,false", "d2e.alpha=0.1,1.0")
    for number, point in enumerate(sweep.work[1:]):
        rows = [prediction(1, True), prediction(2, number == 0), choice(3, True, relation="causal")]
        if tagged:  # the first scored point has both conflict rows right, the others one
            rows = [story(n, "aligned", "garage", habit="garage") for n in range(2)]
            rows += [story(2 + n, "conflict", "garage" if number == 0 or n else "kitchen") for n in range(2)]
        make_run(sweep.out / point.name, rows)
    return sweep, collect(sweep)


def row(way: str, seed: int, step: int, conflict: float, cpu: float, decoder: str = "plain") -> dict[str, Any]:
    return {
        "way": way, "seed": seed, "decoder": decoder, "step": step, "samples": 8 * step,
        "aligned": 1.0, "conflict": conflict, "n": 50, "seconds": cpu, "cpu_seconds": cpu,
    }  # fmt: skip


def probed_rows(**values: Any) -> list[dict[str, Any]]:
    """Three seeds: at equal steps `slow` is as good as `sft`, but a step costs twice as much; `good` is better."""
    found = []
    for seed, bonus in enumerate((0.0, 0.1, 0.05)):
        for step in (0, 10, 20):
            found.append(row("sft", seed, step, step * (0.02 + bonus / 10), step * 1.0))
            found.append(row("slow", seed, step, step * (0.02 + bonus / 10), step * 2.0))
            found.append(row("good", seed, step, min(1.0, step * 0.05), step * 1.0))
            found.append(row("sft", seed, step, 0.0, step * 1.0, "without_context"))
    return [{**one, **values} for one in found]


def probed_settings() -> list[Setting]:
    """The rows above at two strengths, against `sft`."""
    rows = [one for strength in (0.5, 0.95) for one in probed_rows(strength=strength)]
    return settings(["seed", "way", "strength"], {"way": "sft"}, rows)
