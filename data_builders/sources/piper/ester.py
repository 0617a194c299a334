"""ESTER (Han et al., EMNLP 2021): which spans of a news passage are related to an event?

PIPER's test is the published development file. One rule gives PIPER's counts exactly (110 causal, 36 counterfactual,
108 subevent and conditional). A causal question with the letters "if" is counterfactual, and an indicative conditional
one with them is left out. The rule also matches "life" or "fifth"; `rule=word` looks for the word "if" instead.

A question may have several gold spans, one per event that answers it. All of them, joined by "; ", are the first
accepted answer, which training uses; each is also accepted on its own. The publishers' own metrics require all spans
(`meta.spans`) or the words that identify their events (`meta.triggers`).
"""

from functools import partial
from typing import Literal

from pydantic import Field

from d2e_sft.data.sample import Relation
from data_builders.raw.characters import decode_characters
from data_builders.raw.row import Draft
from data_builders.raw.source import source
from data_builders.sources.reading import NEW_QUESTIONS, NO_BLANK, UNSEEN_CONTEXTS, keep_if, read_splits
from data_builders.sources.rows import Cleaned, Form, IfOptions, IfRule, RawInput, RawRow, Text, has_if


class _Row(RawRow):
    context: Text
    question: Text
    type: Literal["Causal", "Counterfactual Conditional", "Indicative Conditional", "Sub-event", "Coreference"]
    answer_texts: list[Cleaned]
    events: list[Cleaned] = Field(default_factory=list)


class ESTEROptions(IfOptions):
    """Options of ESTER."""

    answer_in_context: bool = True


# Annotated type → PIPER's relation of a question without an "if", and with one; None leaves the question out.
_RELATIONS: dict[str, tuple[Relation | None, Relation | None]] = {
    "Causal": ("causal", "counterfactual"),
    "Counterfactual Conditional": ("counterfactual", "counterfactual"),
    "Indicative Conditional": ("subevent_conditional", None),
    "Sub-event": ("subevent_conditional", "subevent_conditional"),
    "Coreference": (None, None),
}


def _draft(rule: IfRule, row: _Row) -> Draft:
    spans = list(dict.fromkeys(filter(None, row.answer_texts)))  # a span that is listed twice is required once
    return row.draft(
        relation=_RELATIONS[row.type][has_if(row.question, rule)],
        answers=dict.fromkeys(["; ".join(spans), *spans]),
        meta={"type": row.type, "spans": [decode_characters(span)[0] for span in spans], "triggers": row.events},
    )


FILTERS = (
    UNSEEN_CONTEXTS,
    NEW_QUESTIONS,
    NO_BLANK,
    keep_if(
        "relation of PIPER",
        "coreference is not one of PIPER's relations, and its counts leave out indicative conditionals with an 'if'",
        lambda row: row.relation is not None,
    ),
)


ESTER = source(
    __file__,
    lambda job: read_splits(job, Form(_Row, partial(_draft, job.options.rule), RawInput.json_items), FILTERS),
    options=ESTEROptions,
)
