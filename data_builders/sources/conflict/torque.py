"""TORQUE (Ning et al., EMNLP 2020): which events of a passage answer a question about their order in time?

The test is the published development file. Fang et al. (Findings of NAACL 2024) published which of its questions
contradict a prior. The priors come from the events themselves (erp), the tenses, the order in the text (narrative) and
the dependency between the events. For the fixed questions (warmup) they come from a word or its tense. Without `bias`,
a row is a `conflict` if it conflicts with any prior, and `aligned` if it agrees with some and conflicts with none.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Literal, Self, get_args

from pydantic import model_validator

from d2e_sft.data.sample import Subset
from data_builders.raw.reader import RawInput
from data_builders.raw.row import Draft
from data_builders.raw.source import source
from data_builders.sources.reading import Job, SplitSamples, keep_if, read_splits
from data_builders.sources.rows import Bit, Cleaned, Form, RawObject, RawRow, SourceOptions, Text, derived_table

Bias = Literal["erp", "tense_relation", "narrative", "dependency", "warmup_answer", "warmup_tense"]
BIASES: tuple[Bias, ...] = get_args(Bias)
Side = Literal["conflict", "align"]
SIDES: tuple[Side, ...] = get_args(Side)


class TorqueOptions(SourceOptions):
    """Options of TORQUE; `bias` is the prior whose subsets are read, and `any` joins them."""

    bias: Bias | Literal["any"] = "any"


class _Answers(RawObject):
    """For each word of the passage, 1 if it is an event (types) or an answer (labels)."""

    types: list[Bit]
    labels: list[Bit]


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


def read(job: Job) -> SplitSamples:
    """Read the test: 443 conflict and 375 aligned rows; for example 140 and 607 with bias=narrative."""
    options: TorqueOptions = job.options
    priors = BIASES if options.bias == "any" else (options.bias,)
    ids = {key: _ids(job, *key) for key in product(BIASES, SIDES)}
    filters = (
        keep_if(
            "questions with an answer",
            "the others have no answering event, and there is no option for that; none of them is a conflict row",
            lambda row: row.answers,
        ),
        keep_if("questions in a published subset", "no prior is known for the others (bias)", lambda row: row.subset),
    )
    return read_splits(job, Form(_Row, lambda row: _draft(row, ids, priors), RawInput.json_members), filters)


def _ids(job: Job, prior: Bias, side: Side) -> frozenset[str]:
    """The ids of the questions that conflict with a prior, or agree with it."""
    raw = job.input(f"{prior}_{side}", "test")
    if job.file(f"{prior}_{side}").substitute:
        return frozenset(derived_table(raw, prior, side))
    return frozenset(row.key for row in raw.json_members())


def _draft(row: _Row, ids: Mapping[tuple[Bias, Side], frozenset[str]], priors: Iterable[Bias]) -> Draft:
    # The published words have "@" instead of a quotation mark.
    shown = number_repeats([word.replace("@", '"') for word in row.context], row.answers.types)
    known = {side: [prior for prior in BIASES if row.key in ids[prior, side]] for side in SIDES}
    in_any = {side for side, biases in known.items() if set(biases) & set(priors)}
    subset: Subset | None = "conflict" if "conflict" in in_any else "aligned" if in_any else None
    return row.draft(
        id=row.key,
        relation="temporal",
        context=" ".join(shown),
        options=[word for word, event in zip(shown, row.answers.types, strict=True) if event],
        answers=[word for word, label in zip(shown, row.answers.labels, strict=True) if label],
        subset=subset,
        meta={"cluster": row.question_cluster, "conflicts_with": known["conflict"], "aligned_with": known["align"]},
    )


def number_repeats(words: Sequence[str], events: Sequence[int]) -> list[str]:
    """Return the words, with a number after events (1 in `events`) spelled like others: "said (1)", "said (2)"."""
    counts = Counter(word.casefold() for word, event in zip(words, events, strict=True) if event)
    met: Counter[str] = Counter()
    shown = []
    for word, event in zip(words, events, strict=True):
        met[word.casefold()] += event
        shown.append(f"{word} ({met[word.casefold()]})" if event and counts[word.casefold()] > 1 else word)
    return shown


TORQUE = source(__file__, read, options=TorqueOptions)
