"""Named sets of datasets: PIPER's test sets, its instruction set, out-of-distribution tests, knowledge conflicts.

PIPER's published counts are from Table 7 of its paper, its ratios from Table 3. The conflict suite counts the rows of
the published files.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from d2e_sft.data.sample import EventSample, Format, Relation, Split
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import load_package_yaml


@dataclass(frozen=True)
class ContextBounds:
    """Bounds on the words (separated by blanks) of a training sample's context; None for no bound."""

    least: int | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        if self.least is not None and self.most is not None and self.least > self.most:
            raise UserError(f"--min-context-words {self.least} is above --max-context-words {self.most}")

    def admit(self, context: str) -> bool:
        words = len(context.split())
        return (self.least is None or words >= self.least) and (self.most is None or words <= self.most)


@dataclass(frozen=True)
class PublishedCount:
    """The published number of test samples of a dataset and relation; for PIPER, a row of its Table 7."""

    relation: Relation
    dataset: str
    format: Format
    count: int


@dataclass(frozen=True)
class Suite:
    """A set of datasets that are built together.

    Attributes:
        name: Value of `--suite`.
        summary: Description in one line of help.
        datasets: The sources, in the order of the rows.
        ratios: Dataset → percentage of the drawn set; empty if all rows are taken.
        size: Number of rows to draw; 0 if all are taken.
        disjoint_from: Suites whose test rows it must not contain.
        optional: Datasets that only some users can get; the suite is complete without them.
        merged: (dataset, relation) → the name under which the suite counts these rows, if it differs.
    """

    name: str
    title: str
    summary: str
    split: Split
    datasets: Sequence[str]
    published: Sequence[PublishedCount] = ()
    ratios: Mapping[str, float] = field(default_factory=dict)
    size: int = 0
    bounds: ContextBounds = field(default_factory=ContextBounds)
    disjoint_from: Sequence[str] = ()
    optional: Collection[str] = ()
    merged: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def renamed(self, sample: EventSample) -> EventSample:
        """Return the sample under the suite's name for its dataset; `meta.source_dataset` keeps the original."""
        name = self.merged.get((sample.dataset, sample.relation))
        if name is None:
            return sample
        return sample.model_copy(update={"dataset": name, "meta": {**sample.meta, "source_dataset": sample.dataset}})

    def sources_of(self, row: PublishedCount) -> list[str]:
        """Return the datasets whose samples a published row counts."""
        published = (row.dataset, row.relation)
        merged = [dataset for (dataset, relation), name in self.merged.items() if (name, relation) == published]
        return merged or [row.dataset]


def _suite(name: str, facts: dict[str, Any]) -> Suite:
    published = tuple(PublishedCount(*row) for row in facts.pop("published", ()))
    bounds = ContextBounds(**facts.pop("bounds", {}))
    merged = {
        (dataset, relation): new
        for new, rows in facts.pop("merged", {}).items()
        for dataset in rows["datasets"]
        for relation in rows["relations"]
    }
    return Suite(name=name, published=published, bounds=bounds, merged=merged, **facts)


SUITES: dict[str, Suite] = {
    name: _suite(name, facts) for name, facts in load_package_yaml(Path(__file__).with_suffix(".yaml")).items()
}
PIPER_10K = SUITES["piper-10k"]
