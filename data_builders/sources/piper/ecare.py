"""e-CARE (Du et al., ACL 2022): which of two statements is the cause, or the effect, of a premise?

The labels of the published test are hidden, so PIPER's 2,122 test samples are `dev_full.jsonl`. That file also has
`conceptual_explanation`, which gives the answer away and is never read. Some test premises are in the training file,
some with the same correct statement; those training rows are left out.
"""

from typing import Literal

from pydantic import Field

from data_builders.raw.source import source
from data_builders.sources.reading import keep_first, keep_unseen, reader
from data_builders.sources.rows import Bit, Draft, Form, RawRow, Text


class _Row(RawRow):
    index: Text
    premise: Text
    ask_for: Literal["cause", "effect"] = Field(alias="ask-for")
    hypothesis1: Text
    hypothesis2: Text
    label: Bit


def _draft(row: _Row) -> Draft:
    hypotheses = [row.hypothesis1, row.hypothesis2]
    return row.draft(
        relation="causal",
        context=row.premise,
        question=f"What is the {row.ask_for} of the event in the context?",
        options=hypotheses,
        answers=[hypotheses[row.label]],
        meta={"index": row.index, "ask_for": row.ask_for},
    )


FILTERS = (
    keep_first(
        "repeated rows",
        "a repeated premise, question, statements and label would be trained on twice",
        lambda row: (row.context, row.question, tuple(row.options), row.answers[0]),
    ),
    keep_unseen(
        "premises of the test",
        "the premise is also a test premise (ignoring letter case), so the answer may be the same too",
        lambda row: row.context.casefold(),
    ),
)

ECARE = source(__file__, reader(Form(_Row, _draft), FILTERS))
