"""Faithfulness-QA (Zhang, 2026): questions of SQuAD and TriviaQA on passages with another entity as the answer.

Wherever the entity stood that holds the answer, the authors' program wrote another one of the same tagged type, drawn
from the entities of SQuAD. Training rows only: all 99,094, those of the authors' development and test files included.
The reader follows the format that the README documents and `build_dataset.py` writes.
"""

from collections.abc import Iterator
from functools import partial

from data_builders.raw.source import source
from data_builders.sources.reading import Job, SplitRows, SplitSamples, to_samples
from data_builders.sources.rows import Cleaned, Draft, Form, PairOptions, RawRow, Text, passages


class _Row(RawRow):
    id: Cleaned
    question: Text
    original_context: Text
    original_answer: Text
    modified_context: Text
    faithful_answer: Text


def _drafts(row: _Row, key: str, *, aligned: bool) -> Iterator[Draft]:
    published, changed = (row.original_context, [row.original_answer]), (row.modified_context, [row.faithful_answer])
    parts = {"meta": {"source_id": row.id}, "extra": {"file": key}}
    return passages(row, f"{key}-{row.number}", published, changed, aligned=aligned, **parts)


def read(job: Job) -> SplitSamples:
    """Read the training split: a conflict row for each question, with `aligned` an aligned one, too."""
    options: PairOptions = job.options
    files = {key: job.input(key, "train") for key in ("squad", "triviaqa")}
    forms = {key: Form(_Row, partial(_drafts, key=key, aligned=options.aligned)) for key in files}
    rows = SplitRows([draft for key, form in forms.items() for draft in form.read(files[key])])
    return {"train": to_samples(lambda draft: files[draft.extra["file"]], rows)}


FAITHFULNESS_QA = source(__file__, read, options=PairOptions)
