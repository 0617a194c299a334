"""Keep benchmark samples out of a training set (PIPER paper, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from d2e_sft.data.sample import EventSample
from data_builders.build.options import BuildOptions
from data_builders.build.reading import read_datasets
from data_builders.build.suites import SUITES
from data_builders.dataset.sample_sets import SampleSet, read_set
from data_builders.quality.contamination import THRESHOLD, exclude_overlap
from data_builders.raw.files import Missing, MissingRawFileError
from data_builders.raw.source import Samples


@dataclass
class Benchmark:
    """Samples to keep out of training.

    Attributes:
        sets: Test samples of suites and files.
        unread: Dataset → why its test rows could not be read; no training row was compared with them.
        bad_rows: Dataset → number of bad test rows; no training row was compared with them.
        warnings: One line for each test that differs from the published one or was not fully compared.
    """

    sets: list[SampleSet] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    bad_rows: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def describe(self) -> dict[str, Any] | None:
        """Return the entry of the manifest; None without a benchmark."""
        if not self.sets:
            return None
        sizes = {test.name: len(test.samples) for test in self.sets}
        return {"kept_apart_from": sizes, "not_read": self.unread, "bad_rows": self.bad_rows}


def read_benchmark(options: BuildOptions, missing: Missing | None = None) -> Benchmark:
    """Return the test rows of the suites that the built one must be disjoint from, and of the files of `--against`.

    `missing` is what `report_missing_files` returned.

    Raises:
        UserError: a file of `--against`, or an existing raw test file, cannot be read.
    """
    benchmark = Benchmark()
    suites = [SUITES[name] for name in options.suite.disjoint_from] if options.suite else []
    names = list(dict.fromkeys(name for suite in suites for name in suite.datasets))
    tests = _test_rows(options, names, benchmark, missing)
    for suite in suites:
        rows = [row for name in suite.datasets for row in tests.get(name, [])]
        benchmark.sets.append(SampleSet(suite.name, rows))
    benchmark.sets += [SampleSet(path.name, read_set(path, ["test"]).samples) for path in options.against]
    skipped = {name: f"its test ({why})" for name, why in benchmark.unread.items()}
    skipped |= {name: f"{count:,} bad test rows" for name, count in benchmark.bad_rows.items()}
    benchmark.warnings += [f"{name}: training rows were not compared with {what}" for name, what in skipped.items()]
    return benchmark


def leave_out(trains: Sequence[Samples], benchmark: Benchmark) -> None:
    """Filter each training split by exact and near overlap with the benchmark."""
    if not benchmark.sets:
        return
    kept = {id(row) for row in exclude_overlap([row for train in trains for row in train.rows], benchmark.sets)}
    names = ", ".join(test.name for test in benchmark.sets)
    reason = (
        f"the same raw row, context or question as in a test row of {names}, or a context or question that shares "
        f"{THRESHOLD:.0%} of its word n-grams with one"
    )
    for train in trains:
        train.keep("overlap with the benchmark", reason, [row for row in train.rows if id(row) in kept])


def _test_rows(
    options: BuildOptions, names: list[str], benchmark: Benchmark, missing: Missing | None
) -> dict[str, list[EventSample]]:
    """Return the test rows by dataset, and record in `benchmark` what could not be read."""
    if not names:
        return {}
    try:
        # Also what `answer_in_context` leaves out: another build may test on it.
        everything = [f"{name}.answer_in_context=false" for name in names]
        reading = read_datasets(replace(options, datasets=names, settings=everything), ["test"], missing)
    except MissingRawFileError as error:  # of all datasets
        benchmark.unread = dict.fromkeys(names, error.message.splitlines()[0])
        return {}
    reading.require_no_damage()
    benchmark.unread = {name: reading.why(name) for name in reading.failures}
    counts = {name: reading.bad.count(name, "test") for name in reading.datasets}
    benchmark.bad_rows = {name: count for name, count in counts.items() if count}
    benchmark.warnings = reading.warnings()
    return {name: list(dataset.splits["test"].rows) for name, dataset in reading.datasets.items()}
