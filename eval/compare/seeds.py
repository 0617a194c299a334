"""Ways of training compared over seeds: each is a group of runs, named by a pattern, and paired with others by seed.

A seed counts as one observation: its scores are those of an ordinary comparison of the runs with this seed. Means over
seeds have t intervals, and differences paired t-tests, as in sweeps; p-values are corrected as without seeds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from d2e_sft.config.recipe import Recipe, flat, recipe_of
from d2e_sft.data.sample import ENOUGH_ROWS
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_json_as
from eval.compare.compare import COLUMNS, NUMBERS, Comparison, compare_scores, joined
from eval.compare.decoding import decoding_of_runs
from eval.compare.reading import over_seeds, paired, way_of
from eval.compare.runs import MeasuredRun, ScoredRun, costs_of_runs, distinct_labels, load_results
from eval.score.frame import GAP
from eval.score.scores import SCORE_AGAIN, SCORES_FILE

_WILD = r"(?<=/)(\*|\?|\[[^\]]*\])+[-_,. ]*|[-_,. ]*(\*|\?|\[[^\]]*\])+"  # with the separator next to it
OWN_BUILDS = "a build for each seed"
_NARROW = "narrow the pattern to the runs of one way of training"


def load_seeds(patterns: Sequence[Path], bench: str | None) -> list[ScoredRun | MeasuredRun]:
    """Read the runs of each pattern, such as `runs/sft-*`, with their seeds and the patterns' names as labels.

    Runs of one seed (`train.seed`) were scored on the same samples; those of another seed may have samples of their
    own. UserError as of `load_results`, or if a pattern matches fewer than two runs, or the patterns have different
    seeds. Also if the runs of a pattern differ in more than the seed and the files.
    """
    groups = [_runs_of(pattern) for pattern in patterns]
    distinct_labels([run for runs in groups for run in runs.values()])  # refuses a run of two groups
    bare = [Path(re.sub(_WILD, "", str(pattern))) for pattern in patterns]
    labels = distinct_labels(bare) if len({*bare}) == len(bare) else [str(pattern) for pattern in patterns]
    for pattern, runs in zip(patterns, groups, strict=True):
        if runs.keys() != groups[0].keys():
            raise UserError(
                f"--seeds: the patterns have different seeds: {patterns[0]} has {_listed(groups[0])}; {pattern} has "
                f"{_listed(runs)}; expected the same ones",
                remedy="train and score the missing seeds, or narrow the patterns",
            )
    return load_groups(dict(zip(labels, groups, strict=True)), dict.fromkeys(groups[0], bench))


def load_groups(
    groups: Mapping[str, Mapping[int, Path]], benches: Mapping[int, str | None]
) -> list[ScoredRun | MeasuredRun]:
    """Read the runs of each label by their seeds, on the benchmark of each seed; UserError as of `load_results`."""
    by_seed = {seed: load_results([runs[seed] for runs in groups.values()], bench) for seed, bench in benches.items()}
    return [
        replace(runs[n], label=label, seed=seed) for n, label in enumerate(groups) for seed, runs in by_seed.items()
    ]


def _listed(seeds: Mapping[int, Path]) -> str:
    return ", ".join(map(str, seeds))


def _runs_of(pattern: Path) -> dict[int, Path]:
    folders = [Path(name) for name in sorted(glob(str(pattern))) if Path(name).is_dir()]
    if len(folders) < 2:
        matched = f"matches {'only one folder' if folders else 'no folder'}; expected runs of two seeds or more"
        remedy = "give each way of training as a pattern in quotes, such as 'runs/sft-*'"
        raise UserError(f"--seeds {pattern}: {matched}", remedy)
    recipes = {folder: _recipe(folder) for folder in folders}
    runs, (first, recipe) = dict[int, Path](), next(iter(recipes.items()))
    for folder, r in recipes.items():
        was, now = (dict(flat(way_of(item))) for item in (recipe, r))
        if was != now:
            key = next(key for key in {**was, **now} if was.get(key) != now.get(key))
            values = f"{key} is {was.get(key)!r} and {now.get(key)!r}"
            raise UserError(f"--seeds {pattern}: {first} and {folder} differ in more than the seed: {values}", _NARROW)
        if (twin := runs.setdefault(r.train.seed, folder)) is not folder:
            raise UserError(f"--seeds {pattern}: {twin} and {folder} have the same seed {r.train.seed}", _NARROW)
    return dict(sorted(runs.items()))


def _recipe(folder: Path) -> Recipe:
    """Return the recipe of a run, or of the run whose model was scored into the folder (`d2e eval RUN --out`)."""
    files = sorted(folder.glob(f"eval/*/{SCORES_FILE}"))
    scored = (read_json_as(dict[str, Any], file, "scores", SCORE_AGAIN).get("model") for file in files)
    for model in (folder, *scored):
        if (recipe := recipe_of(str(model))) is not None:
            return recipe
    raise UserError(f"--seeds: {folder} has no recipe, so its seed is unknown; expected a training", _NARROW)


def compare_seeds(runs: Sequence[ScoredRun | MeasuredRun]) -> Comparison:
    """Compare the groups that `load_seeds` read; differences are to the first one.

    Scores that a seed lacks, such as those of a subset with few rows, are named in `left_out`.
    """
    seeds = dict.fromkeys(run.seed for run in runs)
    results = [compare_scores([run for run in runs if run.seed == seed]) for seed in seeds]
    tables = [c.scores.assign(seed=seed) for seed, c in zip(seeds, results, strict=True)]
    by_seed = pd.concat(tables, ignore_index=True)
    small = {f"{dataset} {subset}" for c in results for dataset, subset, _ in c.small_subsets or {}}
    rows, lacking = list[tuple[Any, ...]](), list[tuple[str, ...]]()
    for key, group in by_seed.groupby(COLUMNS, sort=False):
        if len(group) < len(results):
            lacking.append(key)
            continue
        least = -1.0 if GAP in key or key[0] == "measures" else 0.0  # what may be negative
        score, changes = over_seeds(group["mean"], least), group["change"].dropna()
        change = paired(changes, float(group["n"].sum())) if len(changes) == len(results) else None
        tests = (np.nan,) * 4 if change is None else (change.mean, change.low, change.high, change.p_value)
        rows.append((*key, *group[["rows", "n"]].mean().round(), score.mean, score.low, score.high, *tests))
    scores = joined([DataFrame(rows, columns=[*COLUMNS, *NUMBERS])])
    groups = {row[:6] for row in rows}  # groups of which a measure is left
    left_out = [
        " ".join(filter(None, key[1 : 7 if key[:6] in groups or key[0] == "measures" else 6])) for key in lacking
    ]
    left_out += [*results[0].left_out, *(f"{name} (fewer than {ENOUGH_ROWS} rows)" for name in sorted(small))]
    facts: dict[str, Any] = {
        "bench": _shared_name([c.bench for c in results]),
        "by_seed": by_seed,
        "left_out": tuple(dict.fromkeys(left_out)),
        "small_subsets": None,
    }
    facts |= {"decoding": decoding_of_runs(runs), "costs": costs_of_runs(runs)}
    return replace(results[0], scores=scores, **facts)


def _shared_name(benches: Sequence[str]) -> str:
    """Return the benchmark's name; of several, the words they share: `datasets-habit---seed-0` and so on are `habit`.

    A build's folder is named by the words of its command, so `seed` and `datasets` are left out as words of options.
    """
    if len({*benches}) == 1:
        return benches[0]
    names = [re.split(r"-+|_(?=\d+(?:-|$))", name) for name in benches]
    differs = [len({*words}) > 1 for words in zip(*names, strict=False)] + [True]
    kept = [
        word
        for place, word in enumerate(names[0][: len(differs) - 1])
        if not (differs[place] or (word == "seed" and differs[place + 1]) or (place == 0 and word == "datasets"))
    ]
    name = "-".join(word.removeprefix(f"{kept[0]}.") for word in kept)  # `habit-habit.strength` says habit twice
    return ", ".join(filter(None, (name, OWN_BUILDS)))
