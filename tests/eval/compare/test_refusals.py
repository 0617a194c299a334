"""Results that cannot be read or compared are refused; the messages are in `test_refusals.yaml`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.compare.compare import compare_measures, compare_results
from eval.compare.lm_eval import read_samples_folder
from eval.compare.runs import load_measured, load_runs, only_subset, reference_first
from eval.score.measures import MEASURES_FILE, Measure, read_measures
from tests.eval.compare.rows import accuracy, habit_rows, save_result
from tests.eval.compare.test_measures import TIME, arc, sample, save
from tests.factories import bench_rows, make_run, prediction, save_bench
from tests.messages import messages_of


def scored(folder: Path, name: str = "run", count: int = 1, **changes: Any) -> Path:
    return make_run(folder / name, [prediction(n, True) for n in range(count)], **changes)


def several(folder: Path, **changes: Sequence[Any]) -> list[Path]:
    """Runs a, b, … with one of the changes each."""
    both = [dict(zip(changes, values, strict=True)) for values in zip(*changes.values(), strict=True)]
    return [scored(folder, name, **own) for name, own in zip("ab", both, strict=True)]


def tagged_later(folder: Path) -> list[Path]:
    rows = habit_rows(3, 3, of=4)
    untagged = [row.model_copy(update={"subset": None, "habit": []}) for row in rows]
    return [make_run(folder / "new", rows), make_run(folder / "old", untagged)]


def of_system(folder: Path, *benches: str) -> list[Path]:
    """One run with results on each benchmark."""
    return [save_result(folder / "run", accuracy([1, 0]), bench=bench) for bench in benches][:1]


def measures(folder: Path, text: str | None) -> list[Measure]:
    if text is not None:
        (folder / MEASURES_FILE).write_text(text)
    return read_measures(folder)


def samples(folder: Path, text: str) -> object:
    (folder / f"samples_t_{TIME}.jsonl").write_text(text)
    return read_samples_folder(folder)


def harness(folder: Path) -> object:
    tasks = {name: {"arc_easy": arc([1, 0], hashed=hashed)} for name, hashed in (("a", "t"), ("b", "u"))}
    return compare_results(load_measured([save(folder / name, own, {}) for name, own in tasks.items()]))


def two_models(folder: Path) -> object:
    for model in ("a", "b"):
        (folder / model).mkdir()
        (folder / model / f"samples_t_{TIME}.jsonl").write_text(json.dumps(sample(1, acc=1.0)))
    return read_samples_folder(folder)


def against(other: list[Measure]) -> object:
    return compare_measures("wiqa", {"a": accuracy([1.0] * 8), "b": other})


FORM = '[{{"name": "a", "form": "{}", "unit": "q", "gold": "g", "counts": {{"1": [1, 1], "2": {}}}}}]'
test_message = messages_of(__file__, {
    "a run twice": lambda f: load_runs([scored(f), f / "." / "run"]),
    "other files": lambda f: load_runs(several(f, sha256=["a" * 64, "b" * 64])),
    "other samples": lambda f: load_runs(several(f, count=[3, 2])),
    "a part of the samples": lambda f: load_runs(
        several(f, count=[3, 2], subset=[None, {"per_group": 2, "seed": 0, "of": 3}])
    ),
    "subsets that one lacks": lambda f: load_runs(tagged_later(f)),
    "several benchmarks": lambda f: load_runs([scored(f, bench=bench) for bench in ("mini", "full")][:1]),
    "no shared benchmark": lambda f: load_runs(several(f, bench=["one", "two"])),
    "another benchmark": lambda f: load_runs([scored(f)], "left"),
    "a benchmark that one lacks": lambda f: load_runs(several(f, bench=["left", "mini"]), "left"),
    "a suite": lambda f: load_runs([scored(f)], "piper"),
    "a setting and a form": lambda f: load_runs([scored(f)], "piper-few_shot-completion"),
    "a system": lambda f: load_runs([scored(f)], "wiqa"),
    "a system's results as rows": lambda f: load_runs(of_system(f, "wiqa")),
    "two results of systems": lambda f: load_measured(of_system(f, "wiqa", "wiqa-paragraph=no")),
    "rows in place of a run": lambda f: (save_bench(f / "own", bench_rows(2)), load_runs([f / "own"])),
    "no folder": lambda f: load_runs([f / "none"]),
    "no scores": lambda f: load_runs([f]),
    "an id twice": lambda f: load_runs([make_run(f / "run", [prediction(1, True), prediction(1, False)])]),
    "an unknown reference": lambda f: reference_first(load_runs([scored(f, "other")]), "othr"),
    "a subset without a tag": lambda f: only_subset(load_runs([scored(f)]), "conflict"),
    "no measures": lambda f: measures(f, None),
    "measures that are no JSON": lambda f: measures(f, "["),
    "measures that are numbers": lambda f: measures(f, "[1]"),
    "counts that are no pairs of a mean": lambda f: measures(f, FORM.format("mean", "[1, 1]")),
    "counts of other lengths": lambda f: measures(f, FORM.format("share", "[1]")),
    "other items": lambda f: against(accuracy([1.0] * 7)),
    "other gold answers": lambda f: against(accuracy([1.0] * 8, gold="another")),
    "another measure": lambda f: against(accuracy([1.0] * 8, name="F1")),
    "nothing item by item": lambda f: against([]),
    "other documents of the harness": harness,
    "no sample of the harness": lambda f: samples(f, ""),
    "a sample that is no JSON": lambda f: samples(f, "{"),
    "a sample without a document": lambda f: samples(f, "{}"),
    "samples of two models": two_models,
})  # fmt: skip
