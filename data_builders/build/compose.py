"""Choose rows among the samples that were read: filters, the suite's names, the draw in fixed ratios."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from d2e_sft.data.sample import EventSample, Split
from data_builders.build.benchmark import Benchmark, leave_out
from data_builders.build.mixture import Pool, allot, draw
from data_builders.build.options import BuildOptions
from data_builders.build.reading import Reading
from data_builders.build.suites import ContextBounds, Suite
from data_builders.quality.judged import KEPT, Verdict, judge_quality, require_verdicts
from data_builders.raw.source import Samples
from data_builders.sources.reading import first_of_each
from data_builders.swap.swap import Swaps

_ENOUGH = 20  # samples without a verdict, after which a judge that gave none is given up


@dataclass
class Composition:
    """The rows of each split in the order of writing, and how they were made.

    Attributes:
        mixture: The manifest's entry of the draw, for a suite with ratios.
        refining: Split → how many contexts were refined in which way, if a judge refined them.
        swaps: Split → dataset → counts of swapped rows.
    """

    rows: dict[Split, list[EventSample]]
    mixture: dict[str, Any] | None = None
    refining: dict[Split, dict[str, int]] = field(default_factory=dict)
    swaps: dict[Split, dict[str, Swaps]] = field(default_factory=dict)

    def of(self, dataset: str, split: Split) -> list[EventSample]:
        """Return the rows of one source, whatever name the suite gives them."""
        return [row for row in self.rows.get(split, []) if source_of(row) == dataset]


def source_of(sample: EventSample) -> str:
    """Return the name of a sample's source."""
    return str(sample.meta.get("source_dataset", sample.dataset))


def compose(options: BuildOptions, reading: Reading, benchmark: Benchmark) -> Composition:
    """Choose the rows; UserError for a damaged raw file, or too few samples, for a suite with ratios."""
    _curate(options, reading, benchmark)
    if options.suite and options.suite.ratios:
        return _drawn(options, options.suite, reading)
    rows: dict[Split, list[EventSample]] = {}
    if judge := options.judge_for("quality"):
        # Without a judge, the rule is only used for a drawn set.
        every = Counter[Verdict]()
        for train in _trains(reading):
            verdicts = judge_quality(train.rows, judge)
            every.update(verdicts)
            kept = [sample for sample, verdict in zip(train.rows, verdicts, strict=True) if verdict in KEPT]
            reason = f"the judge found that the context does not support the answer ({_describe(Counter(verdicts))})"
            train.keep("quality", reason, kept)
        require_verdicts(judge, every)
    _weigh(options, reading)
    for dataset in reading.datasets.values():
        for split, found in dataset.splits.items():
            named = [options.suite.renamed(s) for s in found.rows] if options.suite else found.rows
            rows.setdefault(split, []).extend(named)
    return Composition(rows)


def first_judged(options: BuildOptions, reading: Reading, benchmark: Benchmark) -> list[EventSample]:
    """Return the training samples that a judge is asked about first, before any is rejected and replaced."""
    _curate(options, reading, benchmark)
    if options.suite and options.suite.ratios:
        assert options.suite.size is not None
        pools = {name: _pool(options, options.suite, reading, name) for name in options.suite.ratios}
        limits = {name: len(pool.candidates) for name, pool in pools.items()}
        quotas = allot(options.size or options.suite.size, options.suite.ratios, limits)
        return [sample for name, pool in pools.items() for sample in pool.candidates[: quotas[name]]]
    return [sample for train in _trains(reading) for sample in train.rows]


def _trains(reading: Reading) -> list[Samples]:
    """Return the training split of each dataset that has one."""
    return [dataset.splits["train"] for dataset in reading.datasets.values() if "train" in dataset.splits]


def _curate(options: BuildOptions, reading: Reading, benchmark: Benchmark) -> None:
    """Apply the filters of all training sources before any draw (section 3.1 of the PIPER paper)."""
    trains, bounds = _trains(reading), options.bounds
    leave_out(trains, benchmark)
    for train in trains:
        if bounds != ContextBounds():
            most = "any number of" if bounds.most is None else bounds.most
            train.keep(
                f"context of {bounds.least or 0} to {most} words",
                "a very short context supports no reasoning, a very long one is mostly beside the question",
                [sample for sample in train.rows if bounds.admit(sample.context)],
            )
        if options.suite and options.suite.ratios:
            train.keep(
                "repeated questions",
                "the same context, question and options more than once would be trained on more than once",
                first_of_each(train.rows, lambda one: (one.context, one.question, tuple(sorted(one.options)))),
            )


def _weigh(options: BuildOptions, reading: Reading) -> None:
    """Draw training rows of own datasets in proportion to their `weight`, as many as possible without repetition."""
    weights = {
        name: float(weight)
        for name, dataset in reading.datasets.items()
        if dataset.source.own and (weight := dataset.source.own.content.get("weight")) and "train" in dataset.splits
    }
    trains = {name: reading.datasets[name].splits["train"] for name in weights}
    scale = min((len(trains[name].rows) / weight for name, weight in weights.items()), default=0.0)
    for name, weight in weights.items():
        rows, wanted = trains[name].rows, round(scale * weight)
        chosen = sorted(options.random(f"{name}/weight").sample(range(len(rows)), min(wanted, len(rows))))
        reason = f"weight {weight:g} of {', '.join(f'{one} {weights[one]:g}' for one in weights)}; no row is repeated"
        if len(chosen) < len(rows):
            trains[name].keep("mixture weight", reason, [rows[place] for place in chosen])


def _drawn(options: BuildOptions, suite: Suite, reading: Reading) -> Composition:
    reading.require_no_damage()
    assert suite.size is not None
    judge = options.judge_for("quality")
    pools = {name: _pool(options, suite, reading, name) for name in suite.ratios}
    every = Counter[Verdict]()

    def judged(samples: Sequence[EventSample]) -> list[Verdict]:
        verdicts = judge_quality(samples, judge)
        every.update(verdicts)
        if every.total() >= _ENOUGH:
            require_verdicts(judge, every)
        return verdicts

    samples, mixture = draw(
        pools,
        suite.ratios,
        options.size or suite.size,
        judged,
        seed=options.seed,
        allow_shortfall=options.allow_shortfall,
    )
    for name, dataset in reading.datasets.items():
        pool, found = pools[name], dataset.splits[suite.split]
        found.keep(
            "order of the draw",
            "candidates are judged in a seeded order until the dataset's part is full",
            pool.candidates[: pool.judged],
        )
        found.keep("quality", f"the context must support the answer ({_describe(pool.verdicts)})", pool.kept)
        drawn = mixture["datasets"][name]["drawn"]
        found.keep("draw", "the dataset's part of the instruction set", pool.kept[:drawn])
    return Composition({suite.split: samples}, mixture)


def _pool(options: BuildOptions, suite: Suite, reading: Reading, name: str) -> Pool:
    if name not in reading.datasets:
        return Pool(name, [], reason=reading.why(name))
    dataset = reading.datasets[name]
    candidates = list(dataset.splits[suite.split].rows)
    options.random(f"{name}/draw").shuffle(candidates)
    return Pool(name, candidates, reason="; ".join(dataset.substitutes(suite.split)))


def _describe(verdicts: Counter[Verdict]) -> str:
    return ", ".join(f"{count:,} {verdict.value}" for verdict, count in sorted(verdicts.items()))
