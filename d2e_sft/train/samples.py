"""The samples that a training reads, before any of them is a token; nothing here imports torch."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.rows import file_of
from d2e_sft.data.sample import BadRow, EventSample, Subset, read_samples
from d2e_sft.util.errors import UserError

Split = Literal["training", "dev"]
# Names of the probe's values: `eval_plain_aligned`, ….
PREFIX = "eval_"
PLAIN, DEBIASED, IMAGINED = "plain", "debiased", "imagined"
PROBED: tuple[Subset, ...] = ("aligned", "conflict")


@dataclass(frozen=True)
class ReadSamples:
    """The samples of a file: their number, those that are used, and the rows that data.skip_bad skipped."""

    in_file: int
    chosen: list[EventSample]
    bad_rows: list[BadRow]


def read_split(recipe: Recipe, split: Split) -> ReadSamples:
    """Read and choose the samples of `data.train` or `data.dev`; errors are those of `read_samples`."""
    data, bad_rows = recipe.data, list[BadRow]()
    file = data.train if split == "training" else data.dev
    assert file is not None
    samples = read_samples(
        file_of(file, "train" if split == "training" else "dev"), bad_rows=bad_rows if data.skip_bad else None
    )
    chosen = used_samples(samples, recipe, split)
    if split == "training":
        Balance.of(data.balance, ({"subset": sample.subset} for sample in chosen), file)
    return ReadSamples(len(samples), chosen, bad_rows)


def used_samples(samples: Sequence[EventSample], recipe: Recipe, split: Split | None) -> list[EventSample]:
    """Return at most as many samples as the recipe takes of the split, without contexts if it leaves them out."""
    data = recipe.data
    limit = data.max_samples if split == "training" else data.max_dev_samples if split == "dev" else None
    chosen = choose_samples(samples, limit, recipe.train.seed)
    if data.without_context:
        chosen = [sample.model_copy(update={"context": "", "refined_context": None}) for sample in chosen]
    return chosen


def read_all(recipe: Recipe) -> dict[str, Any]:
    """Read the samples of `data.train`, `data.dev` and `data.probe`, as arguments of a `D2ETrainer`."""
    return {
        "train_dataset": read_split(recipe, "training"),
        "eval_dataset": read_split(recipe, "dev") if recipe.data.dev else None,
        "probe_dataset": probe_samples(recipe) if recipe.data.probe is not None else None,
    }


def probe_samples(recipe: Recipe) -> list[EventSample]:
    """Return aligned and conflict samples of `data.probe`, equally many of each, at most `data.max_probe_samples`."""
    return of_both_subsets(read_samples(str(recipe.data.probe)), f"data.probe={recipe.data.probe}", recipe)


def of_both_subsets(samples: Sequence[EventSample], name: str, recipe: Recipe) -> list[EventSample]:
    """Return the aligned samples, then the conflict ones, at most half of `data.max_probe_samples` each."""
    limit = recipe.data.max_probe_samples
    per_subset = None if limit is None else max(1, limit // len(PROBED))
    by_subset = {subset: [sample for sample in samples if sample.subset == subset] for subset in PROBED}
    for subset, of_subset in by_subset.items():
        if not of_subset:
            subsets = sorted({str(sample.subset) for sample in samples})
            raise UserError(
                f"{name}: no sample's subset is {subset!r}; its samples have {', '.join(subsets)}",
                remedy="name a file with both, such as the test rows of `d2e data build --datasets habit`",
            )
    seed = recipe.train.seed
    return [sample for of_subset in by_subset.values() for sample in choose_samples(of_subset, per_subset, seed)]


def probe_groups(samples: Sequence[EventSample]) -> list[str]:
    """Return the name of each sample's group: its subset, in the first dataset that has both, else `SUBSET_DATASET`.

    If no dataset has both, all count as one.
    """
    pairs = {(sample.dataset, sample.subset) for sample in samples}
    datasets = dict.fromkeys(sample.dataset for sample in samples)
    first = next((name for name in datasets if all((name, subset) in pairs for subset in PROBED)), None)
    return [
        f"{sample.subset}" if first in (None, sample.dataset) else f"{sample.subset}_{sample.dataset}"
        for sample in samples
    ]


def choose_samples(samples: Sequence[EventSample], limit: int | None, seed: int) -> list[EventSample]:
    """At most `limit` samples, taken evenly from the datasets with a seed, in file order."""
    if limit is None or limit >= len(samples):
        return list(samples)
    groups: dict[str, list[int]] = defaultdict(list)
    for i, sample in enumerate(samples):
        groups[sample.dataset].append(i)
    generator = random.Random(seed)
    for indices in groups.values():
        generator.shuffle(indices)
    chosen: list[int] = []
    # One from each dataset per round, so that the share of a small dataset goes to the others.
    while len(chosen) < limit:
        for indices in groups.values():
            if indices and len(chosen) < limit:
                chosen.append(indices.pop())
    return [samples[i] for i in sorted(chosen)]


@dataclass(frozen=True)
class Balance:
    """How often an epoch shows each row if conflict rows have a share of their own (`data.balance`).

    Few conflict rows among many aligned ones teach a model little about the context. Repeating them, and leaving as
    many aligned rows out of each epoch, is simple data balancing (arXiv 2110.14503). Just Train Twice (arXiv
    2107.09044) repeats the rows that a first model got wrong. Rows are indices by subset; `shown` are the conflict
    rows of an epoch, with repetitions.
    """

    conflict: list[int]
    aligned: list[int]
    others: list[int]
    shown: int

    @classmethod
    def of(cls, share: float | None, rows: Iterable[Mapping[str, Any]], name: str = "train_dataset") -> Self | None:
        """Sort rows by their column `subset`; None without a share.

        Raises UserError, with the rows' `name`, unless there are rows of both subsets.
        """
        if share is None:
            return None
        by_subset: dict[str, list[int]] = {"conflict": [], "aligned": [], "": []}
        for number, row in enumerate(rows):
            by_subset.get(str(row.get("subset")), by_subset[""]).append(number)
        conflict, aligned, untagged = by_subset.values()
        tagged, remedy = len(conflict) + len(aligned), "leave data.balance out"
        if not conflict or not aligned:
            problem = (
                f"each tagged row ({tagged} of {tagged + len(untagged)}) is {'aligned' if aligned else 'conflict'}"
            )
            if not tagged:
                problem = f"none of the {len(untagged)} rows has the subset aligned or conflict"
                remedy = f"tag the rows (d2e data tag), or {remedy}"
            raise UserError(f"{name}: {problem}; data.balance={share:g} needs rows of both subsets", remedy)
        return cls(conflict, aligned, untagged, min(max(1, round(share * tagged)), tagged - 1))

    def drawn(self, permuted: Callable[[int], list[int]]) -> list[int]:
        """Return the rows of an epoch, in no particular order: as many as there are, other rows once.

        The rows of a subset are shown equally often, or once more for some that are drawn. `permuted(n)` returns a
        random permutation of n numbers.
        """
        rows, tagged = list(self.others), len(self.conflict) + len(self.aligned)
        for subset, shown in ((self.conflict, self.shown), (self.aligned, tagged - self.shown)):
            times, rest = divmod(shown, len(subset))
            rows += subset * times + [subset[i] for i in permuted(len(subset))[:rest]]
        return rows

    def describe(self) -> str:
        """Return `conflict rows: 11 of 224, each shown about 10 times an epoch`."""
        tagged, times = len(self.aligned) + len(self.conflict), self.shown / len(self.conflict)
        total = f"{tagged:,} tagged rows" if self.others else f"{tagged:,}"
        rate = f"{times:.0f}" if times >= 3 else f"{times:.2g}"
        return f"conflict rows: {len(self.conflict):,} of {total}, each shown about {rate} times an epoch"
