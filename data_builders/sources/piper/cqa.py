"""CQA (Yang et al., 2022, "fine-grained causal reasoning"): causes and effects in passages of company reports.

A published question has a passage and the place of its answer. PIPER's rule for Cosmos QA and ESTER gives its
relation: one with the letters "if" is counterfactual ("What will happen if …?"), the others are causal. The format is
that of the authors' own programs, which write and read these files. If a published file is missing, questions are
derived from the same corpus' annotation (`cqa_derived.py`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from d2e_sft.data.sample import Split
from d2e_sft.util.errors import UserError
from data_builders.raw.facts import source
from data_builders.raw.reader import RawInput
from data_builders.raw.row import BadRowError, Draft, clean
from data_builders.raw.source import Job, SplitSamples
from data_builders.sources.filters import NO_BLANK, Filter, keep_first, read_splits
from data_builders.sources.piper.cqa_derived import DERIVED, DERIVED_FILTERS, unseen_passages
from data_builders.sources.rows import Form, IfOptions, Place, RawRow, Text
from data_builders.text.texts import IfRule, has_if


class CQAOptions(IfOptions):
    """Options of CQA; `rule` is only for published questions."""

    answer_in_context: bool = True


class _Published(RawRow):
    """A published question."""

    context: str  # the place counts the blanks around it
    question: Text
    answer: Place


def _published(rule: IfRule, row: _Published) -> Draft:
    start, end = row.answer
    if not start <= end <= len(row.context):
        raise BadRowError.at("answer", row.answer, f"a place in a passage of {len(row.context):,} characters")
    return Draft(
        number=row.number,
        relation="counterfactual" if has_if(row.question, rule) else "causal",
        context=clean(row.context) or None,
        question=row.question,
        answers=[clean(row.context[start:end])],
    )


PUBLISHED_FILTERS = (
    unseen_passages("rows"),
    keep_first(
        "repeated questions",
        "a repeated passage and question would be trained on twice; the first is kept",
        lambda row: (row.context, row.question),
    ),
    NO_BLANK,
)


def read(job: Job) -> SplitSamples:
    """Read train and test, each from the published questions or by derivation.

    UserError if a rule is chosen for derived questions, which their wording decides.
    """
    if "rule" in job.options.model_fields_set and all(job.file(split).substitute for split in job.files):
        names = ", ".join(job.file(split).name for split in job.files)
        raise UserError(f"cqa.rule={job.options.rule}: only for published questions; {names} is read", "leave it out")
    published = Form(_Published, partial(_published, job.options.rule), RawInput.json_items)
    forms: dict[Split, Form[Any]] = {}
    filters: list[Filter] = []
    for split in filter(job.files.__contains__, DERIVED):
        derived = bool(job.file(split).substitute)
        forms[split] = DERIVED[split] if derived else published
        chosen = DERIVED_FILTERS if derived else PUBLISHED_FILTERS
        filters += [replace(one, splits=(split,)) for one in chosen if split in one.splits]
    return read_splits(job, forms, filters)


CQA = source(__file__, read, options=CQAOptions)
