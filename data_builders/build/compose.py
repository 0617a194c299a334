"""Which of the samples that were read become rows: filters, the suite's own names, the draw in fixed ratios."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from d2e_sft.data.sample import EventSample, Split
from data_builders.build.benchmark import Benchmark, leave_out
from data_builders.build.curation import within_bounds, without_repeats
from data_builders.build.mixture import Mixture, Pool, allot, draw
from data_builders.build.options import Options
from data_builders.build.reading import ReadDataset, Reading
from data_builders.build.suites import Suite
from data_builders.quality.judged import KEPT, Verdict, judge_quality


@dataclass
class Composition:
    """The rows of each split in the order in which they are written, and how they were drawn."""

    rows: dict[Split, list[EventSample]]
    mixture: Mixture | None = None

    def of(self, dataset: str, split: Split) -> list[EventSample]:
        """The rows that came from one source, under whatever name the suite counts them."""
        return [row for row in self.rows.get(split, []) if source_of(row) == dataset]


def source_of(sample: EventSample) -> str:
    """The source that a sample was built by."""
    return str(sample.meta.get("source_dataset", sample.dataset))


def compose(options: Options, reading: Reading, benchmark: Benchmark) -> Composition:
    """Choose the rows.

    Raises:
        UserError: a damaged raw file, or too few samples, for a suite with ratios.
    """
    _curate(options, reading, benchmark)
    if options.suite and options.suite.ratios:
        return _drawn(options, options.suite, reading)
    rows: dict[Split, list[EventSample]] = {}
    for dataset in reading.datasets.values():
        _filter_quality(options, dataset)
        for split, found in dataset.splits.items():
            named = [options.suite.renamed(s) for s in found.samples] if options.suite else found.samples
            rows.setdefault(split, []).extend(named)
    return Composition(rows)


def first_judged(options: Options, reading: Reading, benchmark: Benchmark) -> list[EventSample]:
    """The training samples that a judge is asked about first, before any is refused and replaced."""
    _curate(options, reading, benchmark)
    if options.suite and options.suite.ratios:
        assert options.suite.size is not None
        pools = {name: _pool(options, options.suite, reading, name) for name in options.suite.ratios}
        limits = {name: len(pool.candidates) for name, pool in pools.items()}
        quotas = allot(options.size or options.suite.size, options.suite.ratios, limits)
        return [sample for name, pool in pools.items() for sample in pool.candidates[: quotas[name]]]
    trains = (dataset.splits.get("train") for dataset in reading.datasets.values())
    return [sample for train in trains if train for sample in train.samples]


def _curate(options: Options, reading: Reading, benchmark: Benchmark) -> None:
    leave_out(reading, benchmark)
    for dataset in reading.datasets.values():
        if train := dataset.splits.get("train"):
            train.samples = within_bounds(train.samples, options.bounds, train.filters)
            if options.suite and options.suite.ratios:
                train.samples = without_repeats(train.samples, train.filters)


def _filter_quality(options: Options, dataset: ReadDataset) -> None:
    """Whole sets are judged by a language model only: the rule is meant for the instruction set."""
    judge, train = options.judge_for("quality"), dataset.splits.get("train")
    if judge is None or not train:
        return
    verdicts = judge_quality(train.samples, judge)
    train.samples = train.filters.record(
        "quality",
        f"the judge found that the context does not support the answer ({_describe(Counter(verdicts))})",
        train.samples,
        [sample for sample, verdict in zip(train.samples, verdicts, strict=True) if verdict in KEPT],
    )


def _drawn(options: Options, suite: Suite, reading: Reading) -> Composition:
    if reading.damaged:
        raise next(iter(reading.damaged.values()))
    assert suite.size is not None
    judge = options.judge_for("quality")
    mixture = draw(
        {name: _pool(options, suite, reading, name) for name in suite.ratios},
        suite.ratios,
        options.size or suite.size,
        lambda samples: judge_quality(samples, judge),
        seed=options.seed,
        allow_shortfall=options.allow_shortfall,
    )
    for name, dataset in reading.datasets.items():
        pool, found = mixture.pools[name], dataset.splits[suite.split]
        considered = found.filters.record(
            "order of the draw",
            "candidates are judged in a seeded order until the dataset's part is full",
            pool.candidates,
            pool.candidates[: pool.judged],
        )
        judged = found.filters.record(
            "quality",
            f"the context must support the answer ({_describe(pool.verdicts)})",
            considered,
            pool.kept,
        )
        found.samples = found.filters.record(
            "draw", "the dataset's part of the instruction set", judged, pool.kept[: mixture.drawn[name]]
        )
    return Composition({suite.split: mixture.samples}, mixture)


def _pool(options: Options, suite: Suite, reading: Reading, name: str) -> Pool:
    if name not in reading.datasets:
        return Pool(name, [], reason=reading.why(name))
    dataset = reading.datasets[name]
    candidates = list(dataset.splits[suite.split].samples)
    options.random(f"{name}/draw").shuffle(candidates)
    return Pool(name, candidates, reason="; ".join(dataset.substitutes(suite.split)))


def _describe(verdicts: Counter[Verdict]) -> str:
    return ", ".join(f"{count:,} {verdict.value}" for verdict, count in sorted(verdicts.items()))
