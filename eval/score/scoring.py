"""From a generated text to a scored prediction: how the metrics apply to each format.

The paper reports the mean of exact match and F1 (PIPER, section 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from d2e_sft.data.prompts import Setting
from d2e_sft.data.sample import EventSample
from eval.score.event_answers import EventScores, score_events
from eval.score.extract import Extraction, extract_answer
from eval.score.metrics import exact_match, option_key, token_f1
from eval.score.predictions import Prediction

SAMPLE_FIELDS = set(Prediction.model_fields) & set(EventSample.model_fields)


class AnswerScores(NamedTuple):
    """Scores of an answer, each in [0, 1]; `set_accuracy` for mcq only."""

    exact_match: float
    f1: float
    set_accuracy: float | None = None


def score_output(sample: EventSample, output: str, marker: str, setting: Setting = "zero_shot") -> Prediction:
    """Return one generated text as a scored prediction.

    Args:
        marker: the response form before the answer that the prompt asks for.
        setting: a chain of thought gives its answer last.
    """
    extraction = extract_answer(output, fmt=sample.format, options=sample.options, marker=marker, setting=setting)
    scores = score_answer(sample.format, extraction, sample.answers, sample.options)
    return Prediction(
        **sample.model_dump(include=SAMPLE_FIELDS),
        gold=sample.answers,
        output=output,
        answer=list(extraction.answers),
        extraction=extraction.mode,
        events=_score_events(sample, extraction),
        **scores._asdict(),
    )


def _score_events(sample: EventSample, extraction: Extraction) -> EventScores | None:
    """Score an answer of several events, if the sample's meta lists these and their triggers."""
    spans, triggers = sample.meta.get("spans"), sample.meta.get("triggers")
    if sample.format != "qa" or not isinstance(spans, list) or not isinstance(triggers, list):
        return None
    return score_events(" ".join(extraction.answers), spans, triggers)


def score_answer(
    fmt: str, extraction: Extraction, gold_answers: Sequence[str], options: Sequence[str] = ()
) -> AnswerScores:
    """Score an extracted answer.

    - nli: both metrics are 1 for the correct label and otherwise 0.
    - scq: against the one correct option.
    - mcq: exact match compares texts, like the paper's metric: the options in the model's order against the correct
      ones in the prompt's order. Set accuracy ignores the order. F1 compares the tokens of all named options with
      those of all correct ones.
    - qa, chat: the best over the accepted answers.

    Args:
        gold_answers: the accepted answers; for mcq all correct options.
        options: the candidates in the order of the prompt.
    """
    predicted = " ".join(extraction.answers)
    if fmt == "nli":
        right = float(extraction.parsed and predicted == gold_answers[0])
        return AnswerScores(right, right)
    if fmt in ("qa", "chat"):
        return AnswerScores(exact_match(predicted, gold_answers), token_f1(predicted, gold_answers))
    gold = sorted(gold_answers, key=lambda answer: options.index(answer) if answer in options else len(options))
    # Compared by key, because joined texts would merge options that differ only in a decimal point.
    named, right_ones = [option_key(answer) for answer in extraction.answers], [option_key(answer) for answer in gold]
    exact, f1 = float(named == right_ones), token_f1(predicted, [" ".join(gold)])
    return AnswerScores(exact, f1, float(set(named) == set(right_ones)) if fmt == "mcq" else None)
