"""ConFiQA (Bi et al., "Context-DPO", 2025): questions on passages that contradict well-known facts of Wikidata.

A language model wrote the passages. QA asks for one fact. MR asks for the end of a chain of facts of which one was
changed, MC for the end of a chain in which all were changed. Labels and aliases of Wikidata are the accepted answers.
The reader follows the format that the authors' README documents and their program `evaluation.py` reads.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from data_builders.raw.source import source
from data_builders.sources.reading import Job, SplitSamples, read_splits
from data_builders.sources.rows import Cleaned, Draft, Form, PairOptions, RawInput, RawRow, Text, passages


class _Row(RawRow):
    question: Text
    orig_context: Text
    orig_answer: Text
    orig_alias: list[Cleaned]
    cf_context: Text
    cf_answer: Text
    cf_alias: list[Cleaned]


def _drafts(row: _Row, *, aligned: bool) -> Iterator[Draft]:
    known = list(filter(None, [row.orig_answer, *row.orig_alias]))
    answers = list(filter(None, [row.cf_answer, *row.cf_alias]))
    return passages(row, str(row.number), (row.orig_context, known), (row.cf_context, answers), aligned=aligned)


def read(job: Job) -> SplitSamples:
    """Read the test: a conflict row for each question (6,000 in each part), with `aligned` an aligned one, too."""
    options: PairOptions = job.options
    return read_splits(job, Form(_Row, partial(_drafts, aligned=options.aligned), RawInput.json_items))


CONFIQA = tuple(
    source(Path(__file__).with_name(f"confiqa_{part}.yaml"), read, options=PairOptions) for part in ("qa", "mr", "mc")
)
