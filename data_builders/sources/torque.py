"""TORQUE (Ning et al., EMNLP 2020): which events of a passage answer a question about their order in time?

The test is the published development file. Fang et al. (Findings of NAACL 2024) published which of its questions go
against what a prior would answer: by the events themselves (erp), the tenses, the order in the text (narrative), the
dependency between the events, and by the event or the tense of a word for the fixed questions (warmup). A question
may be a conflict by one prior and aligned by another. Without `bias` it is a `conflict` row if it is one by any
prior, and an `aligned` row if it is one by some and a conflict by none.

Which events the prior would name is not published, so the habit is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from d2e_sft.data.sample import Split, Subset
from data_builders.raw.reader import Draft
from data_builders.raw.row import Row
from data_builders.raw.source import Input, Job, RawFile, Samples, Source, SourceOptions, SplitRows
from data_builders.sources.matres import conflict_study

Bias = Literal["erp", "tense_relation", "narrative", "dependency", "warmup_answer", "warmup_tense"]
BIASES: tuple[Bias, ...] = get_args(Bias)
_SIDES = ("conflict", "align")

_FILES = conflict_study("TORQUE/data")
DEV = _FILES.file(
    "torque/individual_dev_end2end_final.json",
    "a4b4ed5bf8219dd71d155825d93c75444887d40fbaec85cea53e98dea710a5e6",
    3_011_695,
    path="individual_dev_end2end_final.json",
)
SUBSETS = RawFile(
    "derived/torque_subsets.json",
    sha256="bceea5dd20d2e1913f90753ee17c7049c6d9348d9a06312072a7936618bf8a68",
    bytes=159_212,
    by_hand="it is a table of ids that was made from the published subsets; get those instead",
    substitute="a table of the ids in the published subsets",
)
# By prior: checksum and size of the conflicting questions, and of the aligned ones.
_PUBLISHED: dict[Bias, tuple[tuple[str, int], tuple[str, int]]] = {
    "erp": (
        ("58755973448f53f931ecd408ac4db2d9ea460d9d979992faf96a3d0523f5e40c", 190_523),
        ("dc2c885807ae8a1bc72c36432114f4abd1ba14b40638df9b3037e2b8a445a5a6", 1_288_988),
    ),
    "tense_relation": (
        ("6bac9e982d6d939d9ca12ad66cd7805d0e2ce5feb7b84a429407a6d97604f3aa", 545_012),
        ("87ffe0d06ab0af0908d48906f12f0ee2310df35a2ff10243176f044e8791d354", 1_383_584),
    ),
    "narrative": (
        ("765e0e8d669671740c416da37a7d57c6d770916d3745cf930734f5ce702c9635", 329_028),
        ("58fa5a07f46271913b99c8680079fbba5147a756a295d0cd313aa43846e069a4", 1_599_568),
    ),
    "dependency": (
        ("2672e388ed4b4e0e473ec8424e1ff7e1efaa1c53e822167c52a8f5cc07c68818", 152_848),
        ("6f0fba9a26911a69cf2fbe6e11dbfaad7bf5b62ba7592e67fc8adfb776a9179c", 413_261),
    ),
    "warmup_answer": (
        ("167b1fc4693bee47f1d62d3acaa446f07fbeced5b8edf407067450eb58dfd908", 135_559),
        ("f04b7ce25fe04ccd7159568633b6d20c1e117a60a0d3679b47c66dedd392e724", 118_646),
    ),
    "warmup_tense": (
        ("87e48a3518aa1800a476631cfa4edd73f6cac27afda871d9219f48183a0278dd", 145_630),
        ("a3791dda54f339b35e1d24c8830891312c2dc0fd62f7e1e17d79ca82e7d051a7", 108_575),
    ),
}
_DOUBLE_QUOTE = "@"  # what the published words have for a quotation mark


class TorqueOptions(SourceOptions):
    """Options of TORQUE.

    Attributes:
        bias: the prior whose subsets are read; `any` joins them.
    """

    bias: Bias | Literal["any"] = "any"


@dataclass(frozen=True)
class _Subsets:
    """The ids of the conflicting and of the aligned questions, by prior."""

    conflict: Mapping[Bias, frozenset[str]]
    aligned: Mapping[Bias, frozenset[str]]

    def of(self, name: str, priors: Iterable[Bias]) -> Subset | None:
        """The subset of a question under some priors; None where none of them knows it."""
        chosen = list(priors)
        if any(name in self.conflict[prior] for prior in chosen):
            return "conflict"
        return "aligned" if any(name in self.aligned[prior] for prior in chosen) else None


def read(job: Job) -> dict[Split, Samples]:
    """Build test: 443 conflict and 375 aligned rows; for example 140 and 607 with bias=narrative."""
    options = job.options
    assert isinstance(options, TorqueOptions)
    priors = BIASES if options.bias == "any" else (options.bias,)
    raw, subsets = job.input("test"), _subsets(job)
    rows = SplitRows(raw.parse(raw.json_members(), lambda row: _parse(row, subsets, priors)))
    rows.keep(
        "questions with an answer",
        "no event answers the others, and a choice of none is no answer here; no conflicting question is among them",
        [row for row in rows.rows if row.answers],
    )
    rows.keep(
        "questions in a published subset",
        "no prior is known for the others (bias)",
        [row for row in rows.rows if row.subset],
    )
    return {"test": rows.become(raw.parse(rows.rows, raw.sample))}


def _subsets(job: Job) -> _Subsets:
    conflict, aligned = ({prior: frozenset(_ids(job, prior, side)) for prior in BIASES} for side in _SIDES)
    return _Subsets(conflict, aligned)


def _key(prior: Bias, side: str) -> str:
    return f"{prior}_{side}"


def _ids(job: Job, prior: Bias, side: str) -> list[str]:
    raw = job.input(_key(prior, side), "test")
    if job.file(_key(prior, side)) is not SUBSETS:
        return [row.key for row in raw.json_members()]
    tables = raw.parse(raw.json_lines(), lambda row: row.object(prior).texts(side))
    return [name for table in tables for name in table]


def _parse(row: Row, subsets: _Subsets, priors: Sequence[Bias]) -> Draft:
    words, judged = row.texts("context"), row.object("answers")
    candidates, right = (_marks(judged, name, len(words)) for name in ("types", "labels"))
    if not any(candidates) or any(label and not event for event, label in zip(candidates, right, strict=True)):
        raise judged.error("labels", "answers among the events of answers.types")
    shown = number_repeats([word.replace(_DOUBLE_QUOTE, '"') for word in words], candidates)
    return Draft(
        number=row.number,
        id=row.key,
        relation="temporal",
        context=" ".join(shown),
        question=row.text("question"),
        options=[word for word, event in zip(shown, candidates, strict=True) if event],
        answers=[word for word, label in zip(shown, right, strict=True) if label],
        subset=subsets.of(row.key, priors),
        meta={
            "cluster": row.text("question_cluster"),
            "conflicts_with": [prior for prior in BIASES if row.key in subsets.conflict[prior]],
            "aligned_with": [prior for prior in BIASES if row.key in subsets.aligned[prior]],
        },
    )


def _marks(row: Row, name: str, length: int) -> list[int]:
    marks = row.get(name)
    if not isinstance(marks, list) or len(marks) != length or not all(mark in (0, 1) for mark in marks):
        raise row.error(name, f"a list of {length} marks, 0 or 1, one for each word of the context")
    return marks


def number_repeats(words: Sequence[str], events: Sequence[int]) -> list[str]:
    """The words, with a number after each event that has the spelling of another: "said (1)", "said (2)".

    Args:
        events: 1 for a word that is an event, else 0.
    """
    marked = list(zip(words, events, strict=True))
    counts = Counter(word.casefold() for word, event in marked if event)
    met: Counter[str] = Counter()
    shown = []
    for word, event in marked:
        met[word.casefold()] += event
        shown.append(f"{word} ({met[word.casefold()]})" if event and counts[word.casefold()] > 1 else word)
    return shown


def _inputs() -> Iterable[Input]:
    yield Input("test", (DEV,), ("test",))
    for prior, published in _PUBLISHED.items():
        for side, ending, (sha256, size) in zip(_SIDES, ("", "_align"), published, strict=True):
            name = f"individual_dev_{prior}_bias{ending}.json"
            file = _FILES.file(f"torque/{name}", sha256, size, path=f"dataset_bias_new/{name}")
            yield Input(_key(prior, side), (file, SUBSETS), ("test",))


TORQUE = Source(
    name="torque",
    format="mcq",
    licence="Apache-2.0 (TORQUE; the lists of conflicting questions state none)",
    homepage="https://github.com/HKUST-KnowComp/event-temporal-knowledge-conflict",
    folder="conflict/event-temporal",
    inputs=tuple(_inputs()),
    splits=("test",),
    read=read,
    options=TorqueOptions,
    redistribution="the publishers of the lists state no licence",
    notes={
        "count": "questions without an answer, or in no published subset, are left out",
        "test": "the published development file; the labels of the test are not public",
        "options": "every annotated event of the passage; equal words have a number, in the passage and as options",
        "subset": "conflict: by any of the six priors; aligned: by one of them, and a conflict by none (bias=any). "
        "meta.conflicts_with and meta.aligned_with name the priors",
        "habit": "what the priors would answer is not published",
    },
)
