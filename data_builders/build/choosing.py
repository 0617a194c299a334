"""Choose rows among the samples that were read: the steps of a build (`STEPS` in run.py) before its rows change."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from d2e_sft.data.sample import EventSample, Split
from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import warn
from data_builders.build.mixture import HOW_TO_FILL, MixturePool, allot, draw
from data_builders.build.options import BuildOptions
from data_builders.build.reading import Reading, locate, pick_sources, read_datasets
from data_builders.build.suites import SUITES, ContextBounds
from data_builders.dataset import SampleSet, read_set, source_of
from data_builders.quality.judged import KEPT, JudgedVerdict, judge_quality, require_verdicts
from data_builders.quality.overlap import THRESHOLD, exclude_overlap
from data_builders.raw.files import Located, MissingRawFileError, locate_files
from data_builders.raw.source import SPLITS
from data_builders.sources import SOURCES
from data_builders.sources.reading import first_of_each
from data_builders.swap.swap import Swaps

_ENOUGH = 20  # samples without a verdict, after which a judge that gave none is given up


@dataclass
class Build:
    """What the steps of a build share, and in the end its outcome.

    Attributes:
        reading: The datasets, with the filters of each split so far.
        located_tests: Dataset of a suite that this one must be disjoint from → the files of its test.
        rows: Split → rows in the order of writing.
        parts: Entries of the manifest that the steps made.
        swaps: Split → dataset → counts of swapped rows.
        failures: Dataset → why it is not in the result.
        counts: (dataset, split, relation, format) → rows, by the suite's names of datasets.
        manifest: The manifest without its outputs.
        files: The files written, manifest and card last.
    """

    options: BuildOptions
    reading: Reading
    located_tests: dict[str, Located] = field(default_factory=dict)
    tests: list[SampleSet] = field(default_factory=list)
    rows: dict[Split, list[EventSample]] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    swaps: dict[Split, dict[str, Swaps]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    failures: dict[str, UserError] = field(default_factory=dict)
    counts: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    manifest: dict[str, Any] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)

    def rows_of(self, dataset: str, split: Split) -> list[EventSample]:
        """Return the rows of one source, whatever name the suite gives them."""
        return [row for row in self.rows.get(split, []) if source_of(row) == dataset]

    @property
    def is_drawn(self) -> bool:
        """Whether the suite draws its rows in fixed ratios."""
        return self.options.suite is not None and bool(self.options.suite.ratios)


def open_build(options: BuildOptions, splits: Sequence[Split] = SPLITS) -> Build:
    """Find or download all raw files, also those of benchmarks, report missing ones at once, and read the rest.

    UserError as for `read_datasets`, or if a set in fixed ratios lacks a dataset without `allow_shortfall`.
    """
    suite = options.suite
    located = locate(options, pick_sources(options.datasets), splits)
    benchmarks = [name for bench in (suite.disjoint_from if suite else ()) for name in SUITES[bench].datasets]
    tests = {name: locate_files(SOURCES[name], ["test"], options.raw) for name in dict.fromkeys(benchmarks)}
    _report_missing(options, located, tests)
    reading = read_datasets(options, splits, located)
    return Build(options, reading, tests, warnings=reading.warnings())


def _report_missing(options: BuildOptions, located: dict[str, Located], tests: dict[str, Located]) -> None:
    suite = options.suite
    missing = [error for files in (*located.values(), *tests.values()) for error in files.missing.values()]
    errors = list({str(error): error for error in missing}.values())
    count = "1 raw file is missing" if len(errors) == 1 else f"{len(errors)} raw files are missing"
    splits = [suite.split] if suite else []
    substitutes = [
        (name, line) for name, files in located.items() for split in splits for line in files.substitutes(split)
    ]
    replaced = [f"{name}: {line}" for name, line in substitutes]
    if suite and suite.ratios and not options.allow_shortfall:
        quotas = allot(options.size or suite.size, suite.ratios, {})
        if needed := [name for name, files in located.items() if files.missing and quotas[name]]:
            shares = ", ".join(f"{quotas[name]:,} rows of {name}" for name in needed)
            lines = [f"{count}, and {suite.name} wants {shares}:", *map(str, errors), *replaced]
            raise UserError("\n".join(lines), HOW_TO_FILL)
    lines = [*(line for error in errors for line in str(error).splitlines()), *replaced]
    # Where no dataset has all its files, the error at the end names them.
    if len(located) > 1 and lines and not all(files.missing for files in located.values()):
        head = f"{count}; the other rows are built" if errors else "official raw files are replaced"
        warn("\n".join([head, *(f"  {line}" for line in lines)]))


def read_tests(build: Build) -> None:
    """Read the test rows that must not be trained on: of the suite's benchmarks, and of `--against`."""
    options, names = build.options, list(build.located_tests)
    rows, unread, bad = dict[str, list[EventSample]](), dict[str, str](), dict[str, int]()
    if names:
        # Also what `answer_in_context` leaves out: another build may test on it.
        everything = [f"{name}.answer_in_context=false" for name in names]
        try:
            options_of_tests = replace(options, datasets=names, settings=everything)
            reading = read_datasets(options_of_tests, ["test"], build.located_tests)
        except MissingRawFileError as error:  # of all datasets
            unread = dict.fromkeys(names, error.message.splitlines()[0])
        else:
            reading.require_no_damage()
            unread = {name: reading.why(name) for name in reading.failures}
            bad = {name: count for name in reading.datasets if (count := reading.bad.count(name, "test"))}
            rows = {name: list(dataset.splits["test"].rows) for name, dataset in reading.datasets.items()}
            build.warnings += reading.warnings()
    for name in options.suite.disjoint_from if options.suite else ():
        build.tests.append(SampleSet(name, [row for part in SUITES[name].datasets for row in rows.get(part, [])]))
    build.tests += [SampleSet(path.name, read_set(path, ["test"]).samples) for path in options.against]
    skipped = {name: f"its test ({why})" for name, why in unread.items()}
    skipped |= {name: f"{count:,} bad test rows" for name, count in bad.items()}
    build.warnings += [f"{name}: training rows were not compared with {label}" for name, label in skipped.items()]
    if build.tests:
        sizes = {test.name: len(test.samples) for test in build.tests}
        build.parts["benchmark"] = {"kept_apart_from": sizes, "not_read": unread, "bad_rows": bad}


def leave_out_tests(build: Build) -> None:
    """Filter each training split by exact and near overlap with the tests (PIPER paper, section 4.1)."""
    trains = build.reading.trains
    if not build.tests:
        return
    kept = {id(row) for row in exclude_overlap([row for train in trains for row in train.rows], build.tests)}
    names = ", ".join(test.name for test in build.tests)
    reason = (
        f"the same raw row, context or question as in a test row of {names}, or a context or question that shares "
        f"{THRESHOLD:.0%} of its word n-grams with one"
    )
    for train in trains:
        train.keep("overlap with the benchmark", reason, [row for row in train.rows if id(row) in kept])


def bound_contexts(build: Build) -> None:
    """Keep training rows with a context of the wanted length (section 3.1 of the PIPER paper)."""
    bounds = build.options.bounds
    for train in build.reading.trains if bounds != ContextBounds() else ():
        most = "any number of" if bounds.most is None else bounds.most
        train.keep(
            f"context of {bounds.least or 0} to {most} words",
            "a very short context supports no reasoning, a very long one is mostly irrelevant to the question",
            [sample for sample in train.rows if bounds.admit(sample.context)],
        )


def drop_repeated(build: Build) -> None:
    """Keep the first row of each question, for a set that is drawn."""
    for train in build.reading.trains if build.is_drawn else ():
        train.keep(
            "repeated questions",
            "the same context, question and options more than once would be trained on more than once",
            first_of_each(train.rows, lambda row: (row.context, row.question, tuple(sorted(row.options)))),
        )


def judge_rows(build: Build) -> None:
    """Let a judge reject training rows; without a judge, the rule is only used for a drawn set."""
    judge, counts = build.options.judge_for("quality"), Counter[JudgedVerdict]()
    if judge is None or build.is_drawn:
        return
    for train in build.reading.trains:
        verdicts = judge_quality(train.rows, judge)
        counts.update(verdicts)
        kept = [sample for sample, verdict in zip(train.rows, verdicts, strict=True) if verdict in KEPT]
        reason = f"the judge found that the context does not support the answer ({_describe(Counter(verdicts))})"
        train.keep("quality", reason, kept)
    require_verdicts(judge, counts)


def weigh(build: Build) -> None:
    """Draw training rows of own datasets in proportion to their `weight`, as many as possible without repetition."""
    weights, trains = dict[str, float](), {}
    for name, dataset in build.reading.datasets.items():
        weight = dataset.source.own.content.get("weight") if dataset.source.own else None
        if weight and "train" in dataset.splits:
            weights[name], trains[name] = float(weight), dataset.splits["train"]
    scale = min((len(trains[name].rows) / weight for name, weight in weights.items()), default=0.0)
    shown = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
    for name, weight in weights.items():
        rows, count = trains[name].rows, round(scale * weight)
        chosen = sorted(build.options.random(f"{name}/weight").sample(range(len(rows)), min(count, len(rows))))
        if len(chosen) < len(rows):
            reason = f"weight {weight:g} of {shown}; no row is repeated"
            trains[name].keep("mixture weight", reason, [rows[place] for place in chosen])


def draw_rows(build: Build) -> None:
    """Draw the suite's rows in its ratios; UserError for a damaged raw file, or too few samples."""
    options, suite, reading = build.options, build.options.suite, build.reading
    if suite is None or not suite.ratios:
        return
    reading.require_no_damage()
    judge, counts = options.judge_for("quality"), Counter[JudgedVerdict]()

    def judged(samples: Sequence[EventSample]) -> list[JudgedVerdict]:
        verdicts = judge_quality(samples, judge)
        counts.update(verdicts)
        if counts.total() >= _ENOUGH:
            require_verdicts(judge, counts)
        return verdicts

    pools, size = _pools(build), options.size or suite.size
    samples, mixture = draw(
        pools, suite.ratios, size, judged, seed=options.seed, allow_shortfall=options.allow_shortfall
    )
    for name, dataset in reading.datasets.items():
        pool, train = pools[name], dataset.splits[suite.split]
        reason = "candidates are judged in a seeded order until the dataset's part is full"
        train.keep("order of the draw", reason, pool.candidates[: pool.judged])
        train.keep("quality", f"the context must support the answer ({_describe(pool.verdicts)})", pool.kept)
        train.keep(
            "draw", "the dataset's part of the instruction set", pool.kept[: mixture["datasets"][name]["drawn"]]
        )
    build.rows, build.parts["mixture"] = {suite.split: samples}, mixture


def join_rows(build: Build) -> None:
    """Put the rows of all datasets together, under the suite's names; a drawn set is together already."""
    suite = build.options.suite
    for dataset in build.reading.datasets.values() if not build.is_drawn else ():
        for split, part in dataset.splits.items():
            renamed = [suite.renamed(row) for row in part.rows] if suite else part.rows
            build.rows.setdefault(split, []).extend(renamed)


def first_judged(build: Build) -> list[EventSample]:
    """Return the training samples that a judge is asked about first, before any is rejected and replaced."""
    suite = build.options.suite
    if suite is None or not suite.ratios:
        return [sample for train in build.reading.trains for sample in train.rows]
    pools = _pools(build)
    limits = {name: len(pool.candidates) for name, pool in pools.items()}
    quotas = allot(build.options.size or suite.size, suite.ratios, limits)
    return [sample for name, pool in pools.items() for sample in pool.candidates[: quotas[name]]]


def _pools(build: Build) -> dict[str, MixturePool]:
    suite, reading, pools = build.options.suite, build.reading, dict[str, MixturePool]()
    assert suite is not None
    for name in suite.ratios:
        if name not in reading.datasets:
            pools[name] = MixturePool(name, [], reason=reading.why(name))
            continue
        dataset = reading.datasets[name]
        candidates = list(dataset.splits[suite.split].rows)
        build.options.random(f"{name}/draw").shuffle(candidates)
        pools[name] = MixturePool(name, candidates, reason="; ".join(dataset.located.substitutes(suite.split)))
    return pools


def _describe(verdicts: Counter[JudgedVerdict]) -> str:
    return ", ".join(f"{count:,} {verdict.value}" for verdict, count in sorted(verdicts.items()))
