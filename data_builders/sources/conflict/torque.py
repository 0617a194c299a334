"""TORQUE (Ning et al., EMNLP 2020): which events of a passage answer a question about their order in time?

The test is the published development file. Fang et al. (Findings of NAACL 2024) published which of its questions
contradict a prior. The priors come from the events themselves (erp), the tenses, the order in the text (narrative)
and the dependency between the events. For the fixed questions (warmup) they come from a word or its tense. A question
may conflict with one prior and agree with another. Without `bias` it is a `conflict` row if it conflicts with any
prior, and an `aligned` row if it agrees with some and conflicts with none.

The events that a prior would name are not published, so the habit is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Self, get_args

from pydantic import model_validator

from d2e_sft.data.sample import Split, Subset
from data_builders.raw.reader import Draft, RawInput
from data_builders.raw.source import Job, Samples, SourceOptions
from data_builders.sources.facts import source
from data_builders.sources.rows import Cleaned, Form, RawObject, RawRow, Text, derived_table, keep_if, read_splits

Bias = Literal["erp", "tense_relation", "narrative", "dependency", "warmup_answer", "warmup_tense"]
BIASES: tuple[Bias, ...] = get_args(Bias)
Side = Literal["conflict", "align"]

# (prior, side) → checksum and size of the file of questions that conflict with the prior, or agree with it.
_PUBLISHED: dict[tuple[Bias, Side], tuple[str, int]] = {
    ("erp", "conflict"): ("58755973448f53f931ecd408ac4db2d9ea460d9d979992faf96a3d0523f5e40c", 190_523),
    ("erp", "align"): ("dc2c885807ae8a1bc72c36432114f4abd1ba14b40638df9b3037e2b8a445a5a6", 1_288_988),
    ("tense_relation", "conflict"): ("6bac9e982d6d939d9ca12ad66cd7805d0e2ce5feb7b84a429407a6d97604f3aa", 545_012),
    ("tense_relation", "align"): ("87ffe0d06ab0af0908d48906f12f0ee2310df35a2ff10243176f044e8791d354", 1_383_584),
    ("narrative", "conflict"): ("765e0e8d669671740c416da37a7d57c6d770916d3745cf930734f5ce702c9635", 329_028),
    ("narrative", "align"): ("58fa5a07f46271913b99c8680079fbba5147a756a295d0cd313aa43846e069a4", 1_599_568),
    ("dependency", "conflict"): ("2672e388ed4b4e0e473ec8424e1ff7e1efaa1c53e822167c52a8f5cc07c68818", 152_848),
    ("dependency", "align"): ("6f0fba9a26911a69cf2fbe6e11dbfaad7bf5b62ba7592e67fc8adfb776a9179c", 413_261),
    ("warmup_answer", "conflict"): ("167b1fc4693bee47f1d62d3acaa446f07fbeced5b8edf407067450eb58dfd908", 135_559),
    ("warmup_answer", "align"): ("f04b7ce25fe04ccd7159568633b6d20c1e117a60a0d3679b47c66dedd392e724", 118_646),
    ("warmup_tense", "conflict"): ("87e48a3518aa1800a476631cfa4edd73f6cac27afda871d9219f48183a0278dd", 145_630),
    ("warmup_tense", "align"): ("a3791dda54f339b35e1d24c8830891312c2dc0fd62f7e1e17d79ca82e7d051a7", 108_575),
}
_Ids = Mapping[tuple[Bias, Side], frozenset[str]]


class TorqueOptions(SourceOptions):
    """Options of TORQUE.

    Attributes:
        bias: The prior whose subsets are read; `any` joins them.
    """

    bias: Bias | Literal["any"] = "any"


class _Answers(RawObject):
    """For each word of the passage, 1 if it is an event (types) or an answer (labels)."""

    types: list[Literal[0, 1]]
    labels: list[Literal[0, 1]]


class _Row(RawRow):
    question: Text
    context: list[Cleaned]
    answers: _Answers
    question_cluster: Text

    @model_validator(mode="after")
    def _answers_are_events(self) -> Self:
        types, labels = self.answers.types, self.answers.labels
        if not len(types) == len(labels) == len(self.context):
            raise ValueError(f"answers: expected a mark for each of the {len(self.context)} words of the context")
        if not any(types) or any(label > event for label, event in zip(labels, types, strict=True)):
            raise ValueError("answers.labels: expected answers among the events of answers.types")
        return self


def read(job: Job) -> dict[Split, Samples]:
    """Read the test: 443 conflict and 375 aligned rows; for example 140 and 607 with bias=narrative."""
    options: TorqueOptions = job.options
    priors = BIASES if options.bias == "any" else (options.bias,)
    ids = {key: frozenset(_ids(job, *key)) for key in _PUBLISHED}
    filters = (
        keep_if(
            "questions with an answer",
            "the others have no answering event, and there is no option for that; none of them is a conflict row",
            lambda row: row.answers,
        ),
        keep_if("questions in a published subset", "no prior is known for the others (bias)", lambda row: row.subset),
    )
    return read_splits(job, Form(_Row, lambda row: _draft(row, ids, priors), RawInput.json_members), filters)


def _ids(job: Job, prior: Bias, side: Side) -> list[str]:
    """The ids of the questions that conflict with a prior, or agree with it."""
    key = f"{prior}_{side}"
    raw = job.input(key, "test")
    if job.file(key).substitute:
        return list(derived_table(raw, prior, side))
    return [row.key for row in raw.json_members()]


def _draft(row: _Row, ids: _Ids, priors: Iterable[Bias]) -> Draft:
    # The published words have "@" instead of a quotation mark.
    shown = number_repeats([word.replace("@", '"') for word in row.context], row.answers.types)
    known: dict[Side, list[Bias]] = {
        side: [prior for prior in BIASES if row.key in ids[prior, side]] for side in get_args(Side)
    }
    in_any = {side for side, found in known.items() if set(found) & set(priors)}
    subset: Subset | None = "conflict" if "conflict" in in_any else "aligned" if in_any else None
    return Draft(
        number=row.number,
        id=row.key,
        relation="temporal",
        context=" ".join(shown),
        question=row.question,
        options=[word for word, event in zip(shown, row.answers.types, strict=True) if event],
        answers=[word for word, label in zip(shown, row.answers.labels, strict=True) if label],
        subset=subset,
        meta={
            "cluster": row.question_cluster,
            "conflicts_with": known["conflict"],
            "aligned_with": known["align"],
        },
    )


def number_repeats(words: Sequence[str], events: Sequence[int]) -> list[str]:
    """Return the words, with a number after each event that is spelled like another: "said (1)", "said (2)".

    Args:
        events: 1 for a word that is an event, else 0.
    """
    counts = Counter(word.casefold() for word, event in zip(words, events, strict=True) if event)
    met: Counter[str] = Counter()
    shown = []
    for word, event in zip(words, events, strict=True):
        met[word.casefold()] += event
        shown.append(f"{word} ({met[word.casefold()]})" if event and counts[word.casefold()] > 1 else word)
    return shown


TORQUE = source(__file__, read=read, options=TorqueOptions)
