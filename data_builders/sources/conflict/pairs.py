"""Questions with two passages, the published one and one in which the answer was exchanged: three datasets.

NQ-Swap: questions of Natural Questions on passages in which the answer was swapped for another entity. The framework
is by Longpre et al. (EMNLP 2021), the release by P. Minervini. Swaps only keep the tagged type of the entity; many of
them are absurd.

ConFiQA (Bi et al., "Context-DPO", 2025): questions on passages that contradict well-known facts of Wikidata. A
language model wrote the passages. QA asks for one fact. MR asks for the end of a chain of facts of which one was
changed, MC for the end of a chain in which all were changed. Labels and aliases of Wikidata are the accepted answers.
The reader follows the format that the authors' README documents and their program `evaluation.py` reads.

Faithfulness-QA (Zhang, 2026): questions of SQuAD and TriviaQA on passages with another entity as the answer. Wherever
the entity stood that holds the answer, the authors' program wrote another one of the same tagged type, drawn from the
entities of SQuAD. Training rows only: all 99,094, those of the authors' development and test files included. The
reader follows the format that the README documents and `build_dataset.py` writes.
"""

from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from d2e_sft.data.sample import Subset
from data_builders.raw.source import Job, SourceOptions, SplitRows, SplitSamples, source
from data_builders.sources.reading import (
    apply_filters,
    keep_first,
    keep_short,
    keep_unseen,
    move_share,
    read_splits,
    to_samples,
)
from data_builders.sources.rows import Cleaned, Draft, Form, RawInput, RawRow, Text, columns

_FACTS = Path(__file__).with_name
Passage = tuple[str, Collection[str]]  # a text, and the accepted answers that it gives


class PairOptions(SourceOptions):
    """Options of ConFiQA and Faithfulness-QA; `aligned` also reads the published passages, with their own answers."""

    aligned: bool = False


def _passages(
    row: RawRow, name: str, published: Passage, changed: Passage, *, aligned: bool = True, **parts: Any
) -> Iterator[Draft]:
    """Yield the `aligned` draft of a row, if it is wanted, and its `conflict` draft.

    The habit of both is the published answer. `name` begins their ids; `parts` are further parts of both.
    """
    variants: dict[Subset, Passage] = {"aligned": published} if aligned else {}
    for subset, (context, answers) in {**variants, "conflict": changed}.items():
        fields = {"context": context, "answers": dict.fromkeys(answers), "habit": dict.fromkeys(published[1])}
        yield row.draft(id=f"{name}-{subset}", relation="factual", subset=subset, **fields, **parts)


# NQ-Swap


class NQSwapOptions(SourceOptions):
    """Options of NQ-Swap. Passages have up to 851 words; `max_words` None sets no limit.

    `train_share` is the share of the questions whose aligned rows are the training split.
    """

    max_words: int | None = Field(None, ge=1)
    train_share: float = Field(0, ge=0, lt=1)


_Answers = Annotated[list[Text], Field(min_length=1)]


class _NQSwap(RawRow):
    question: Text
    org_context: Text
    org_answer: _Answers
    sub_context: Text
    sub_answer: _Answers


def _nq_swap(row: _NQSwap) -> Iterator[Draft]:
    return _passages(row, str(row.number), (row.org_context, row.org_answer), (row.sub_context, row.sub_answer))


REPEATS = keep_first(
    "repeated rows",
    "the rows of one question share its aligned row, and some swaps are published twice",
    lambda row: (row.subset, row.question, row.context),
    splits=("test",),
)
UNSEEN = keep_unseen("contexts of the test", "a test question has the same passage", lambda row: row.context)


def _read_nq_swap(job: Job) -> SplitSamples:
    """Read the test (2,146 aligned and 4,730 conflict rows), and train with `train_share`."""
    options: NQSwapOptions = job.options
    raw = job.input("test")
    filters = [REPEATS, *keep_short("passages up to", "longer ones are left out (max_words)", options.max_words)]
    drafts = Form(_NQSwap, _nq_swap, lambda raw: raw.parquet_rows(columns(_NQSwap))).read(raw)
    rows = apply_filters(SplitRows(drafts), filters, "test")
    drawn = move_share(rows, lambda row: row.question, options.train_share, job.random("train"), "questions")
    result: SplitSamples = {}
    if job.wants("train") and drawn:
        train = SplitRows([row for row in drawn if row.subset == "aligned"])
        result["train"] = to_samples(job.input("test", "train"), apply_filters(train, [UNSEEN], "train", rows.rows))
    if job.wants("test"):
        result["test"] = to_samples(raw, rows)
    return result


NQ_SWAP = source(_FACTS("nq_swap"), _read_nq_swap, options=NQSwapOptions)

# ConFiQA


class _ConFiQA(RawRow):
    question: Text
    orig_context: Text
    orig_answer: Text
    orig_alias: list[Cleaned]
    cf_context: Text
    cf_answer: Text
    cf_alias: list[Cleaned]


def _confiqa(row: _ConFiQA, *, aligned: bool) -> Iterator[Draft]:
    known = list(filter(None, [row.orig_answer, *row.orig_alias]))
    answers = list(filter(None, [row.cf_answer, *row.cf_alias]))
    return _passages(row, str(row.number), (row.orig_context, known), (row.cf_context, answers), aligned=aligned)


def _read_confiqa(job: Job) -> SplitSamples:
    """Read the test: a conflict row for each question (6,000 in each part), with `aligned` an aligned one, too."""
    options: PairOptions = job.options
    return read_splits(job, Form(_ConFiQA, partial(_confiqa, aligned=options.aligned), RawInput.json_items))


CONFIQA = tuple(source(_FACTS(f"confiqa_{part}"), _read_confiqa, options=PairOptions) for part in ("qa", "mr", "mc"))

# Faithfulness-QA


class _FaithfulnessQA(RawRow):
    id: Cleaned
    question: Text
    original_context: Text
    original_answer: Text
    modified_context: Text
    faithful_answer: Text


def _faithfulness_qa(row: _FaithfulnessQA, key: str, *, aligned: bool) -> Iterator[Draft]:
    published, changed = (row.original_context, [row.original_answer]), (row.modified_context, [row.faithful_answer])
    parts = {"meta": {"source_id": row.id}, "extra": {"file": key}}
    return _passages(row, f"{key}-{row.number}", published, changed, aligned=aligned, **parts)


def _read_faithfulness_qa(job: Job) -> SplitSamples:
    """Read the training split: a conflict row for each question, with `aligned` an aligned one, too."""
    options: PairOptions = job.options
    files = {key: job.input(key, "train") for key in ("squad", "triviaqa")}
    forms = {key: Form(_FaithfulnessQA, partial(_faithfulness_qa, key=key, aligned=options.aligned)) for key in files}
    rows = SplitRows([draft for key, form in forms.items() for draft in form.read(files[key])])
    return {"train": to_samples(lambda draft: files[draft.extra["file"]], rows)}


FAITHFULNESS_QA = source(_FACTS("faithfulness_qa"), _read_faithfulness_qa, options=PairOptions)
