"""ESTER (Han et al., EMNLP 2021): which spans of a news passage stand in a relation to an event?

PIPER's test is the published development file. Its counts (110 causal, 36 counterfactual, 108 subevent and
conditional) are met exactly by the annotators' types and one rule: a causal question that holds the letters "if" is
counterfactual, and an indicative conditional one that does is left out. The rule also catches "life" or "fifth";
`rule=word` looks for the word "if" instead.

A question may have several gold spans, one for each event that answers it. All of them, joined by "; ", are the first
accepted answer, which training uses; each alone is accepted, too, as SQuAD's metrics take the best. The publishers'
own metrics ask for all of them: `meta.spans`, and `meta.triggers`, the words by which events are known.
"""

from __future__ import annotations

from d2e_sft.data.sample import Relation, Split
from data_builders.raw.characters import decode_characters
from data_builders.raw.reader import Draft, RawInput
from data_builders.raw.row import Row
from data_builders.raw.source import Input, Job, Samples, Source, SourceOptions, SplitRows, github
from data_builders.sources.rows import first_of_each, leave_out_blank, not_in_test
from data_builders.text.texts import IfRule, fingerprint, has_if

_FILES = github("PlusLabNLP/ESTER", "28204363c73e559e04f4a458f1461288349af692", "data")

# No checksum of the whole training file is known.
TRAIN = _FILES.file("final_train_ans_gen.json")
TRAIN_500 = _FILES.file(
    "final_train_ans_gen_500completed.json",
    "6d4f5cf7cb379882c5a8e7bbd2475723f4b357bf6d652c426478f35a0008f273",
    738_660,
    substitute="the publishers' 500 training questions with completed answers, in place of the whole training file",
)
TEST = _FILES.file(
    "final_dev_ans_gen.json", "c449fc8abe6a0569d8229b3effd7deeff98f34e8a659354f61bf1aae603cc4d7", 553_064
)

TYPES = ("Causal", "Counterfactual Conditional", "Indicative Conditional", "Sub-event", "Coreference")


class EsterOptions(SourceOptions):
    """Options of ESTER.

    Attributes:
        rule: what makes a question conditional: the letters "if" (substring) or the word.
    """

    rule: IfRule = "substring"


def relation_of(type_: str, conditional: bool) -> Relation | None:
    """PIPER's relation of a question of an annotated type; None leaves it out."""
    if type_ == "Counterfactual Conditional":
        return "counterfactual"
    if type_ == "Causal":
        return "counterfactual" if conditional else "causal"
    if type_ == "Sub-event" or (type_ == "Indicative Conditional" and not conditional):
        return "subevent_conditional"
    return None


def read(job: Job) -> dict[Split, Samples]:
    """Build train and test (254 rows, PIPER table 7)."""
    raw = job.input("test")
    test = _rows(job, raw)
    test_rows = test.rows
    result: dict[Split, Samples] = {"test": _finish(raw, test)}
    if job.wants("train"):
        raw = job.input("train")
        train = _rows(job, raw)
        train.keep(
            "contexts of the test",
            "the passage is also a test passage (letter case, blanks and punctuation ignored)",
            not_in_test(train.rows, test_rows, lambda row: fingerprint(row.context)),
        )
        train.keep(
            "repeated questions",
            "the same passage and question more than once would be trained on twice; the first is kept",
            first_of_each(train.rows, lambda row: (row.context, row.question)),
        )
        result = {"train": _finish(raw, train), **result}
    return result


def _rows(job: Job, raw: RawInput) -> SplitRows[Draft]:
    options = job.options
    assert isinstance(options, EsterOptions)

    def parse(row: Row) -> Draft:
        question, type_ = row.text("question"), row.choice("type", TYPES)
        # A span that is named twice is required once.
        spans = tuple(dict.fromkeys(filter(None, row.texts("answer_texts"))))
        return Draft(
            number=row.number,
            relation=relation_of(type_, has_if(question, options.rule)),
            context=row.text("context"),
            question=question,
            answers=dict.fromkeys(["; ".join(spans), *spans]),
            meta={
                "type": type_,
                "spans": [decode_characters(span)[0] for span in spans],
                "triggers": row.texts("events") if "events" in row.fields else [],
            },
        )

    return SplitRows(raw.parse(raw.json_items(), parse))


def _finish(raw: RawInput, rows: SplitRows[Draft]) -> Samples:
    leave_out_blank(rows)
    rows.keep(
        "relation of PIPER",
        "coreference is no relation of PIPER's, and its counts leave out indicative conditionals that hold an 'if'",
        [row for row in rows.rows if row.relation is not None],
    )
    return rows.become(raw.parse(rows.rows, raw.sample))


ESTER = Source(
    name="ester",
    format="qa",
    licence="not stated by the publisher",
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
        "answers": "all gold spans, joined by '; ', are the first accepted answer, and each alone is one; ESTER's own "
        "metrics, which need meta.spans and meta.triggers, ask for all",
        "test": "the published development file; the answers of the test file are not public",
    },
)
