"""SQuAD's metrics of normalised text, and ESTER's scores of answers that are several events.

SQuAD's metrics (exact match, token-level F1) compare an answer with the nearest accepted one. ESTER's own script
(Han et al., EMNLP 2021, section 5) asks for all events, separated by ";". As in the script, letter case counts, and an
event is found if it holds the characters of a trigger ("destroyed"). Unlike in the script, blanks around a ";" do not
count, because the script splits its own "a;b" and would not find " b".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from d2e_sft.util.answers import exact_match, normalise, token_f1

__all__ = ["EventScores", "exact_match", "normalise", "score_events", "token_f1"]

SEPARATOR = ";"
_PUNCTUATION = re.compile(r"[^\w\s]")


class EventScores(BaseModel):
    """Scores of an answer of several events, each in [0, 1].

    Attributes:
        token_f1: F1 of the bags of tokens of all named and all gold events; the paper's F1^T.
        event_f1: F1 of the recall of triggers in named events and the precision of named events with a trigger.
        hit_at_1: Whether the first named event holds a trigger.
        exact_match: Whether exactly the gold events are named, in any order.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    token_f1: float = Field(ge=0, le=1)
    event_f1: float = Field(ge=0, le=1)
    hit_at_1: float = Field(ge=0, le=1)
    exact_match: float = Field(ge=0, le=1)


def score_events(answer: str, gold: Sequence[str], triggers: Sequence[str]) -> EventScores:
    """Score an extracted answer against all gold events; without triggers, event F1 and HIT@1 are 0."""
    named = [part.strip() for part in answer.split(SEPARATOR)]
    found = sum(any(trigger in event for event in named) for trigger in triggers)
    holding = [any(trigger in event for trigger in triggers) for event in named]
    predicted, wanted = _tokens(named), _tokens(gold)
    shared = (predicted & wanted).total()
    return EventScores(
        token_f1=_f1(shared / wanted.total(), shared / predicted.total()) if predicted and wanted else 0.0,
        event_f1=_f1(found / len(triggers), sum(holding) / len(named)) if triggers else 0.0,
        hit_at_1=float(holding[0]),
        exact_match=float(set(named) == set(gold)),
    )


def _tokens(events: Sequence[str]) -> Counter[str]:
    # Split at single blanks, as in the script: punctuation between two blanks counts as an empty token.
    return Counter(token for event in events for token in _PUNCTUATION.sub("", event).split(" "))


def _f1(recall: float, precision: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0
