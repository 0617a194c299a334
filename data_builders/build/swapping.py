"""Swap entities in the rows of a build, dataset by dataset, after refining, so that both contexts say the same."""

from collections import Counter, defaultdict
from collections.abc import Mapping

from d2e_sft.data.built import SWAPPED
from d2e_sft.data.sample import ENOUGH_ROWS, EventSample, Split
from d2e_sft.util.errors import UserError
from data_builders.build.choosing import Build
from data_builders.dataset import is_answerable, source_of
from data_builders.swap.swap import Refusal, Swaps, swap_samples, with_twins

_FREQUENT, _FREQUENT_SHARE, _SHOWN = 3, 0.05, 5  # rows and share of wanted rows of an answer that is reported
_ENOUGH_SWAPS = 5  # of an answer, from which on one new answer in more than half of them counts as a habit


# Option of the build, as the manifest names it → the split that it changes.
SHARES: dict[str, Split] = {"swap": "train", "swap-test": "test"}


def swap_training(build: Build) -> None:
    """Replace a share (`--swap`) of each dataset's training rows by their swapped copies."""
    _swap(build, "swap", build.options.swap)


def swap_tests(build: Build) -> None:
    """Add a swapped twin to a share (`--swap-test`) of each dataset's test rows."""
    _swap(build, "swap-test", build.options.swap_test)


def _swap(build: Build, option: str, share: float) -> None:
    """Swap rows of a split, dataset by dataset; UserError if no row can be swapped.

    Own datasets also lend answers of a wider kind, and those of training rows to test rows.
    """
    if not share:
        return
    split, options = SHARES[option], build.reading.settings.swap
    rows, with_pairs, swaps = build.rows.get(split, []), list[EventSample](), dict[str, Swaps]()
    for name in dict.fromkeys(map(source_of, rows)):
        places = [place for place, row in enumerate(rows) if source_of(row) == name]
        if split == "train":
            places = [place for place in places if is_answerable(rows[place])]
        originals, train = [rows[place] for place in places], build.rows_of(name, "train")
        chance, more = build.options.random(f"{name}/{option}"), train if name in build.reading.own else None
        if split == "test":
            pairs, swaps[name] = with_twins(originals, share, chance, options, more, train=train)
            with_pairs += pairs
        else:
            changed, swaps[name] = swap_samples(originals, share, chance, options, more)
            for place, row in zip(places, changed, strict=True):
                rows[place] = row
    if not any(swap.swapped for swap in swaps.values()):
        refused = sum((swap.refused for swap in swaps.values()), Counter[Refusal]())
        why = reasons(refused) or ("the share is less than one row" if rows else f"there are no {split} rows")
        problem = f"--{option} {share:g}: nothing was swapped in {len(rows):,} rows ({why})"
        raise UserError(problem, remedy=_remedy(refused))
    if split == "test":
        build.rows["test"] = with_pairs
    build.swaps[split] = swaps
    build.parts[option] = {"share": share, "datasets": {name: swap.describe() for name, swap in swaps.items()}}


def warn_of_swaps(build: Build) -> None:
    """Warn of too few swapped rows, frequent answers that are never swapped, new habits and small subsets."""
    for split, swaps in build.swaps.items():
        for name, swap in swaps.items():
            if swap.swapped < swap.wanted:
                count = f"only {swap.swapped:,} of {swap.wanted:,} rows could be swapped ({reasons(swap.refused)})"
                build.warnings.append(f"{name} {split}: {count}")
        for name, swap in swaps.items():
            least = max(_FREQUENT, swap.wanted * _FREQUENT_SHARE)
            often = [
                f"{answer!r}: 0 of {count:,}" for answer, count in swap.never.most_common(_SHOWN) if count >= least
            ]
            effect = "will still be rewarded" if split == "train" else "is not measured"
            if often:
                message = f"never swapped: {', '.join(often)}; guessing these answers {effect}"
                build.warnings.append(f"{name} {split}: {message}")
    build.warnings += [*_new_habits(build), *_too_few_tagged(build)]


def _new_habits(build: Build) -> list[str]:
    """Return a warning for each dataset whose training rows swap a frequent answer for one other answer mostly."""
    warnings = []
    for name in build.swaps.get("train", ()):
        became = defaultdict[str, Counter[str]](Counter)
        for pair in (row.meta[SWAPPED] for row in build.rows_of(name, "train") if SWAPPED in row.meta):
            became[pair["from"]][pair["to"]] += 1
        often = [
            f"{old!r} became {new!r} in {count:,} of {replacements.total():,} swapped rows"
            for old, replacements in became.items()
            for new, count in replacements.most_common(1)
            if replacements.total() >= _ENOUGH_SWAPS and 2 * count > replacements.total()
        ]
        more = "list other answers in the column `choices` (docs/how-to/own-data.md)"
        remedy = more if name in build.reading.own else "name other pools (--swap-pool)"
        if often:
            warnings.append(f"{name} train: {', '.join(often[:_SHOWN])}: a new habit; remedy: {remedy}")
    return warnings


def _too_few_tagged(build: Build) -> list[str]:
    """Return a warning for each dataset whose aligned or conflict test rows, with swaps, are too few to compare."""
    warnings = []
    for name, swap in build.swaps.get("test", {}).items():
        counts = Counter(str(row.subset) for row in build.rows_of(name, "test"))
        subset = min(("conflict", "aligned"), key=counts.__getitem__)
        count = counts[subset]
        if swap.swapped and count < ENOUGH_ROWS:
            by_share = ", or --swap-test 1" if build.options.swap_test < 1 and swap.swapped == swap.wanted else ""
            remedy = f"{ENOUGH_ROWS} are needed to compare by subset: more test rows (a larger `test`){by_share}"
            warnings.append(f"{name} test: {count} {subset} row{'s' * (count != 1)}; {remedy}")
    return warnings


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


def reasons(refused: Mapping[Refusal, int] | Mapping[str, int]) -> str:
    """Return the reasons why rows were refused, with their numbers, the most frequent first."""
    return ", ".join(f"{count:,} {reason}" for reason, count in Counter[str](refused).most_common())
