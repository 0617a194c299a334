"""Cosmos QA (Huang et al., EMNLP 2019): which of four answers fits a short personal story?

PIPER's test is the published validation file, with 2,701 causal and 284 counterfactual questions. One rule gives these
counts exactly: a question is counterfactual if it has the letters "if" anywhere. The rule also matches "different" or
"knife" and misses a capital "If"; `rule=word` looks for the word instead, in any letter case.

If the training file is missing, a rendering without wrong answers is read, and these are drawn from other stories.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from d2e_sft.util.errors import UserError
from data_builders.raw.row import BadRowError, Draft
from data_builders.raw.source import source
from data_builders.sources.reading import NO_BLANK, UNSEEN_CONTEXTS, Job, SplitSamples, convert, keep_if, read_splits
from data_builders.sources.rows import (
    Cleaned,
    Form,
    IfOptions,
    IfRule,
    RawRow,
    Text,
    Texts,
    columns,
    fingerprint,
    has_if,
)

_INSTANCE = re.compile(r"Context: (.*?)\s*\n\s*Question: (.*)", re.DOTALL)
_OPTIONS = 4
# Far more than one story's questions have, so a draw that avoids their answers ends soon.
_FEWEST_ANSWERS = 20


class _Row(RawRow):
    context: Text
    question: Text
    answer0: Cleaned
    answer1: Cleaned
    answer2: Cleaned
    answer3: Cleaned
    label: Literal["0", "1", "2", "3"]


class _Instance(RawRow):
    """A question of the rendering without wrong answers."""

    input: Text
    output: Texts


def _draft(rule: IfRule, row: _Row | _Instance) -> Draft:
    if isinstance(row, _Instance):
        match = _INSTANCE.fullmatch(row.input)
        if not match:
            raise BadRowError.at("input", row.input, "'Context: <story>', a line break, 'Question: <question>'")
        (context, question), answers, options = match.groups(), row.output, []
    else:
        context, question = row.context, row.question
        options = [row.answer0, row.answer1, row.answer2, row.answer3]
        answers = [options[int(row.label)]]
    relation = "counterfactual" if has_if(question, rule) else "causal"
    return row.draft(
        relation=relation, context=context.strip(), question=question.strip(), options=options, answers=answers
    )


FOUR_ANSWERS = keep_if(
    "four different answers",
    "if two answers are equal, both or none would be right",
    lambda row: len(set(row.options)) == _OPTIONS,
)


def read(job: Job) -> SplitSamples:
    """Read train and test (2,985 rows, PIPER table 7)."""
    options: IfOptions = job.options
    draft = partial(_draft, options.rule)
    form = Form(_Row, draft, lambda raw: raw.csv_rows(columns(_Row)))
    if not job.wants("train") or not job.file("train").substitute:
        return read_splits(job, form, (UNSEEN_CONTEXTS, NO_BLANK, FOUR_ANSWERS))

    draw = convert(lambda rows: draw_options(rows, job.random("wrong answers")), ("train",))
    instances = Form(_Instance, draft, lambda raw: raw.json_items("Instances"))
    filters = (UNSEEN_CONTEXTS, NO_BLANK, draw, replace(FOUR_ANSWERS, splits=("test",)))
    return read_splits(job, {"train": instances, "test": form}, filters)


def draw_options(instances: Sequence[Draft], rng: random.Random) -> list[Draft]:
    """Return each instance with its first answer and three wrong ones, at drawn places.

    A wrong answer is that of another story's question and no right one of this story; UserError if there are too few.
    """
    pool = [answer for instance in instances for answer in instance.answers]
    if len(set(map(fingerprint, pool))) < _FEWEST_ANSWERS:
        raise UserError(
            f"cosmosqa, train: its {len(instances)} questions have too few answers to draw wrong ones from; expected "
            f"at least {_FEWEST_ANSWERS} different ones"
        )
    right: dict[str, set[str]] = {}
    for instance in instances:
        right.setdefault(fingerprint(instance.context or ""), set()).update(map(fingerprint, instance.answers))
    rows = []
    for instance in instances:
        excluded = set(right[fingerprint(instance.context or "")])
        options: list[str] = []
        while len(options) < _OPTIONS - 1:
            answer = rng.choice(pool)
            if fingerprint(answer) not in excluded:
                excluded.add(fingerprint(answer))
                options.append(answer)
        answer = next(iter(instance.answers))
        options.insert(rng.randrange(_OPTIONS), answer)
        rows.append(replace(instance, options=options, answers=[answer]))
    return rows


COSMOSQA = source(__file__, read, options=IfOptions)
