"""Named sets of datasets: PIPER's test sets, its instruction set, out-of-distribution tests, knowledge conflicts.

PIPER's published counts are from Table 7 of its paper, its ratios from Table 3. The conflict suite counts the rows of
the published files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from d2e_sft.data.sample import EventSample, Format, Relation, Split
from d2e_sft.util.errors import UserError
from data_builders.sources import CONFLICT_SOURCES, PIPER_SOURCES


@dataclass(frozen=True)
class ContextBounds:
    """Bounds on the words (separated by blanks) of a training sample's context; None for no bound.

    Raises:
        UserError: a negative bound, or a lower one above the upper one.
    """

    least: int | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("--min-context-words", self.least), ("--max-context-words", self.most)):
            if value is not None and value < 0:
                raise UserError(f"{name}: got {value}; expected a number of words, 0 or more")
        if self.least is not None and self.most is not None and self.least > self.most:
            raise UserError(f"--min-context-words {self.least} is above --max-context-words {self.most}")

    def admit(self, context: str) -> bool:
        words = len(context.split())
        return (self.least is None or words >= self.least) and (self.most is None or words <= self.most)


@dataclass(frozen=True)
class PublishedRow:
    """The published number of test samples of a dataset and relation; for PIPER, a row of its Table 7."""

    relation: Relation
    dataset: str
    format: Format
    count: int
    comment: str = ""


@dataclass(frozen=True)
class Suite:
    """A set of datasets that are built together.

    Attributes:
        name: Value of `--suite`.
        title: Title of the dataset card.
        summary: Description in one line of help.
        split: The split that is written.
        datasets: The sources, in the order of the rows.
        published: Published counts to compare with.
        ratios: Dataset → percentage of the drawn set; empty if all rows are taken.
        size: Number of rows to draw; None if all are taken.
        bounds: Limits on the length of its contexts.
        disjoint_from: Suites whose test rows it must not contain.
        optional: Datasets that only some users can get; the suite is complete without them.
        merged: (dataset, relation) → the name under which the suite counts these rows, if it differs.
    """

    name: str
    title: str
    summary: str
    split: Split
    datasets: tuple[str, ...]
    published: tuple[PublishedRow, ...] = ()
    ratios: Mapping[str, float] = field(default_factory=dict)
    size: int | None = None
    bounds: ContextBounds = field(default_factory=ContextBounds)
    disjoint_from: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()
    merged: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def renamed(self, sample: EventSample) -> EventSample:
        """Return the sample under the suite's name for its dataset; `meta.source_dataset` keeps the original."""
        name = self.merged.get((sample.dataset, sample.relation))
        if name is None:
            return sample
        return sample.model_copy(update={"dataset": name, "meta": {**sample.meta, "source_dataset": sample.dataset}})

    def sources_of(self, row: PublishedRow) -> list[str]:
        """Return the datasets whose samples a published row counts."""
        merged = [
            dataset
            for (dataset, relation), name in self.merged.items()
            if (name, relation) == (row.dataset, row.relation)
        ]
        return merged or [row.dataset]


PIPER = Suite(
    name="piper",
    title="PIPER event-reasoning test sets",
    summary="the 15 test sets of the PIPER benchmark (Table 7)",
    split="test",
    datasets=tuple(source.name for source in PIPER_SOURCES),
    published=(
        PublishedRow("temporal", "tempreason", "qa", 1_010),
        PublishedRow("temporal", "timeqa", "qa", 630),
        PublishedRow("temporal", "tracie", "nli", 2_039),
        PublishedRow("temporal", "mctaco", "mcq", 234),
        PublishedRow("temporal", "cider", "nli", 136),
        PublishedRow("causal", "cster", "qa", 1_617),
        PublishedRow("causal", "cosmosqa", "scq", 2_701),
        PublishedRow("causal", "ecare", "scq", 2_122),
        PublishedRow("causal", "cider", "nli", 1_469),
        PublishedRow("counterfactual", "cster", "qa", 1_957, "the paper's appendix A says 1,921"),
        PublishedRow("counterfactual", "cosmosqa", "scq", 284),
        PublishedRow("counterfactual", "ifqa", "qa", 700),
        PublishedRow("counterfactual", "wiqa", "scq", 3_003),
        PublishedRow("subevent_conditional", "ester", "qa", 108),
        PublishedRow("subevent_conditional", "cider", "nli", 356),
    ),
    merged={(dataset, relation): "cster" for dataset in ("ester", "cqa") for relation in ("causal", "counterfactual")},
)

_RATIOS = {
    "mctaco": 0.85,
    "ifqa": 4.20,
    "tracie": 5.08,
    "ecare": 6.45,
    "tempreason": 7.00,
    "timeqa": 7.00,
    "wiqa": 12.80,
    "cosmosqa": 12.80,
    "ester": 17.51,
    "cqa": 26.31,
}
PIPER_10K = Suite(
    name="piper-10k",
    title="PIPER event-reasoning instruction set",
    summary="the instruction set: 10,000 training samples in the ratios of Table 3",
    split="train",
    datasets=tuple(_RATIOS),
    ratios=_RATIOS,
    size=10_000,
    # The paper gives no bounds for training contexts. The upper bound is that of appendix A for TempReason; the lower
    # one drops fragments but keeps the one-sentence contexts of e-CARE and MC-TACO.
    bounds=ContextBounds(least=3, most=600),
    disjoint_from=("piper", "ood"),
)

OOD = Suite(
    name="ood",
    title="Event-reasoning out-of-distribution test sets",
    summary="the out-of-distribution tests of appendix G: CIDER, SocialIQA, αNLI and Story Cloze",
    split="test",
    datasets=("cider", "socialiqa", "alphanli", "storycloze"),
    optional=frozenset({"storycloze"}),
)

CONFLICT = Suite(
    name="conflict",
    title="Knowledge-conflict test sets: context against habit",
    summary="knowledge conflicts: is the answer the context's or habit's? Rows are tagged aligned or conflict",
    split="test",
    datasets=tuple(source.name for source in CONFLICT_SOURCES),
    published=(
        PublishedRow("temporal", "matres", "scq", 818),
        PublishedRow("temporal", "torque", "mcq", 1_483),
        PublishedRow("factual", "kre_squad", "scq", 3_538),
        PublishedRow("factual", "nq_swap", "qa", 4_746),
        PublishedRow("factual", "faitheval", "scq", 1_000),
        PublishedRow("factual", "memotrap", "scq", 2_539),
        PublishedRow("factual", "cpi_facts", "qa", 313),
    ),
)

SUITES: dict[str, Suite] = {suite.name: suite for suite in (PIPER, PIPER_10K, OOD, CONFLICT)}
