"""Build datasets: read the raw files, choose the rows, refine, and write Parquet, manifest and card.

Files are written after everything is built. If a dataset's raw file is missing or damaged, the other datasets are
still written, and the result names it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from data_builders.build.benchmark import Benchmark, read_benchmark
from data_builders.build.compose import Composition, compose, first_judged
from data_builders.build.coverage import compare
from data_builders.build.options import JUDGE_JOBS, BuildOptions, parse_settings
from data_builders.build.reading import Reading, pick_sources, read_datasets, report_missing_files
from data_builders.build.swapping import incomplete, never_swapped, new_habits, shares, swap_rows, too_few_tagged
from data_builders.build.writing import check_target, write_build
from data_builders.dataset import manifest
from data_builders.dataset.sample_sets import answerless, repeated_rows
from data_builders.own_data.source import is_own
from data_builders.quality.judged import quality_prompts
from data_builders.raw.files import MissingRawFileError
from data_builders.raw.source import SPLITS
from data_builders.refine.judged import ASKED, BY_JUDGE, judge_refine, refine_prompts
from data_builders.refine.likelihood import check_model, estimate_likelihood, refine_by
from data_builders.refine.needed import labelled_datasets
from data_builders.refine.rules import RefinerOptions, refine


@dataclass
class Result:
    """The outcome of a build.

    Attributes:
        files: The files written, manifest and card last.
        manifest: The manifest without its outputs.
        counts: (dataset, split, relation, format) → rows, by the suite's names of datasets.
        warnings: One line each.
        failures: Dataset → why it is not in the result.
    """

    files: list[Path] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)
    counts: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)
    failures: dict[str, UserError] = field(default_factory=dict)


class IncompleteBuildError(UserError):
    """Some datasets could not be read; the rest is written, as `result` says."""

    def __init__(self, result: Result) -> None:
        errors = list(result.failures.values())
        missing = f"the result is incomplete: it lacks {', '.join(result.failures)} (--overwrite builds it again)"
        if len(errors) == 1:
            super().__init__(f"{errors[0].message}\n{missing}", errors[0].remedy)
        else:
            super().__init__("\n".join([*map(str, errors), missing]))
        self.result = result


def build(options: BuildOptions) -> Result:
    """Build into `options.out`: `<split>.parquet` for each split with rows, `manifest.json` and `README.md`.

    Raises:
        IncompleteBuildError: a raw file is missing or damaged; everything that does not need it is written.
        UserError: an unknown dataset or setting, no readable dataset, or too few samples for the ratios.
    """
    check_target(options.out, overwrite=options.overwrite)
    _check_models(options)
    splits = [options.suite.split] if options.suite else SPLITS
    missing = report_missing_files(options, splits)
    reading = read_datasets(options, splits, missing)
    benchmark = read_benchmark(options, missing)
    composition = compose(options, reading, benchmark)
    _refine(options, reading.settings.refiner, composition)
    own = {name for name, dataset in reading.datasets.items() if dataset.source.own}
    for split in ("train", "test"):
        composition.swaps[split] = swap_rows(options, reading.settings.swap, composition, split, own)
    result = Result(warnings=[*reading.warnings(), *benchmark.warnings])
    for split, swaps in composition.swaps.items():
        result.warnings += [*incomplete(swaps, split), *never_swapped(swaps, split)]
    result.warnings += [*new_habits(composition, own), *too_few_tagged(options, composition)]
    suite = options.suite
    for name, error in reading.failures.items():
        # With `allow_shortfall`, rows are drawn from the other datasets, and the table of the draw says so.
        is_optional = suite and (name in suite.optional or (suite.ratios and options.allow_shortfall))
        if is_optional and isinstance(error, MissingRawFileError):
            result.warnings.append(f"{name} is left out: it lacks a raw file, as said above")
        else:
            result.failures[reading.what_lacks(name)] = error
    datasets = _describe_datasets(reading, composition, result)
    if not result.counts:
        raise UserError(
            f"no usable row in {', '.join(options.datasets)} ({len(reading.bad.entries)} bad); nothing was written",
            remedy="run without --skip-bad to see the first bad row, or check the options of the filters"
            if reading.bad.entries
            else "check that the files have rows, and the options of the filters",
        )
    result.manifest = _describe(options, reading, benchmark, composition, datasets)
    result.files = write_build(options.out, composition.rows, reading.bad.entries, result.manifest)
    if result.failures:
        raise IncompleteBuildError(result)
    return result


def estimate_models(options: BuildOptions) -> str:
    """Return the requests and costs of the judge, one line per job, and the time of refining by likelihood.

    Reads the raw files, and writes nothing. For a suite with ratios it counts the samples that are judged first. Each
    one that the judge rejects is replaced by another, so the true number is larger by the rejected share. UserError if
    no model is asked, or if nothing can be read.
    """
    by_likelihood = _check_models(options).by == "likelihood"
    if options.judge is None and not by_likelihood:
        remedy = "name one, for example --judge openai, or give --refine likelihood"
        raise UserError("--estimate without a judge; rules cost nothing", remedy)
    missing = report_missing_files(options, ["train"])
    reading = read_datasets(options, ["train"], missing)
    samples = first_judged(options, reading, read_benchmark(options, missing))
    prompts = {"quality": quality_prompts, "refine": refine_prompts}
    jobs = [(job, judge) for job in JUDGE_JOBS if (judge := options.judge_for(job))]
    lines = [f"{job}: {judge.estimate(prompts[job](samples))}" for job, judge in jobs]
    if by_likelihood:
        lines.append(f"refine: {estimate_likelihood(samples, reading.settings.refiner, labelled_datasets(samples))}")
    return "\n".join(lines)


def _check_models(options: BuildOptions) -> RefinerOptions:
    """Return the refiner's options; UserError if a model cannot be used, before anything is read."""
    settings = parse_settings(options.settings, pick_sources(options.datasets))
    refiner, given = settings.refiner, sorted(settings.swap.model_fields_set)
    if given and not (options.swap or options.swap_test):
        flag = {"pools": "--swap-pool", "model": "--swap-model"}.get(given[0], f"swap.{given[0]}")
        raise UserError(f"{flag} without --swap and --swap-test; nothing is swapped", "add one of them, or drop it")
    if "by" in refiner.model_fields_set and options.judge_for("refine"):
        raise UserError(
            f"--refine {refiner.by} with a judge that refines as well; expected one of them",
            remedy="give the judge the other job (--judge-jobs quality), or drop --refine",
        )
    for model in (refiner.model if refiner.by == "likelihood" else None, settings.swap.model):
        if model is not None:
            check_model(model)
    return refiner


def _refine(options: BuildOptions, refiner: RefinerOptions, composition: Composition) -> None:
    """Refine every split; for a suite only the training rows, since no test uses refined contexts."""
    labelled = labelled_datasets(sample for samples in composition.rows.values() for sample in samples)
    for split, samples in composition.rows.items():
        if options.suite and split != "train":
            continue
        judge = options.judge_for("refine") if split == "train" else None
        counts: Counter[Any]
        if judge is None:
            chosen = refiner if split == "train" else refiner.model_copy(update={"by": "rules"})
            composition.rows[split], counts = refine_by(samples, chosen, labelled)
        else:
            by_rules = partial(refine, options=refiner, labelled=labelled)
            composition.rows[split], counts = judge_refine(samples, judge, by_rules)
            judge.require_usable("refine", sum(counts[how] for how in BY_JUDGE), sum(counts[how] for how in ASKED))
        if counts:
            composition.refining[split] = {how.value: count for how, count in sorted(counts.items())}


def _describe_datasets(reading: Reading, composition: Composition, result: Result) -> dict[str, Any]:
    """Return the datasets' entries of the manifest, and add counts and warnings about their rows to the result."""
    entries = {}
    for name, dataset in reading.datasets.items():
        splits: dict[str, Any] = {}
        for split, rows in dataset.splits.items():
            rows.rows = composition.of(name, split)
            result.counts.update((sample.dataset, split, sample.relation, sample.format) for sample in rows.rows)
            result.warnings += [
                f"{name} {split}: the filter {step.name!r} left none of {step.rows_in:,} {step.unit}"
                for step in rows.filters
                if step.rows_in and not step.rows_out
            ]
            splits[split] = manifest.describe_split(rows, reading.bad.count(name, split))
            if dataset.source.own and (problem := answerless(rows.rows)):
                result.warnings.append(f"{name} {split}: {problem}")
            if dataset.source.own and (repeats := repeated_rows(rows.rows)):
                splits[split]["exact_duplicates"] = len(repeats)
                shown = "; ".join(f"{row} repeats {first}" for row, first in repeats[:3])
                more = f"; and {len(repeats) - 3:,} more" if len(repeats) > 3 else ""
                count = f"{len(repeats):,} of {len(rows.rows):,} rows are exact duplicates"
                result.warnings.append(f"{name} {split}: {count} ({shown}{more})")
        options = reading.settings.sources[name]
        entries[name] = manifest.describe_dataset(dataset.source, options, dataset.described_files, splits)
    return entries


def _describe(
    options: BuildOptions, reading: Reading, benchmark: Benchmark, composition: Composition, datasets: dict[str, Any]
) -> dict[str, Any]:
    """Return the manifest without its outputs."""
    suite = options.suite
    swaps = {
        option: {
            "share": share,
            "datasets": {name: done.describe() for name, done in composition.swaps[split].items()},
        }
        for split, (option, share) in shares(options).items()
        if share
    }
    return manifest.describe_build(
        {
            "datasets": [Path(name).name if is_own(name) else name for name in options.datasets],
            "skip_bad": options.skip_bad,
            "refine": reading.settings.refiner.model_dump(),
            "context_words": [options.bounds.least, options.bounds.most],
            "size": options.size,
            **({"swap": reading.settings.swap.describe()} if swaps else {}),
            "allow_shortfall": options.allow_shortfall,
        },
        options.seed,
        datasets,
        suite=suite.name if suite else None,
        published_counts=compare(suite, reading, composition.rows.get(suite.split, [])) if suite else None,
        mixture=composition.mixture,
        refining=composition.refining,
        **swaps,
        judge=_describe_judge(options),
        failures={reading.what_lacks(name): reading.why(name) for name in reading.failures},
        benchmark=benchmark.describe(),
    )


def _describe_judge(options: BuildOptions) -> dict[str, Any] | None:
    """Return the judge without its cost, which differs between a first run and one with cached replies."""
    judge = options.judge
    if judge is None:
        return None
    asked = judge.options.model_dump(include={"backend", "model", "max_tokens", "temperature"})
    own = {"dtype": judge.options.dtype} if asked["backend"] == "local" else {"address": judge.address}
    return {"jobs": sorted(options.judge_jobs), **asked, **own}
