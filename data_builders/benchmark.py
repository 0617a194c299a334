"""The benchmark samples that a training set must not hold (PIPER paper, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass, field

from d2e_sft.errors import UserError
from d2e_sft.sample import EventSample
from data_builders.contamination import exclude_overlap
from data_builders.options import Options
from data_builders.reading import Reading, read_datasets
from data_builders.sample_sets import read_set
from data_builders.settings import parse_settings
from data_builders.sources import SOURCES
from data_builders.suites import SUITES, Suite


@dataclass
class Benchmark:
    """Samples to keep out of training.

    Attributes:
        sets: name of a suite or file → its test samples.
        unread: dataset → why its test could not be read, so that nothing was kept apart from it.
    """

    sets: dict[str, list[EventSample]] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    def warnings(self) -> list[str]:
        """One line for each test that could not be read."""
        return [
            f"{name}: its test could not be read, so nothing was kept apart from it ({why})"
            for name, why in self.unread.items()
        ]


def read_benchmark(options: Options) -> Benchmark:
    """The test rows of the suites that the built one is disjoint from, and of the files that the user names.

    Raises:
        UserError: a file that the user names cannot be read.
    """
    benchmark = Benchmark()
    for name in options.suite.disjoint_from if options.suite else ():
        benchmark.sets[name] = _test_rows(options, SUITES[name], benchmark.unread)
    for path in options.against:
        benchmark.sets[path.name] = read_set(path, ["test"]).samples
    return benchmark


def leave_out(reading: Reading, benchmark: Benchmark) -> None:
    """Take out of each training split what overlaps exactly with the benchmark; logged."""
    trains = [dataset.splits["train"] for dataset in reading.datasets.values() if "train" in dataset.splits]
    staying = [row for train in trains for row in train.samples]
    for samples in benchmark.sets.values():
        staying, _ = exclude_overlap(staying, samples)
    kept = {id(row) for row in staying}
    if benchmark.sets:
        for train in trains:
            train.samples = train.filters.record(
                "overlap with the benchmark",
                f"the same raw row, context or question as in a test row of {', '.join(benchmark.sets)}",
                train.samples,
                [row for row in train.samples if id(row) in kept],
            )


def _test_rows(options: Options, suite: Suite, unread: dict[str, str]) -> list[EventSample]:
    sources = [SOURCES[name] for name in suite.datasets]
    try:
        reading = read_datasets(
            sources, ["test"], parse_settings((), sources), raw=options.raw, seed=options.seed, skip_bad=True
        )
    except UserError as error:  # none of them can be read
        unread |= dict.fromkeys(suite.datasets, error.message)
        return []
    unread |= {name: reading.why(name) for name in reading.failures}
    return [row for dataset in reading.datasets.values() for row in dataset.splits["test"].samples]
