"""The paper's result tables: which results are rows, what they are called, their values, and the formats.

A column averages its sources in two steps: over the datasets of a relation, or over the relations of a dataset. Both
are plain means of the rows' scores, whatever the rows' sizes, as the paper averages.
"""

from __future__ import annotations

import json
import re
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from d2e_sft.config.recipe import RECIPE_FILE, Recipe, load_recipe
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_json_as, write_whole
from d2e_sft.util.markup import latex_table
from d2e_sft.util.table import Styled, Table
from eval.compare.decoding import DecodingDifferences, decoding_differences
from eval.compare.paper_layouts import (
    ANY,
    LAYOUTS,
    TRAINING,
    Cell,
    Layout,
    PaperValue,
    Source,
    above,
    best_of_blocks,
    datasets_of,
    own_datasets,
    rounded,
)
from eval.compare.published import Published, check_model, published_row
from eval.compare.runs import distinct_labels, how_to_score_alike, scored_benches, training_log
from eval.score.scores import SCORES_FILE, RunScores, read_scores

ENDINGS = {"markdown": "md", "latex": "tex", "json": "json"}  # format → ending of a file
_SETTINGS = {"zero_shot": "ZS", "few_shot": "FS", "cot": "CoT"}
_FULL, _SFT, _FROZEN = "D²E-SFT", "w/o BOTH", "frozen"
_VARIANTS = (_FULL, "w/o DIE", "w/o DEE", _SFT)
# Bounds between classes of model size, in billions of parameters: of the paper's, 7B, 13B to 14B, and larger.
_SIZES = (1, 3, 10, 20)
_TITLES: dict[Layout, str] = {
    "piper": "PIPER.",
    "tuned": "PIPER before and after training.",
    "ablation": "Ablation on PIPER: DIE is distillation, DEE debiasing.",
    "sensitivity": "Sensitivity to the debias ratio α: averages over the datasets of a relation.",
    "refiner": "Who refined the contexts: averages over the datasets of a relation.",
    "ood": "Out of distribution; CIDER is averaged over its relations.",
    "cost": "Computational costs.",
}


@dataclass(frozen=True)
class PaperRow:
    """One run's scores on one benchmark; the best value of a `block` is marked.

    Models that were not trained here have no `recipe` and no `minutes` of training.
    """

    name: str
    run: Path
    bench: str
    scores: RunScores
    recipe: Recipe | None
    minutes: float | None
    block: str = ""
    published: Published | None = None

    @property
    def model(self) -> str:
        name = self.scores.model if self.recipe is None else self.recipe.model.name
        return name.rstrip("/").rpartition("/")[2].removeprefix("builtin:")

    @property
    def method(self) -> str:
        """The row of the ablation: what the recipe leaves out, another objective, or a model that was not trained."""
        if self.recipe is None:
            return _FROZEN
        objective, views = self.recipe.d2e.objective, self.recipe.d2e.views
        variant = _VARIANTS[("refined" not in views) + 2 * ("imagined" not in views)]
        return variant if objective in ("sft", "d2e") else f"objective {objective}"

    @property
    def size(self) -> int:
        """The model's class of size, by a number in its name; without one, as of endpoints, the largest."""
        match = re.search(r"(\d+(?:\.\d+)?)([bm])(?![a-z])", self.model.lower())
        return len(_SIZES) if match is None else bisect(_SIZES, float(match[1]) / {"b": 1, "m": 1000}[match[2]])

    @property
    def alpha(self) -> float:
        """The debias ratio of the training, or of the decoding of a model that was not trained."""
        return (self.scores.alpha or 0.0) if self.recipe is None else self.recipe.d2e.effective_alpha

    @property
    def other_decoding(self) -> str:
        """The addition to the row's name if it was not decoded as its objective is."""
        scores = self.scores
        decoder = scores.decoder or ("" if scores.alpha in (None, self.alpha) else f"{scores.alpha:g}")
        return (f", decoded with {decoder}" if decoder else "") + (
            f", β={scores.plausibility:g}" if scores.plausibility else ""
        )

    def facts(self, model: str) -> dict[str, Any]:
        """What decides the published row, as if the model had another name if one is given."""
        ratio = 0.0 if self.recipe is None else self.alpha
        as_trained = self.scores.decoder is None and self.scores.alpha in (None, ratio)
        refiner = None  # who refined the contexts of the training data, as Table 9 calls it
        manifest = None if self.recipe is None else Path(self.recipe.data.train).with_name("manifest.json")
        if self.recipe is not None and manifest is not None and manifest.is_file():
            built = read_json_as(dict[str, Any], manifest, "a manifest", "build the data again")
            judge = built.get("refiner") or built.get("judge") or {}
            name = str(judge.get("model")) if "refine" in judge.get("jobs", ()) else ""
            refiner = "itself" if name == self.recipe.model.name else "GPT-4o" if name.startswith("gpt-4o") else None
        return {
            "model": model or self.model,
            "method": self.method if as_trained else f"{self.method}, decoded otherwise",
            "alpha": ratio,
            "setting": self.scores.setting,
            "refiner": refiner,
        }

    def values(self, layout: Layout) -> list[PaperValue]:
        """The value of each column: mean of EM and F1 in percent, minutes of training, or milliseconds a sample."""
        known: dict[Source, float] = {}
        if layout == "cost":
            known = {} if self.minutes is None else {(TRAINING, ANY): self.minutes}
            known |= {(ANY, name): 1000 * t.seconds / t.samples for name, t in self.scores.timed.items()}
        else:  # a dataset in two formats is averaged by sample
            for source in dict.fromkeys((group.dataset, group.relation) for group in self.scores.groups):
                groups = [group for group in self.scores.groups if (group.dataset, group.relation) == source]
                known[source] = sum(100 * g.mean.mean * g.n for g in groups) / sum(g.n for g in groups)
        values = []
        for column in LAYOUTS[layout]:
            means = {}
            for dataset, relation in column.sources:
                if hits := [value for (name, of), value in known.items() if name == dataset and relation in (of, "*")]:
                    means[dataset, relation] = sum(hits) / len(hits)
            mean = sum(means.values()) / len(means) if means else None
            values.append(PaperValue(mean, tuple(means), 0 < len(means) < len(column.sources)))
        return values


@dataclass(frozen=True)
class PaperTable:
    """Rows in a layout; `compared` if published values were looked for."""

    layout: Layout
    rows: Sequence[PaperRow]
    compared: bool = False

    @property
    def decoding(self) -> DecodingDifferences:
        """Where the decoding of the rows differs."""
        names = [row.name for row in self.rows]
        labels = [
            name if names.count(name) == 1 else f"{name} [{row.run}, {row.bench}]"
            for name, row in zip(names, self.rows, strict=True)
        ]
        results = [(row.run / "eval" / row.bench, row.scores) for row in self.rows]
        return decoding_differences(dict(zip(labels, results, strict=True)))

    @property
    def table(self) -> Table:
        columns, first = LAYOUTS[self.layout], "Models" if self.layout in ("piper", "tuned", "ablation") else "Methods"
        header: list[Any] = [first, *(column.header for column in columns)]
        if columns[0].over:
            header = [("", first), *((column.over, column.header) for column in columns)]
        ranks, stars, lines = self.ranks(), self.stars(), []
        for place, row in enumerate(self.rows):
            values = row.values(self.layout)
            cells = [
                Styled.of(f"{value}{'*' * ((place, number) in stars)}", best=rank == 1, second=rank == 2)
                for number, value in enumerate(values)
                for rank in [ranks.get((place, number))]
            ]
            lines.append((row.block, [Styled.of(row.name, note=_SETTINGS[row.scores.setting]), *cells]))
            if row.published is not None:
                ours = [None if value.percent is None else rounded(value.percent) for value in values]
                lines += [(row.block, line) for line in row.published.rows(ours)]
        bold = "bold" if self.layout == "tuned" else "best"
        return Table.in_blocks("", header, lines, _TITLES[self.layout], notes=list(self._notes()), bold=bold)

    def above(self, method: str) -> set[Cell]:
        """The values of trained models above those of the same model by a method, decoded as it was trained."""
        rivals = {}
        for place, row in enumerate(self.rows):
            if row.method not in (_FROZEN, method):
                rivals[place] = [
                    i
                    for i, rival in enumerate(self.rows)
                    if (rival.model, rival.method, rival.scores.setting) == (row.model, method, row.scores.setting)
                    and not rival.other_decoding
                    and not (rival.recipe is None and rival.alpha)
                ]
        return above([row.values(self.layout) for row in self.rows], rivals)

    def ranks(self) -> dict[Cell, int]:
        """(row, column) → 1 for the values that are bold, 2 for those underlined.

        In the layout `tuned` the best frozen value of a block is bold, and a trained model's if it is above the frozen
        one's. Otherwise the best and second best of each block are marked, but no times.
        """
        values = [row.values(self.layout) for row in self.rows] if self.layout != "cost" else []
        ranks = best_of_blocks(values, [row.block for row in self.rows])
        if self.layout != "tuned":
            return ranks
        best = {cell for cell, rank in ranks.items() if rank == 1 and self.rows[cell[0]].method == _FROZEN}
        return dict.fromkeys(best | self.above(_FROZEN), 1)

    def stars(self) -> set[Cell]:
        return self.above(_SFT) if self.layout == "tuned" else set()

    def to_json(self) -> str:
        """Values in percent, or times, not rounded, by the columns' keys; null if missing."""
        ranks, stars = self.ranks(), self.stars()
        keys, rows = [column.key for column in LAYOUTS[self.layout]], []
        for place, row in enumerate(self.rows):
            values = dict(zip(keys, row.values(self.layout), strict=True))
            marked = {
                name: [key for number, key in enumerate(keys) if ranks.get((place, number)) == rank]
                for rank, name in enumerate(("bold",) if self.layout == "tuned" else ("best", "second"), start=1)
            }
            if self.layout == "tuned":
                marked["above_sft"] = [key for number, key in enumerate(keys) if (place, number) in stars]
            rows.append(
                {
                    "label": row.name,
                    "block": row.block,
                    "setting": row.scores.setting,
                    **row.scores.decoding,
                    "model": row.scores.model,
                    **({"variant": row.method} if self.layout == "ablation" else {}),
                    "run": str(row.run),
                    "bench": row.bench,
                    **({} if row.published is None else {"published": asdict(row.published)}),
                    "values": {key: value.percent for key, value in values.items()},
                    "partial": [key for key, value in values.items() if value.partial],
                    **marked,
                }
            )
        content = {"layout": self.layout, "columns": keys, "rows": rows, "notes": list(self._notes())}
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    def render(self, form: str) -> str:
        """The table as text, with a newline at its end; `form` is a key of ENDINGS or `text`, for the terminal."""
        if form == "json":
            return self.to_json()
        if form == "latex":
            return latex_table(self.table, self.layout)
        return (self.table.markdown() if form == "markdown" else self.table.terminal()) + "\n"

    def write(self, stem: Path) -> list[Path]:
        """Write the table in each format of ENDINGS; returns the files."""
        files = [stem.with_name(f"{stem.name}.{ending}") for ending in ENDINGS.values()]
        for form, file in zip(ENDINGS, files, strict=True):
            write_whole(file, self.render(form))
        return files

    def _notes(self) -> Iterator[str]:
        if any(row.published is not None for row in self.rows):
            yield "Differences are ours minus published; ‡ our 95 % interval excludes the published value."
        elif self.compared:
            yield "No published row is of these models, methods and settings."
        if line := self.decoding.line():
            yield line
        if self.layout == "cost":
            yield "Milliseconds a sample of each relation in one process, its share of its batch's time."
            yield "Compare runs on one machine with one batch size. – not recorded, as with vLLM and endpoints."
            return
        yield "Mean of exact match and token-level F1, in percent."
        if self.layout == "tuned":
            yield "Bold: the best frozen model of its size; of a trained model, above the same model frozen."
            yield "* above the same model trained by plain SFT."
        values = [value for row in self.rows for value in row.values(self.layout)]
        if any(value.percent is None for value in values):
            yield "– not scored."
        if any(value.partial for value in values):
            yield "† average of fewer datasets than the paper's."
        limits = dict.fromkeys(
            row.scores.subset.get("per_group") for row in self.rows if row.scores.subset is not None
        )
        yield from (f"Scored on a subset{f': at most {n} samples of each row' if n else ''}." for n in limits)
        groups = [group for row in self.rows for group in row.scores.groups]
        left = {f"{g.dataset} ({g.relation})" for g in groups if g.dataset not in datasets_of(self.layout)}
        if left:
            yield f"Scored but without a place in this table: {', '.join(sorted(left))}."


def read_table(
    paths: Sequence[Path], layout: Layout | None, bench: str | None = None, published: str | None = None
) -> PaperTable:
    """Lay out the runs' results; a run that was scored in several settings gets several rows.

    Args:
        layout: None means `tuned` if a run was trained here, otherwise `piper`.
        bench: the folder name under RUN/eval; None means all with a dataset of the layout.
        published: the model whose published values stand below ours; empty for each run's own, None for none.

    UserError if a run is missing, given twice, without such a result, or scored on other samples than the rest. Also
    if the paper has no such model.
    """
    rows: list[PaperRow] = []
    for path, label in zip(paths, distinct_labels(paths), strict=True):
        scored = [_read_row(path, label, name) for name in scored_benches(path, bench)]
        datasets = {row.bench: {group.dataset for group in row.scores.groups} for row in scored}
        sets = (datasets_in(layout or "piper") for datasets_in in (own_datasets, datasets_of))
        choices = ([row for row in scored if datasets[row.bench] & names] for names in sets)
        fitting = next(filter(None, choices), None)
        if fitting is None:
            present = "; ".join(f"{name}: {', '.join(sorted(names))}" for name, names in datasets.items())
            name: Layout = layout or "piper"
            expected = ", ".join(sorted(datasets_of(name)))
            raise UserError(
                f"{path}: scored on none of the datasets of the layout {name!r} ({expected}), only on {present}",
                remedy=f"d2e eval {path} --suite {'ood' if layout == 'ood' else 'piper'} scores these; d2e compare "
                "lays out the others",
            )
        rows += fitting
    for row in rows[1:]:
        _check_same_rows(rows[0], row)
    return _table(rows, layout or ("tuned" if any(row.recipe for row in rows) else "piper"), published)


def write_paper_tables(run_folder: Path, bench_name: str) -> list[Path]:
    """Write a run's scores on one benchmark as table.md, table.tex and table.json to their folder.

    The datasets decide the layout: PIPER's, out of distribution, both (then with table-ood.*), or none.
    """
    folder, row = run_folder / "eval" / bench_name, _read_row(run_folder, run_folder.name, bench_name)
    datasets = {group.dataset for group in row.scores.groups}
    layouts: list[Layout] = [layout for layout in ("piper", "ood") if datasets & own_datasets(layout)]
    if not layouts and datasets == {"cider"}:
        layouts = ["piper"]
    stems = [folder / ("table" if layout == layouts[0] else f"table-{layout}") for layout in layouts]
    return [file for layout, stem in zip(layouts, stems, strict=True) for file in _table([row], layout).write(stem)]


def _read_row(path: Path, label: str, bench: str) -> PaperRow:
    scores = read_scores(path / "eval" / bench / SCORES_FILE)
    # Results may be outside their run (`d2e eval RUN --out FOLDER`), and a run may have moved since it was scored.
    folders = [folder for folder in (Path(scores.model), path) if (folder / RECIPE_FILE).is_file()]
    if not folders:
        return PaperRow(label, path, bench, scores, None, None)
    ends = [entry for entry in training_log(folders[0]) if "train_runtime" in entry]
    # Older runs have the time of their last session alone.
    minutes = ends[-1].get("train_seconds", ends[-1]["train_runtime"]) / 60 if ends else None
    return PaperRow(label, path, bench, scores, load_recipe(folders[0] / RECIPE_FILE), minutes)


def _check_same_rows(first: PaperRow, other: PaperRow) -> None:
    one, two = first.scores, other.scores
    if (one.bench.sha256, one.subset) != (two.bench.sha256, two.subset):
        files = [f"{s.bench.file} (sha256 {s.bench.sha256[:16]}…, {s.subset or 'all of it'})" for s in (one, two)]
        alike = how_to_score_alike({str(first.run): one, str(other.run): two})
        raise UserError(
            f"{first.run} ({first.bench}) and {other.run} ({other.bench}) were scored on different samples: "
            f"{' and '.join(files)}",
            remedy=f"choose one benchmark with --bench NAME, or {alike}",
        )


def _table(rows: Sequence[PaperRow], layout: Layout, published: str | None = None) -> PaperTable:
    """The rows of a layout, named and ordered as in the paper, with the run or benchmark in names that are equal."""
    ranked = [_ranked(row, layout) for row in rows]
    blocks = sorted(dict.fromkeys(row.block for row, _, _ in ranked), key="trained".__eq__)
    ranked.sort(key=lambda entry: (blocks.index(entry[0].block), entry[1]))
    renamed, labels = [row for row, _, _ in ranked], [label for _, _, label in ranked]
    for more in (labels, [row.bench for row in renamed]):
        names = [(row.block, row.name, row.scores.setting) for row in renamed]
        for place, row in enumerate(renamed):
            if names.count(names[place]) > 1:
                renamed[place] = replace(row, name=f"{row.name} [{more[place]}]")
    if published is None:
        return PaperTable(layout, renamed)
    check_model(published)
    compared = [replace(row, published=published_row(layout, row.facts(published), row.scores)) for row in renamed]
    return PaperTable(layout, compared, compared=True)


def _ranked(row: PaperRow, layout: Layout) -> tuple[PaperRow, Any, str]:
    """The row with its name and block, its rank within the block, and the label of its run."""
    variant, name, block, rank = row.method, row.name, "", (0, "")
    if layout == "piper" or (layout == "tuned" and variant == _FROZEN):
        block = f"{row.size}, {row.scores.setting}"
    elif layout == "tuned":
        block = "trained"
    elif layout == "ablation":  # named by the parts of the method that its recipe leaves out
        block, order = row.model, [_FROZEN, *_VARIANTS]
        name = f"- {variant}{row.other_decoding}"
        if variant in (_FROZEN, _FULL):
            name = f"{row.model} ({variant}{row.other_decoding})"
        rank = (order.index(variant), "") if variant in order else (len(order), variant)
    elif layout == "sensitivity":  # named by its α
        whole = row.recipe is None or "refined" in row.recipe.d2e.views
        block = row.model if whole else f"{row.model}, w/o DIE"
        name, rank = f"{block} (α={row.alpha:g}{row.other_decoding})", (row.alpha, "")  # type: ignore[assignment]
    return replace(row, name=name, block=block), rank, row.name
