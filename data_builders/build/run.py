"""Datasets to files: read the raw files, choose the rows, refine, write Parquet, manifest and card.

Files are written only after everything is built. A dataset whose raw file is missing or damaged does not take the
others with it: they are written, and the result names it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from data_builders.build import coverage
from data_builders.build.benchmark import Benchmark, read_benchmark
from data_builders.build.compose import Composition, compose, first_judged, source_of
from data_builders.build.mixture import Mixture
from data_builders.build.options import JUDGE_JOBS, BuildOptions
from data_builders.build.reading import Reading, read_datasets
from data_builders.build.writing import check_target, write_build
from data_builders.dataset import manifest
from data_builders.dataset.sample_sets import repeated_rows
from data_builders.own_data.source import is_own
from data_builders.quality.judged import quality_prompts
from data_builders.raw.source import SPLITS, Samples
from data_builders.refine.judged import Outcome, judge_refine, refine_prompts
from data_builders.refine.needed import labelled_datasets
from data_builders.refine.rules import RefinerOptions, refine, refine_samples
from data_builders.swap.swap import Refusal, Swaps, swap_samples, with_twins


@dataclass
class Result:
    """What was built.

    Attributes:
        files: the files written, manifest and card last.
        counts: (dataset, split, relation, format) → rows.
        splits: (dataset, split) → its rows, for the filters.
        bad_rows: number of bad rows put aside.
        warnings: one line each.
        failures: dataset → why it is not in the result.
        coverage: obtained against published counts, for a suite that has them.
        mixture: what was drawn, for a suite with ratios.
        refining: split → how its contexts were refined.
        swaps: dataset → what of its training rows was swapped.
    """

    files: list[Path] = field(default_factory=list)
    counts: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    splits: dict[tuple[str, str], Samples] = field(default_factory=dict)
    bad_rows: int = 0
    warnings: list[str] = field(default_factory=list)
    failures: dict[str, UserError] = field(default_factory=dict)
    coverage: list[coverage.Row] = field(default_factory=list)
    mixture: Mixture | None = None
    refining: dict[str, Counter[Outcome]] = field(default_factory=dict)
    swaps: dict[str, Swaps] = field(default_factory=dict)


class IncompleteBuildError(UserError):
    """Some of what was asked for could not be read; the rest is written, and `result` says what."""

    def __init__(self, result: Result) -> None:
        errors = list(result.failures.values())
        lacking = f"the result is incomplete: it lacks {', '.join(result.failures)}"
        if len(errors) == 1:
            super().__init__(f"{errors[0].message}\n{lacking}", errors[0].remedy)
        else:
            super().__init__("\n".join([*map(str, errors), lacking]))
        self.result = result


def build(options: BuildOptions) -> Result:
    """Build into `options.out`: `<split>.parquet` for each split with rows, `manifest.json` and `README.md`.

    Raises:
        IncompleteBuildError: a raw file is missing or damaged; what does not need it is written all the same.
        UserError: an unknown dataset or setting, no dataset that can be read, or too few samples for the ratios.
    """
    check_target(options.out)
    reading = read_datasets(options, [options.suite.split] if options.suite else SPLITS)
    benchmark = read_benchmark(options)
    composition = compose(options, reading, benchmark)
    result = Result(warnings=reading.warnings() + benchmark.warnings(), mixture=composition.mixture)
    result.refining = _refine(options, reading.settings.refiner, composition)
    result.swaps = _swap(options, composition)
    result.warnings += _swap_tests(options, composition)
    result.warnings += [line for name, done in result.swaps.items() if (line := _too_few_swaps(name, done))]
    for name, error in reading.failures.items():
        if name in reading.missing and _may_lack(options, name):
            result.warnings.append(str(error))
        else:
            result.failures[reading.what_lacks(name)] = error
    for name, dataset in reading.datasets.items():
        for split, rows in dataset.splits.items():
            rows.rows = composition.of(name, split)
            result.splits[name, split] = rows
            result.counts.update((sample.dataset, split, sample.relation, sample.format) for sample in rows.rows)
            result.warnings += _emptied(name, split, rows)
            result.warnings += _repeated(name, split, rows) if dataset.source.own else []
    if options.suite:
        result.coverage = coverage.compare(options.suite, reading, composition.rows.get(options.suite.split, []))
    if not result.counts:
        raise UserError(
            f"no usable row in {', '.join(options.datasets)} ({len(reading.bad.entries)} bad); nothing was written",
            remedy="run without --skip-bad to see the first bad row, or look at the filters' options"
            if reading.bad.entries
            else "the files have no rows, or the filters' options leave none",
        )
    result.bad_rows = len(reading.bad.entries)
    described = _describe(options, reading, benchmark, result)
    result.files = write_build(options.out, composition.rows, reading.bad.entries, described)
    if result.failures:
        raise IncompleteBuildError(result)
    return result


def estimate_judge(options: BuildOptions) -> str:
    """What the judge would be asked, in one line a job; reads the raw files, asks and writes nothing.

    For a suite with ratios it counts the samples that are judged first. Those that the judge then refuses are
    replaced, so the true number is larger by the share that it refuses.

    Raises:
        UserError: no judge is named, or nothing can be read.
    """
    if options.judge is None:
        raise UserError(
            "--estimate without a judge; rules cost nothing", remedy="name one, for example --judge openai"
        )
    reading = read_datasets(options, ["train"])
    samples = first_judged(options, reading, read_benchmark(options))
    prompts = {"quality": quality_prompts, "refine": refine_prompts}
    lines = [
        f"{job}: {options.judge.estimate(prompts[job](samples))}" for job in JUDGE_JOBS if job in options.judge_jobs
    ]
    return "\n".join(lines)


def _emptied(name: str, split: str, rows: Samples) -> list[str]:
    """A line where a filter took all rows that reached it: there may be a reason, but nobody expects it."""
    steps = (step for step in rows.filters if step.rows_in and not step.rows_out)
    return [f"{name} {split}: the filter {step.name!r} left none of {step.rows_in:,} {step.unit}" for step in steps]


def _repeated(name: str, split: str, rows: Samples) -> list[str]:
    """A line where rows of own data are equal in all but their ids: each is trained on, or scored, as often."""
    repeats = repeated_rows(rows.rows)
    if not repeats:
        return []
    shown = "; ".join(f"{row} repeats {first}" for row, first in repeats[:3])
    more = f"; and {len(repeats) - 3:,} more" if len(repeats) > 3 else ""
    return [f"{name} {split}: {len(repeats):,} of {len(rows.rows):,} rows are exact duplicates ({shown}{more})"]


def _count_repeats(rows: Samples) -> dict[str, int]:
    repeats = len(repeated_rows(rows.rows))
    return {"exact_duplicates": repeats} if repeats else {}


def _too_few_swaps(name: str, done: Swaps) -> str | None:
    if done.swapped == done.wanted:
        return None
    return f"{name} train: {done.swapped:,} rows are swapped in place of {done.wanted:,}; no others can be"


def _may_lack(options: BuildOptions, name: str) -> bool:
    """Whether the result is complete without a dataset whose raw file is missing.

    Under `allow_shortfall` its part was drawn from the others, and the table of the draw says so.
    """
    suite = options.suite
    return suite is not None and (name in suite.optional or bool(suite.ratios and options.allow_shortfall))


def _refine(options: BuildOptions, refiner: RefinerOptions, composition: Composition) -> dict[str, Counter[Outcome]]:
    """Refine every split, or of a suite the training rows alone: nothing ever reads a test's refined contexts."""
    counts: dict[str, Counter[Outcome]] = {}
    labelled = labelled_datasets(sample for samples in composition.rows.values() for sample in samples)
    fallback = partial(refine, options=refiner, labelled=labelled)
    for split, samples in composition.rows.items():
        if options.suite and split != "train":
            continue
        judge = options.judge_for("refine") if split == "train" else None
        if judge is None:
            composition.rows[split] = refine_samples(samples, refiner, labelled)
        else:
            refined = judge_refine(samples, judge, fallback)
            composition.rows[split], counts[split] = refined.samples, refined.counts
    return counts


def _swap(options: BuildOptions, composition: Composition) -> dict[str, Swaps]:
    """Swap the training rows dataset by dataset, after refining, so that both contexts say the same."""
    if not options.swap:
        return {}
    train = composition.rows.get("train", [])
    swaps: dict[str, Swaps] = {}
    for name in dict.fromkeys(map(source_of, train)):
        places = [place for place, row in enumerate(train) if source_of(row) == name]
        rows, swaps[name] = swap_samples(
            [train[place] for place in places], options.swap, options.random(f"{name}/swap")
        )
        for place, row in zip(places, rows, strict=True):
            train[place] = row
    if not any(done.wanted for done in swaps.values()):
        raise UserError(
            f"--swap {options.swap:g}: is less than one of {len(train):,} training rows", "raise the share"
        )
    if not any(done.swapped for done in swaps.values()):
        refused = sum((done.refused for done in swaps.values()), Counter[Refusal]())
        why = "".join(f"\n  {count:,}: {reason.value}" for reason, count in refused.most_common())
        raise UserError(
            f"--swap {options.swap:g}: found nothing to swap in {len(train):,} training rows{why}",
            remedy="drop --swap, or build data whose answers are entities that stand in the context, such as habit",
        )
    return swaps


def _swap_tests(options: BuildOptions, composition: Composition) -> list[str]:
    """Give test rows a swapped twin; returns a line for each dataset that has fewer of them than asked for.

    What the original says is then the habit: a model that reads answers the twin otherwise (Longpre et al. 2021).
    """
    if not options.swap_test:
        return []
    test, lines, found = composition.rows.get("test", []), [], list[EventSample]()
    for name in dict.fromkeys(map(source_of, test)):
        rows = [row for row in test if source_of(row) == name]
        twins, done = with_twins(rows, options.swap_test, options.random(f"{name}/swap-test"))
        found += twins
        why = ", ".join(f"{count:,} {reason.value}" for reason, count in done.refused.most_common())
        if done.swapped < done.wanted:
            lines.append(f"{name} test: {done.swapped:,} rows have a swapped twin in place of {done.wanted:,} ({why})")
    if len(found) == len(test):
        raise UserError(
            f"--swap-test {options.swap_test:g}: found nothing to swap in {len(test):,} test rows"
            + "".join(f"\n  {line}" for line in lines),
            remedy="drop it, or build data whose answers are entities that stand in the context",
        )
    composition.rows["test"] = found
    return lines


def _describe(options: BuildOptions, reading: Reading, benchmark: Benchmark, result: Result) -> dict[str, Any]:
    """The manifest but for its outputs."""
    return manifest.describe_build(
        _describe_options(options, reading.settings.refiner),
        options.seed,
        {
            name: manifest.describe_dataset(
                dataset.source,
                dataset.options,
                dataset.described_files,
                {
                    split: manifest.describe_split(rows, reading.bad.count(name, split))
                    | (_count_repeats(rows) if dataset.source.own else {})
                    for split, rows in dataset.splits.items()
                },
            )
            for name, dataset in reading.datasets.items()
        },
        suite=options.suite.name if options.suite else None,
        published_counts=[asdict(row) for row in result.coverage],
        mixture=result.mixture.describe() if result.mixture else None,
        refining={
            split: {outcome.value: count for outcome, count in sorted(counts.items())}
            for split, counts in result.refining.items()
        },
        swap={"share": options.swap, "datasets": {name: done.describe() for name, done in result.swaps.items()}}
        if result.swaps
        else None,
        judge=_describe_judge(options),
        failures={reading.what_lacks(name): reading.why(name) for name in reading.failures},
        benchmark=benchmark.describe(),
    )


def _describe_options(options: BuildOptions, refiner: RefinerOptions) -> dict[str, Any]:
    return {
        "datasets": [Path(name).name if is_own(name) else name for name in options.datasets],
        "skip_bad": options.skip_bad,
        "refine": refiner.model_dump(),
        "context_words": [options.bounds.least, options.bounds.most],
        "size": options.size,
        **({"swap_test": options.swap_test} if options.swap_test else {}),
        "allow_shortfall": options.allow_shortfall,
    }


def _describe_judge(options: BuildOptions) -> dict[str, Any] | None:
    """Who judged; not what it cost, which differs between a first run and one that finds the replies in the cache."""
    if options.judge is None:
        return None
    asked = options.judge_options.model_dump(include={"backend", "model", "max_tokens", "temperature"})
    # An endpoint and a folder of weights are asked differently, and answer differently.
    own = {"dtype": options.judge_options.dtype} if asked["backend"] == "local" else {"address": options.judge.address}
    return {"jobs": sorted(options.judge_jobs), **asked, **own}
