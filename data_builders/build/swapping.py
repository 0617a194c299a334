"""Swap entities in the rows of a build, dataset by dataset, after refining, so that both contexts say the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Mapping

from d2e_sft.data.built import SWAPPED
from d2e_sft.data.sample import ENOUGH_ROWS, EventSample, Split
from d2e_sft.util.errors import UserError
from data_builders.build.compose import Composition, source_of
from data_builders.build.options import BuildOptions
from data_builders.swap.candidates import SwapOptions
from data_builders.swap.swap import Refusal, Swaps, swap_samples, with_twins

_FREQUENT, _FREQUENT_SHARE, _SHOWN = 3, 0.05, 5  # rows and share of wanted rows of an answer that is reported
_ENOUGH_SWAPS = 5  # of an answer, from which on one new answer in more than half of them counts as a habit


def shares(options: BuildOptions) -> dict[Split, tuple[str, float]]:
    """Return the option of each split that has one, without its dashes, and the share."""
    return {"train": ("swap", options.swap), "test": ("swap-test", options.swap_test)}


def swap_rows(
    options: BuildOptions, how: SwapOptions, composition: Composition, split: Split, own: Container[str]
) -> dict[str, Swaps]:
    """Swap a share of each dataset's rows of a split; returns the counts by dataset.

    Training rows are replaced (`options.swap`). Test rows get a swapped twin (`options.swap_test`). The habit of both
    is the usual answer of the training rows, else the original's answer (Longpre et al. 2021).
    Own datasets also lend answers of a wider kind, and those of training rows to test rows. UserError if no row can be
    swapped.
    """
    option, share = shares(options)[split]
    if not share:
        return {}
    rows, found, swaps = composition.rows.get(split, []), list[EventSample](), dict[str, Swaps]()
    for name in dict.fromkeys(map(source_of, rows)):
        places = [place for place, row in enumerate(rows) if source_of(row) == name]
        given, train = [rows[at] for at in places], composition.of(name, "train")
        chance, more = options.random(f"{name}/{option}"), train if name in own else None
        if split == "test":
            pairs, swaps[name] = with_twins(given, share, chance, how, more, train=train)
            found += pairs
        else:
            changed, swaps[name] = swap_samples(given, share, chance, how, more)
            for place, row in zip(places, changed, strict=True):
                rows[place] = row
    if not any(done.swapped for done in swaps.values()):
        refused = sum((done.refused for done in swaps.values()), Counter[Refusal]())
        why = _reasons(refused) or ("the share is less than one row" if rows else f"there are no {split} rows")
        raise UserError(
            f"--{option} {share:g}: nothing was swapped in {len(rows):,} rows ({why})", remedy=_remedy(refused)
        )
    if split == "test":
        composition.rows["test"] = found
    return swaps


def incomplete(swaps: Mapping[str, Swaps], split: Split) -> list[str]:
    """Return a warning for each dataset with fewer swapped rows than wanted."""
    return [
        f"{name} {split}: only {done.swapped:,} of {done.wanted:,} rows could be swapped ({_reasons(done.refused)})"
        for name, done in swaps.items()
        if done.swapped < done.wanted
    ]


def never_swapped(swaps: Mapping[str, Swaps], split: Split) -> list[str]:
    """Return a warning for each dataset with frequent answers, perhaps habits, that were tried and never swapped."""
    found = []
    for name, done in swaps.items():
        least = max(_FREQUENT, done.wanted * _FREQUENT_SHARE)
        often = [f"{answer!r}: 0 of {count:,}" for answer, count in done.never.most_common(_SHOWN) if count >= least]
        if often:
            effect = "stays as it is" if split == "train" else "is not measured"
            found.append(f"{name} {split}: never swapped: {', '.join(often)}; a habit of these answers {effect}")
    return found


def new_habits(composition: Composition, own: Container[str]) -> list[str]:
    """Return a warning for each dataset whose training rows swap a frequent answer for one other answer mostly."""
    found = []
    for name in composition.swaps["train"]:
        became = defaultdict[str, Counter[str]](Counter)
        for pair in (row.meta[SWAPPED] for row in composition.of(name, "train") if SWAPPED in row.meta):
            became[pair["from"]][pair["to"]] += 1
        often = [
            f"{old!r} became {new!r} in {count:,} of {others.total():,} swapped rows"
            for old, others in became.items()
            for new, count in others.most_common(1)
            if others.total() >= _ENOUGH_SWAPS and 2 * count > others.total()
        ]
        more = "list other answers in the column `choices` (docs/how-to/own-data.md)"
        remedy = more if name in own else "name other pools (--swap-pool)"
        if often:
            found.append(f"{name} train: {', '.join(often[:_SHOWN])}: a new habit; remedy: {remedy}")
    return found


def too_few_tagged(options: BuildOptions, composition: Composition) -> list[str]:
    """Return a warning for each dataset whose aligned or conflict test rows, with swaps, are too few to compare."""
    found = []
    for name, done in composition.swaps["test"].items():
        counts = Counter(str(row.subset) for row in composition.of(name, "test"))
        subset = min(("conflict", "aligned"), key=lambda one: counts[one])
        count = counts[subset]
        if done.swapped and count < ENOUGH_ROWS:
            by_share = ", or --swap-test 1" if options.swap_test < 1 and done.swapped == done.wanted else ""
            remedy = f"{ENOUGH_ROWS} are needed to compare by subset: more test rows (a larger `test`){by_share}"
            found.append(f"{name} test: {count} {subset} row{'s' * (count != 1)}; {remedy}")
    return found


def _remedy(refused: Counter[Refusal]) -> str:
    if refused and set(refused) == {Refusal.ABSENT}:
        return (
            "drop it, check the columns, or shorten the answers to words of their contexts: only those can be swapped"
        )
    raised = "" if refused else "raise the share, "
    return (
        f"drop it, {raised}name a model that proposes answers (--swap-model), or build data whose answers are "
        "entities in the context, such as habit"
    )


def _reasons(refused: Counter[Refusal]) -> str:
    return ", ".join(f"{count:,} {reason.value}" for reason, count in refused.most_common())
