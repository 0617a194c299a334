"""Choose the results for a paper table, and name and order its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from d2e_sft.config.recipe import RECIPE_FILE, Recipe, load_recipe
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_json_as
from eval.compare.paper_layouts import Layout, datasets_of, own_datasets
from eval.compare.paper_tables import Entry, PaperTable
from eval.compare.published import check_model, published_row
from eval.compare.runs import distinct_labels, how_to_score_alike, scored_benches
from eval.score.scores import SCORES_FILE, RunScores, read_scores

_SETTINGS = {"zero_shot": "ZS", "few_shot": "FS", "cot": "CoT"}
_FULL = "D²E-SFT"
_VARIANTS = (_FULL, "w/o DIE", "w/o DEE", "w/o BOTH")


class _State(BaseModel):
    log_history: list[dict[str, Any]]


@dataclass(frozen=True)
class Result:
    """One run's scores on one benchmark; models that were not trained here have no `recipe` and no `minutes`."""

    label: str
    run: Path
    bench: str
    scores: RunScores
    recipe: Recipe | None
    minutes: float | None = None

    @property
    def model(self) -> str:
        """The short name of the model that was trained or decoded."""
        name = self.scores.model if self.recipe is None else self.recipe.model.name
        return name.rstrip("/").rpartition("/")[2].removeprefix("builtin:")

    @property
    def method(self) -> str:
        """The row of the ablation: what the recipe leaves out, another objective, or a model that was not trained."""
        if self.recipe is None:
            return "frozen"
        objective, views = self.recipe.d2e.objective, self.recipe.d2e.views
        variant = _VARIANTS[("refined" not in views) + 2 * ("imagined" not in views)]
        return variant if objective in ("sft", "d2e") else f"objective {objective}"

    def facts(self, model: str = "") -> dict[str, Any]:
        """What decides the published row, as if the model had another name if one is given."""
        ratio = _trained(self) if self.recipe is not None else 0.0
        as_trained = self.scores.decoder is None and self.scores.alpha in (None, ratio)
        method = self.method if as_trained else f"{self.method}, decoded otherwise"
        facts = {"model": model or self.model, "method": method, "alpha": ratio, "setting": self.scores.setting}
        return facts | {"refiner": self._refiner()}

    def _refiner(self) -> str | None:
        """Who refined the contexts of the training data, as Table 9 calls it; None if no judge did or if unknown."""
        manifest = None if self.recipe is None else Path(self.recipe.data.train).with_name("manifest.json")
        if self.recipe is None or manifest is None or not manifest.is_file():
            return None
        judge = read_json_as(dict[str, Any], manifest, "a manifest", "build the data again").get("judge") or {}
        name = str(judge.get("model")) if "refine" in judge.get("jobs", ()) else ""
        return "itself" if name == self.recipe.model.name else "GPT-4o" if name.startswith("gpt-4o") else None


def read_table(
    paths: Sequence[Path], layout: Layout, bench: str | None = None, published: str | None = None
) -> PaperTable:
    """Lay out the runs' results; a run that was scored in several settings gets several rows.

    Args:
        bench: the folder name under RUN/eval; None means all with a dataset of the layout.
        published: the model whose published values stand below ours; empty for each run's own, None for none.

    Raises:
        UserError: a run is missing or given twice, has no such result, or was scored on other samples than the rest;
            or the paper has no such model.
    """
    results = []
    for path, label in zip(paths, distinct_labels(paths), strict=True):
        benches = scored_benches(path, bench)
        found = [_read_result(path, label, name) for name in benches]
        results += found if bench is not None else _fitting(path, found, layout)
    for other in results[1:]:
        _check_same_rows(results[0], other)
    return _table(results, layout, published)


def _table(results: Sequence[Result], layout: Layout, published: str | None = None) -> PaperTable:
    """The rows of a layout, named and ordered as in the paper."""
    ranked: dict[str, Callable[[Result], tuple[Entry, Any]]] = {"ablation": _ablation, "sensitivity": _sensitivity}
    name = ranked.get(layout, lambda result: (Entry(result.label, result.scores), 0))
    named = [(*name(result), result) for result in results]
    blocks = list(dict.fromkeys(entry.block for entry, _, _ in named))
    named.sort(key=lambda row: (blocks.index(row[0].block), row[1]))
    rows = [
        (replace(entry, note=_SETTINGS[result.scores.setting], minutes=result.minutes), result)
        for entry, _, result in named
    ]
    entries = _distinct(rows)
    if published is None:
        return PaperTable(layout, entries)
    check_model(published)
    found = [published_row(layout, result.facts(published), result.scores) for _, result in rows]
    compared = [replace(entry, published=row) for entry, row in zip(entries, found, strict=True)]
    return PaperTable(layout, compared, compared=True)


def write_paper_tables(run_folder: Path, bench_name: str) -> list[Path]:
    """Write a run's scores on one benchmark as table.md, table.tex and table.json to their folder; return the files.

    The datasets decide the layout: PIPER's, out of distribution, both (then with table-ood.*), or none.
    """
    folder = run_folder / "eval" / bench_name
    datasets = {group.dataset for group in read_scores(folder / SCORES_FILE).groups}
    layouts: list[Layout] = [layout for layout in ("piper", "ood") if datasets & own_datasets(layout)]
    if not layouts and datasets == {"cider"}:
        layouts = ["piper"]
    written = []
    for layout in layouts:
        table = _table([_read_result(run_folder, run_folder.name, bench_name)], layout)
        written += table.write(folder / ("table" if layout == layouts[0] else f"table-{layout}"))
    return written


def _read_result(path: Path, label: str, bench: str) -> Result:
    scores = read_scores(path / "eval" / bench / SCORES_FILE)
    # Results may be outside their run (`d2e eval RUN --out FOLDER`), and a run may have moved since it was scored.
    folders = [folder for folder in (Path(scores.model), path) if (folder / RECIPE_FILE).is_file()]
    if not folders:
        return Result(label, path, bench, scores, None)
    return Result(label, path, bench, scores, load_recipe(folders[0] / RECIPE_FILE), _minutes(folders[0]))


def _minutes(run: Path) -> float | None:
    """How long the training took, of a resumed one its last session; None if the run has no such log."""
    path = run / "trainer_state.json"
    remedy = "copy it again from the run's last checkpoint, or remove it"
    history = read_json_as(_State, path, "a trainer state", remedy).log_history if path.is_file() else []
    seconds = [entry["train_runtime"] for entry in history if "train_runtime" in entry]
    return seconds[-1] / 60 if seconds else None


def _fitting(path: Path, results: Sequence[Result], layout: Layout) -> list[Result]:
    datasets = {result.bench: {group.dataset for group in result.scores.groups} for result in results}
    for wanted in (own_datasets(layout), datasets_of(layout)):
        if fitting := [result for result in results if datasets[result.bench] & wanted]:
            return fitting
    held = "; ".join(f"{bench}: {', '.join(sorted(own))}" for bench, own in datasets.items())
    raise UserError(
        f"{path}: scored on none of the datasets of the layout {layout!r} ({', '.join(sorted(datasets_of(layout)))}), "
        f"only on {held}",
        remedy=f"d2e eval {path} --suite {'ood' if layout == 'ood' else 'piper'}",
    )


def _check_same_rows(first: Result, other: Result) -> None:
    one, two = first.scores, other.scores
    by_path = {str(result.run): result.scores for result in (first, other)}
    if (one.bench.sha256, one.subset) != (two.bench.sha256, two.subset):
        raise UserError(
            f"{first.run} ({first.bench}) and {other.run} ({other.bench}) were scored on different samples: "
            + " and ".join(
                f"{own.bench.file} (sha256 {own.bench.sha256[:16]}…, {own.subset or 'all of it'})"
                for own in (one, two)
            ),
            remedy=f"choose one benchmark with --bench NAME, or {how_to_score_alike(by_path)}",
        )


def _ablation(result: Result) -> tuple[Entry, Any]:
    """A row named by the parts of the method that its recipe leaves out, and its rank within its block."""
    variant, how, order = result.method, _other_decoding(result), ["frozen", *_VARIANTS]
    label = f"{result.model} ({variant}{how})" if variant in ("frozen", _FULL) else f"- {variant}{how}"
    rank = (order.index(variant), "") if variant in order else (len(order), variant)
    return Entry(label, result.scores, block=result.model, facts={"variant": variant}), rank


def _sensitivity(result: Result) -> tuple[Entry, Any]:
    """A row named by its α."""
    whole = result.recipe is None or "refined" in result.recipe.d2e.views
    model = result.model if whole else f"{result.model}, w/o DIE"
    label = f"{model} (α={_trained(result):g}{_other_decoding(result)})"
    return Entry(label, result.scores, block=model), _trained(result)


def _other_decoding(result: Result) -> str:
    """The addition to a row's name if it was not decoded as its objective is."""
    scores = result.scores
    how = scores.decoder or ("" if scores.alpha in (None, _trained(result)) else f"{scores.alpha:g}")
    return (f", decoded with {how}" if how else "") + (f", β={scores.plausibility:g}" if scores.plausibility else "")


def _trained(result: Result) -> float:
    return (result.scores.alpha or 0.0) if result.recipe is None else result.recipe.d2e.effective_alpha


def _distinct(rows: Sequence[tuple[Entry, Result]]) -> list[Entry]:
    """The entries, with the run or the benchmark in names that would be equal."""
    named = [entry for entry, _ in rows]
    for more in ("label", "bench"):
        names = [(entry.block, entry.label, entry.note) for entry in named]
        for place, (_, result) in enumerate(rows):
            if names.count(names[place]) > 1:
                named[place] = replace(named[place], label=f"{named[place].label} [{getattr(result, more)}]")
    facts = [{"run": str(result.run), "bench": result.bench} for _, result in rows]
    return [replace(entry, facts={**entry.facts, **own}) for entry, own in zip(named, facts, strict=True)]
