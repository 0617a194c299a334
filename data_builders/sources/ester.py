"""ESTER (Han et al., EMNLP 2021): which spans of a news passage stand in a relation to an event?

PIPER's test is the published development file. Its counts (110 causal, 36 counterfactual, 108 subevent and
conditional) are met exactly by the annotators' types and one rule: a causal question that holds the letters "if" is
counterfactual, and an indicative conditional one that does is left out. The rule also catches "life" or "fifth";
`rule=word` looks for the word "if" instead.

A question may have several gold spans, all of which belong to the answer. EventSample.answers are alternatives, so
the spans stand in one answer, joined by "; " as in the publishers' own script, and separately in `meta.spans`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from d2e_sft.data.sample import EventSample, Relation, Split
from data_builders.raw.bad_rows import MISSING
from data_builders.raw.fields import choice_field, text_field, text_list
from data_builders.raw.reader import RawInput
from data_builders.raw.source import Input, Job, RawFile, Source, SourceOptions, SplitRows
from data_builders.sources.rows import first_of_each, not_in_test
from data_builders.text.texts import IfRule, fingerprint, has_if

_COMMIT = "28204363c73e559e04f4a458f1461288349af692"
_URL = f"https://raw.githubusercontent.com/PlusLabNLP/ESTER/{_COMMIT}/data"
_LICENCE = "not stated by the publisher"

# No checksum of the whole training file is known.
TRAIN = RawFile(name="final_train_ans_gen.json", url=f"{_URL}/final_train_ans_gen.json", commit=_COMMIT)
TRAIN_500 = RawFile(
    name="final_train_ans_gen_500completed.json",
    url=f"{_URL}/final_train_ans_gen_500completed.json",
    commit=_COMMIT,
    sha256="6d4f5cf7cb379882c5a8e7bbd2475723f4b357bf6d652c426478f35a0008f273",
    bytes=738_660,
    substitute="the publishers' 500 training questions with completed answers, in place of the whole training file",
)
TEST = RawFile(
    name="final_dev_ans_gen.json",
    url=f"{_URL}/final_dev_ans_gen.json",
    commit=_COMMIT,
    sha256="c449fc8abe6a0569d8229b3effd7deeff98f34e8a659354f61bf1aae603cc4d7",
    bytes=553_064,
)

TYPES = ("Causal", "Counterfactual Conditional", "Indicative Conditional", "Sub-event", "Coreference")


class EsterOptions(SourceOptions):
    """Options of ESTER.

    Attributes:
        rule: what makes a question conditional: the letters "if" (substring) or the word.
    """

    rule: IfRule = "substring"


@dataclass(frozen=True)
class _Row:
    number: int
    context: str
    question: str
    spans: tuple[str, ...]
    type: str
    relation: Relation | None

    @property
    def content(self) -> tuple[str, str]:
        return self.context, self.question


def relation_of(type_: str, conditional: bool) -> Relation | None:
    """PIPER's relation of a question of an annotated type; None leaves it out."""
    if type_ == "Counterfactual Conditional":
        return "counterfactual"
    if type_ == "Causal":
        return "counterfactual" if conditional else "causal"
    if type_ == "Sub-event" or (type_ == "Indicative Conditional" and not conditional):
        return "subevent_conditional"
    return None


def read(job: Job) -> dict[Split, SplitRows]:
    """Build train and test (254 rows, PIPER table 7)."""
    test_raw = job.input("test", "test")
    test_rows = _rows(job, test_raw)
    test = SplitRows([], rows_read=len(test_rows))
    _finish(test_raw, test, test_rows)
    if not job.wants("train"):
        return {"test": test}

    train_raw = job.input("train", "train")
    train_rows = _rows(job, train_raw)
    train = SplitRows([], rows_read=len(train_rows))
    clean = train.filters.record(
        "contexts of the test",
        "the passage is also a test passage (letter case, blanks and punctuation ignored)",
        train_rows,
        not_in_test(train_rows, test_rows, lambda row: fingerprint(row.context)),
    )
    distinct = train.filters.record(
        "repeated questions",
        "the same passage and question more than once would be trained on twice; the first is kept",
        clean,
        first_of_each(clean, lambda row: row.content),
    )
    _finish(train_raw, train, distinct)
    return {"train": train, "test": test}


def _rows(job: Job, raw: RawInput) -> list[_Row]:
    options = job.options
    assert isinstance(options, EsterOptions)

    def parse(number: int, row: dict[str, Any]) -> _Row:
        question = text_field(row, "question")
        type_ = choice_field("type", row.get("type", MISSING), TYPES)
        # A span that is named twice is required once.
        spans = tuple(dict.fromkeys(filter(None, text_list("answer_texts", row.get("answer_texts", MISSING)))))
        relation = relation_of(type_, has_if(question, options.rule))
        return _Row(number, text_field(row, "context"), question, spans, type_, relation)

    return raw.parse(raw.json_items(), parse)


def _finish(raw: RawInput, result: SplitRows, rows: list[_Row]) -> None:
    answered = result.filters.record(
        "no blank answer",
        "samples with a blank answer are excluded (PIPER)",
        rows,
        [row for row in rows if row.spans],
    )
    kept = result.filters.record(
        "relation of PIPER",
        "coreference is no relation of PIPER's, and its counts leave out indicative conditionals that hold an 'if'",
        answered,
        [row for row in answered if row.relation is not None],
    )
    result.samples = raw.samples(kept, lambda row: _sample(raw, row), lambda row: row.number)


def _sample(raw: RawInput, row: _Row) -> EventSample:
    assert row.relation is not None
    return EventSample(
        id=f"ester-{raw.split}-{row.number}",
        dataset="ester",
        split=raw.split,
        relation=row.relation,
        format="qa",
        context=row.context,
        question=row.question,
        answers=["; ".join(row.spans)],
        meta={
            "source": raw.name,
            "item": row.number,
            "type": row.type,
            "spans": list(row.spans),
            "licence": _LICENCE,
        },
    )


ESTER = Source(
    name="ester",
    format="qa",
    licence=_LICENCE,
    homepage="https://github.com/PlusLabNLP/ESTER",
    inputs=(Input("train", (TRAIN, TRAIN_500), ("train",)), Input("test", (TEST,), ("train", "test"))),
    read=read,
    options=EsterOptions,
    redistribution="the publishers state no licence",
    notes={
        "labelling": "by the annotated type: Causal is causal, or counterfactual if the question holds an 'if'; "
        "Counterfactual Conditional is counterfactual; Sub-event, and Indicative Conditional without an 'if', are "
        "subevent_conditional. An 'if' is these letters, in lower case and also inside a word (rule=substring, "
        "which gives the published 110, 36 and 108), or the word in any letter case (rule=word)",
        "answers": "every gold span is required: they are joined by '; ' and listed in meta.spans",
        "test": "the published development file; the answers of the test file are not public",
    },
)
