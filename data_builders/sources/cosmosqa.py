"""Cosmos QA (Huang et al., EMNLP 2019): which of four answers fits a short personal story?

PIPER's test is the published validation file, whose questions it splits into 2,701 causal and 284 counterfactual
ones. That split is met exactly by one rule: the letters "if" stand somewhere in the question. The rule also catches
"different" or "knife" and misses a capital "If"; `rule=word` looks for the word instead, in any letter case.

Where the training file is not available, a rendering of a part of it without wrong answers can stand in. Its wrong
answers are then drawn from other stories, which makes the choice easier than the published one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from d2e_sft.data.sample import Split
from d2e_sft.util.errors import UserError
from data_builders.raw.reader import Draft, RawInput
from data_builders.raw.row import Row, clean, one_of
from data_builders.raw.source import Input, Job, Samples, Source, SourceOptions, SplitRows, github
from data_builders.sources.rows import leave_out_blank, not_in_test
from data_builders.text.texts import IfRule, fingerprint, has_if

_FILES = github("wilburOne/cosmosqa", "b6eb99cca4e2a51dd28a9a6f562534872d851639", "data")

# No checksum of the training file is known.
TRAIN = _FILES.file("train.csv")
TEST = _FILES.file("valid.csv", "a6a94fc1463ca82bb10f98ef68ed535405e6f5c36e044ff8e136b5c19dea63f3", 2_128_345)
INSTRUCTIONS = github(
    "anonymousGPT/natural-instructions-v1", "22fe0264beedc2b5e3a2d9c62abb1923457052c7", "tasks"
).file(
    "subtask024_cosmosqa_answer_generation.json",
    "af21096d3a589c52dafd5ea744196c9a0e3ad531c1d69f56174ad7bbefefae6b",
    3_644_069,
    substitute="6,500 questions of Natural Instructions, right answers only: wrong ones are drawn from other stories",
)

_COLUMNS = ("id", "context", "question", "answer0", "answer1", "answer2", "answer3", "label")
_OPTIONS = 4
# Far more than the questions on one story have, so that a draw that avoids those ends soon.
_FEWEST_ANSWERS = 20
_INSTANCE = re.compile(r"Context: (.*?)\s*\n\s*Question: (.*)", re.DOTALL)


class CosmosQAOptions(SourceOptions):
    """Options of Cosmos QA.

    Attributes:
        rule: what makes a question counterfactual: the letters "if" (substring) or the word.
    """

    rule: IfRule = "substring"


def read(job: Job) -> dict[Split, Samples]:
    """Build train and test (2,985 rows, PIPER table 7)."""
    raw = job.input("test")
    parse = partial(_parse, job)
    test = SplitRows(raw.parse(raw.csv_rows(_COLUMNS), parse))
    test_rows = test.rows
    result: dict[Split, Samples] = {"test": _finish(raw, test)}
    if not job.wants("train"):
        return result
    raw = job.input("train")
    if job.file("train") is INSTRUCTIONS:
        return {"train": _read_instructions(job, raw, test_rows), **result}
    train = SplitRows(raw.parse(raw.csv_rows(_COLUMNS), parse))
    _leave_out_test(train, test_rows)
    return {"train": _finish(raw, train), **result}


def _leave_out_test(rows: SplitRows[Draft], test: Sequence[Draft]) -> None:
    rows.keep(
        "contexts of the test",
        "the story is also a test story (letter case, blanks and punctuation ignored)",
        not_in_test(rows.rows, test, lambda row: fingerprint(row.context)),
    )


def _finish(raw: RawInput, rows: SplitRows[Draft]) -> Samples:
    leave_out_blank(rows)
    rows.keep(
        "four different answers",
        "of two equal answers both or none would be right",
        [row for row in rows.rows if len(set(row.options)) == _OPTIONS],
    )
    return rows.become(raw.parse(rows.rows, raw.sample))


def _parse(job: Job, row: Row) -> Draft:
    label = one_of("label", clean(row.fields["label"]), [str(number) for number in range(_OPTIONS)])
    options = tuple(clean(row.fields[f"answer{number}"]) for number in range(_OPTIONS))
    context, question = row.text("context"), row.text("question")
    return _draft(job, row, context, question, [options[int(label)]], options)


def _draft(
    job: Job, row: Row, context: str, question: str, answers: Sequence[str], options: Sequence[str] = ()
) -> Draft:
    assert isinstance(job.options, CosmosQAOptions)
    return Draft(
        number=row.number,
        relation="counterfactual" if has_if(question, job.options.rule) else "causal",
        context=context,
        question=question,
        options=options,
        answers=answers,
    )


def _read_instructions(job: Job, raw: RawInput, test: Sequence[Draft]) -> Samples:
    instances = SplitRows(raw.parse(raw.json_items("Instances"), partial(_parse_instance, job)))
    _leave_out_test(instances, test)
    leave_out_blank(instances)
    answered = instances.rows
    if len({fingerprint(answer) for instance in answered for answer in instance.answers}) < _FEWEST_ANSWERS:
        raise UserError(
            f"{raw.path}: its {len(answered)} questions have too few answers to draw wrong ones from; "
            f"expected at least {_FEWEST_ANSWERS} different ones"
        )
    rows = draw_options(answered, job.random("wrong answers"))
    return instances.become(raw.parse(rows, raw.sample))


def _parse_instance(job: Job, row: Row) -> Draft:
    """One question of the rendering without wrong answers."""
    text = row.text("input")
    found = _INSTANCE.fullmatch(text)
    if not found or not found[1].strip() or not found[2].strip():
        raise row.error("input", "'Context: <story>', a line break, 'Question: <question>'", text)
    answers = row.texts("output")
    if not answers:
        raise row.error("output", "at least one answer")
    return _draft(job, row, found[1].strip(), found[2].strip(), answers)


def draw_options(instances: Sequence[Draft], rng: random.Random) -> list[Draft]:
    """One draft for each instance: its first answer and three wrong ones, at drawn places.

    A wrong answer is an answer to a question on another story and equals no right answer on this one.
    """
    pool = [answer for instance in instances for answer in instance.answers]
    right: dict[str, set[str]] = {}
    for instance in instances:
        right.setdefault(fingerprint(instance.context), set()).update(map(fingerprint, instance.answers))
    rows = []
    for instance in instances:
        taken = set(right[fingerprint(instance.context)])
        options: list[str] = []
        while len(options) < _OPTIONS - 1:
            answer = rng.choice(pool)
            if fingerprint(answer) not in taken:
                taken.add(fingerprint(answer))
                options.append(answer)
        answer = next(iter(instance.answers))
        options.insert(rng.randrange(_OPTIONS), answer)
        rows.append(replace(instance, options=options, answers=[answer]))
    return rows


COSMOSQA = Source(
    name="cosmosqa",
    format="scq",
    licence="CC-BY-4.0 (its card on the Hub; the repository has no licence file)",
    homepage="https://github.com/wilburOne/cosmosqa",
    inputs=(Input("train", (TRAIN, INSTRUCTIONS), ("train",)), Input("test", (TEST,), ("train", "test"))),
    read=read,
    options=CosmosQAOptions,
    redistribution="the repository has no licence file, and the rendering in Natural Instructions states none",
    notes={
        "labelling": "a question is counterfactual if it holds the letters 'if', in lower case and also inside a "
        "word (rule=substring, which gives the published 2,701 and 284), or the word 'if' in any letter case "
        "(rule=word); every other question is causal",
        "test": "the published validation file; the test labels are not public",
        "repeats": "382 test rows repeat an earlier story and question with other answers, as published",
    },
)
