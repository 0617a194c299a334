"""Build datasets: a table of steps, from raw files to Parquet, manifest and card.

If a dataset's raw file is missing or damaged, the others are still written, and the result names it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from d2e_sft import __version__
from d2e_sft.data.sample import EventSample
from d2e_sft.judge.judge import Judge
from d2e_sft.util.errors import UserError
from data_builders.build.choosing import (
    Build,
    bound_contexts,
    draw_rows,
    drop_repeated,
    first_judged,
    join_rows,
    judge_rows,
    leave_out_tests,
    open_build,
    read_tests,
    weigh,
)
from data_builders.build.options import JUDGE_JOBS, BuildOptions, Settings, parse_settings
from data_builders.build.passages import DISTRACTORS, UNANSWERABLE, put_passages
from data_builders.build.reading import ReadDataset, pick_sources
from data_builders.build.suites import PublishedCount, Suite
from data_builders.build.swapping import SHARES, swap_tests, swap_training, warn_of_swaps
from data_builders.build.writing import check_early, check_target, write_build
from data_builders.dataset import (
    CHECKSUM_DIFFERS,
    CHECKSUM_UNKNOWN,
    PROJECT,
    REDISTRIBUTION_ALLOWED,
    answerless,
    describe_rows,
    equal_ids,
    equal_options,
    repeated_rows,
)
from data_builders.own_data.source import is_own
from data_builders.quality.judged import quality_prompts
from data_builders.raw.files import MissingRawFileError
from data_builders.raw.source import SPLITS, Samples
from data_builders.refine.judged import ASKED, BY_JUDGE, judge_refine, refine_prompts
from data_builders.refine.likelihood import check_model, estimate_likelihood, refine_by
from data_builders.refine.relevance import labelled_datasets
from data_builders.refine.rules import RefinerOptions, refine


def _refine(build: Build) -> None:
    """Refine every split; for a suite only the training rows, since no test uses refined contexts."""
    options, refiner = build.options, build.reading.settings.refiner
    labelled = labelled_datasets(sample for samples in build.rows.values() for sample in samples)
    refining = dict[str, dict[str, int]]()
    for split, samples in build.rows.items():
        if options.suite and split != "train":
            continue
        judge = options.judge_for("refine") if split == "train" else None
        counts: Counter[Any]
        if judge is None:
            chosen = refiner if split == "train" else refiner.model_copy(update={"by": "rules"})
            build.rows[split], counts = refine_by(samples, chosen, labelled)
        else:
            by_rules = partial(refine, options=refiner, labelled=labelled)
            build.rows[split], counts = judge_refine(samples, judge, by_rules)
            judge.require_usable("refine", sum(counts[key] for key in BY_JUDGE), sum(counts[key] for key in ASKED))
        if counts:
            refining[split] = {outcome.value: count for outcome, count in sorted(counts.items())}
    build.parts["refining"] = refining


def _describe(state: Build) -> None:
    """Make the manifest, which has no time stamp and no absolute path: the same inputs give the same bytes."""
    options, reading, suite = state.options, state.reading, state.options.suite
    for name, error in reading.failures.items():
        # With `allow_shortfall`, rows are drawn from the other datasets, and the table of the draw says so.
        is_optional = suite and (name in suite.optional or (suite.ratios and options.allow_shortfall))
        if is_optional and isinstance(error, MissingRawFileError):
            state.warnings.append(f"{name} is left out: it lacks a raw file, as said above")
        else:
            state.failures[reading.what_lacks(name)] = error
    datasets = {name: _describe_dataset(state, dataset) for name, dataset in reading.datasets.items()}
    parts = {
        "suite": suite.name if suite else None,
        "published_counts": _published_counts(state, suite) if suite else None,
        "mixture": state.parts.get("mixture"),
        "refining": state.parts.get("refining"),
        **{option: state.parts.get(option) for option in (*SHARES, *UNANSWERABLE, DISTRACTORS)},
        "judge": _describe_judge(
            options.judge, [job for job in JUDGE_JOBS if options.judge_for(job) is options.judge]
        ),
        "refiner": _describe_judge(options.refiner, ["refine"]),
        "failures": {reading.what_lacks(name): reading.why(name) for name in reading.failures},
        "benchmark": state.parts.get("benchmark"),
    }
    state.manifest = {
        "project": PROJECT,
        "version": __version__,
        "seed": options.seed,
        "options": {
            "datasets": [Path(name).name if is_own(name) else name for name in options.datasets],
            "skip_bad": options.skip_bad,
            "refine": reading.settings.refiner.model_dump(),
            "context_words": [options.bounds.least, options.bounds.most],
            "size": options.size,
            **({"refusal": options.refusal} if options.refusal else {}),
            **({"swap": reading.settings.swap.describe()} if options.swap or options.swap_test else {}),
            "allow_shortfall": options.allow_shortfall,
        },
        **{name: part for name, part in parts.items() if part},
        "datasets": datasets,
    }


def _write(state: Build) -> None:
    bad = state.reading.bad.entries
    if not state.counts:
        raise UserError(
            f"no usable row in {', '.join(state.options.datasets)} ({len(bad)} bad); nothing was written",
            remedy="run without --skip-bad to see the first bad row, or check the options of the filters"
            if bad
            else "check that the files have rows, and the options of the filters",
        )
    state.files = write_build(state.options.out, state.rows, bad, state.manifest, overwrite=state.options.overwrite)


Step = Callable[[Build], None]
_CHOOSING: tuple[Step, ...] = (read_tests, leave_out_tests, bound_contexts, drop_repeated)
# What a build does after reading, in this order; each step changes the rows, or does nothing if it is not asked for.
STEPS: tuple[Step, ...] = (
    *_CHOOSING,
    judge_rows,
    weigh,
    draw_rows,
    join_rows,
    _refine,
    swap_training,  # after refining, so that both contexts say the same
    swap_tests,
    warn_of_swaps,
    put_passages,
    _describe,
    _write,
)


class IncompleteBuildError(UserError):
    """Some datasets could not be read; the rest is written, as `result` says."""

    def __init__(self, result: Build) -> None:
        errors = list(result.failures.values())
        missing = f"the result is incomplete: it lacks {', '.join(result.failures)} (--overwrite builds it again)"
        if len(errors) == 1:
            super().__init__(f"{errors[0].message}\n{missing}", errors[0].remedy)
        else:
            super().__init__("\n".join([*map(str, errors), missing]))
        self.result = result


def build(options: BuildOptions) -> Build:
    """Build into `options.out`: `<split>.parquet` for each split with rows, `manifest.json` and `README.md`.

    Raises:
        IncompleteBuildError: a raw file is missing or damaged; everything that does not need it is written.
        UserError: an unknown dataset or setting, no readable dataset, or too few samples for the ratios.
    """
    check_early(options.out, partial(check_target, options.out, overwrite=options.overwrite))
    _check_models(options)
    state = open_build(options, [options.suite.split] if options.suite else SPLITS)
    for step in STEPS:
        step(state)
    if state.failures:
        raise IncompleteBuildError(state)
    return state


def estimate_models(options: BuildOptions) -> str:
    """Return the requests and costs of the judge, one line per job, and the time of refining by likelihood.

    Reads the raw files, and writes nothing. For a suite with ratios it counts the samples that are judged first;
    replacements of rejected ones come on top. UserError if no model is asked, or if nothing can be read.
    """
    by_likelihood = _check_models(options).by == "likelihood"
    jobs = [(job, judge) for job in JUDGE_JOBS if (judge := options.judge_for(job))]
    if not jobs and not by_likelihood:
        remedy = "name one, for example --judge openai, or give --refine likelihood"
        raise UserError("--estimate without a judge; rules cost nothing", remedy)
    state = open_build(options, ["train"])
    for step in _CHOOSING:
        step(state)
    samples = first_judged(state)
    prompts = {"quality": quality_prompts, "refine": refine_prompts}
    lines = [f"{job}: {judge.estimate(prompts[job](samples, judge))}" for job, judge in jobs]
    if by_likelihood:
        refiner = state.reading.settings.refiner
        lines.append(f"refine: {estimate_likelihood(samples, refiner, labelled_datasets(samples))}")
    return "\n".join(lines)


def _check_models(options: BuildOptions) -> RefinerOptions:
    """Return the refiner's options; UserError as of `check_options`, or if a model cannot be used."""
    settings = check_options(options)
    refiner = settings.refiner
    for model in (refiner.model if refiner.by == "likelihood" else None, settings.swap.model):
        if model is not None:
            check_model(model)
    return refiner


def check_options(options: BuildOptions) -> Settings:
    """Return the settings; UserError for options that do not fit, before anything is read."""
    if options.refusal.isspace():
        raise UserError(f"--refusal {options.refusal!r}: expected a text", "name the answer of unanswerable rows")
    if options.refusal and not (options.unanswerable or options.unanswerable_test):
        raise UserError(
            f"--refusal {options.refusal!r} without --unanswerable and --unanswerable-test: no row refuses",
            remedy="add one of them, or drop it",
        )
    settings = parse_settings(options.settings, pick_sources(options.datasets))
    refiner, swap_options = settings.refiner, sorted(settings.swap.model_fields_set)
    if swap_options and not (options.swap or options.swap_test):
        flag = {"pools": "--swap-pool", "model": "--swap-model"}.get(swap_options[0], f"swap.{swap_options[0]}")
        raise UserError(f"{flag} without --swap and --swap-test; nothing is swapped", "add one of them, or drop it")
    if "by" in refiner.model_fields_set and options.judge and "quality" not in options.judge_jobs:
        raise UserError(
            f"--refine {refiner.by} with a judge that only refines; expected one of them",
            remedy="give the judge the other job (--judge-jobs quality), or drop --refine",
        )
    return settings


def _asked(sample: EventSample) -> list[str]:
    """The texts of a prompt besides the context."""
    return [turn.content for turn in sample.conversation.turns] if sample.conversation else [sample.question]


def _describe_dataset(state: Build, dataset: ReadDataset) -> dict[str, Any]:
    """Return one dataset's entry of the manifest, and add counts and warnings about its rows."""
    source, splits = dataset.source, dict[str, Any]()
    for split, rows in dataset.splits.items():
        samples, title = state.rows_of(source.name, split), f"{source.name} {split}"
        state.counts.update((sample.dataset, split, sample.relation, sample.format) for sample in samples)
        state.warnings += [
            f"{title}: the filter {step.name!r} left none of {step.rows_in:,} {step.unit}"
            for step in rows.filters
            if step.rows_in and not step.rows_out
        ]
        splits[split] = _describe_split(rows, samples, state.reading.bad.count(source.name, split))
        if source.own:  # only then are the contexts searched for their answers
            state.warnings += [f"{title}: {problem}" for problem in answerless(samples)]
            if repeating := [s.id for s in samples if s.context and any(s.context in text for text in _asked(s))]:
                state.warnings.append(
                    f"{title}: {len(repeating):,} of {len(samples):,} rows repeat their context in the question or in "
                    f"another turn ({_first_of(repeating)}), so the imagined view has it, too; remedy: give it once"
                )
        if source.own and (repeats := repeated_rows(samples)):
            splits[split]["repeated_rows"] = len(repeats)
            shown = _first_of([f"{row} repeats {first}" for row, first in repeats])
            count = f"{len(repeats):,} of {len(samples):,} rows repeat another in context, question and answers"
            state.warnings.append(f"{title}: {count} ({shown})")
        if equal := equal_options(samples):
            splits[split]["equal_options"] = list(equal)
            shown = _first_of([f"{place}: {', '.join(map(repr, options))}" for place, options in equal.items()])
            text = (
                f"{len(equal):,} of {len(samples):,} rows have options that differ only in letter case, Unicode form"
            )
            text += f", signs, punctuation or articles ({shown}); an output that fits several of them counts as wrong"
            state.warnings.append(f"{title}: {text}")
        if alike := equal_ids(samples):
            text = f"{len(alike):,} ids differ from others only in Unicode form or invisible characters"
            state.warnings.append(f"{title}: {text} ({_first_of(alike)})")
    declared = source.own.content.get("refusal") if source.own else None
    if declared and not any(
        declared[0] in sample.answers for split in dataset.splits for sample in state.rows_of(source.name, split)
    ):
        state.warnings.append(
            f"{source.name}: no row has the refusal {' or '.join(map(repr, declared))} as its answer; remedy: give it "
            "as your answer column has it"
        )
    return {
        "licence": source.licence,
        "redistribution": source.redistribution or REDISTRIBUTION_ALLOWED,
        "homepage": source.homepage,
        "format": source.format,
        "options": state.reading.settings.sources[source.name].model_dump(),
        **({"described_by": {"file": spec.file.name, "content": dict(spec.content)}} if (spec := source.own) else {}),
        "files": dataset.described_files,
        "splits": splits,
        "notes": dict(source.notes),
    }


def _first_of(items: Sequence[str], count: int = 3) -> str:
    more = f"; and {len(items) - count:,} more" if len(items) > count else ""
    return "; ".join(items[:count]) + more


def _describe_split(rows: Samples, samples: list[EventSample], bad_rows: int) -> dict[str, Any]:
    read = {"rows_read": rows.rows_read, "bad_rows": bad_rows, "filters": [asdict(step) for step in rows.filters]}
    rewritten = {f"{change} ({column})": count for (column, change), count in rows.rewritten.items()}
    return read | ({"rewritten": rewritten} if rewritten else {}) | describe_rows(samples)


def _published_counts(state: Build, suite: Suite) -> list[dict[str, Any]]:
    """Return the manifest's entry for each published count, in order: the counts, and why they differ."""
    counts = Counter((row.relation, row.dataset, row.format) for row in state.rows.get(suite.split, []))
    entries = []
    for published in suite.published:
        obtained = counts[published.relation, published.dataset, published.format]
        reason = _why_different(state, suite, published) if obtained != published.count else ""
        kind = {"relation": published.relation, "dataset": published.dataset, "format": published.format}
        entries.append({**kind, "published": published.count, "obtained": obtained, "reason": reason})
    return entries


def _why_different(state: Build, suite: Suite, row: PublishedCount) -> str:
    reading, causes, names = state.reading, list[str](), suite.sources_of(row)
    for name in names:
        if name in reading.failures:
            causes.append(f"{name}: {reading.why(name)}")
            continue
        dataset, options = reading.datasets[name], reading.settings.sources[name]
        reasons = dataset.located.substitutes(suite.split)
        reasons += [
            f"option {name}.{key}={value} (default {type(options).model_fields[key].default})"
            for key, value in options.model_dump(exclude_defaults=True).items()
        ]
        reasons += [f"{file} {CHECKSUM_DIFFERS}" for file in dataset.changed_files]
        reasons += [
            f"{file['name']} has no published checksum, so it may be another version"
            for file in dataset.described_files
            if file["checksum"] == CHECKSUM_UNKNOWN and not file["substitute"]
        ]
        if bad := reading.bad.count(name, suite.split):
            reasons.append(f"{bad:,} bad rows put aside")
        if note := dataset.source.notes.get("count"):
            reasons.append(note)
        causes += [f"{name}: {reason}" if len(names) > 1 else reason for reason in reasons]
    return "; ".join(causes) or "not known: the raw files and the options are the published ones"


def _describe_judge(judge: Judge | None, jobs: Sequence[str]) -> dict[str, Any] | None:
    """Return a model and its jobs, without its cost, which differs between a first run and one with cached replies."""
    if judge is None:
        return None
    described = judge.options.described | judge.options.model_dump(include={"max_tokens", "temperature"})
    place = {"dtype": judge.options.dtype} if described["backend"] == "local" else {"address": judge.address}
    return {"jobs": sorted(jobs), **described, **place}
