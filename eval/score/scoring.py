"""From a model's answer to a scored prediction: a generated text, or the log-probabilities of the options.

The paper reports the mean of exact match and F1 (PIPER, section 2.2). Likelihoods are scored as in
lm-evaluation-harness: `acc` is about the option with the largest sum, `acc_norm` about the one with the largest sum
per character. A tie goes to the first option.

ESTER's own script (Han et al., EMNLP 2021, section 5) asks for all events, separated by ";". As in the script, letter
case counts, and an event is found if it holds the characters of a trigger ("destroyed"). Unlike in the script, blanks
around a ";" do not count, because the script splits its own "a;b" and would not find " b".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from d2e_sft.data.prompts import PromptSet, Setting, candidate_responses
from d2e_sft.data.sample import EventSample
from d2e_sft.util.answers import exact_match, token_f1
from d2e_sft.util.option_match import score_options
from eval.score.extract import Extraction, extract_answer
from eval.score.predictions import EventScores, Prediction, ScoredOption

_PUNCTUATION = re.compile(r"[^\w\s]")
SAMPLE_FIELDS = set(Prediction.model_fields) & set(EventSample.model_fields)


class AnswerScores(NamedTuple):
    """Scores of an answer, each in [0, 1]; `set_accuracy` for mcq only."""

    exact_match: float
    f1: float
    set_accuracy: float | None = None


def score_output(
    sample: EventSample, output: str, marker: str, setting: Setting = "zero_shot", *, given: str = ""
) -> Prediction:
    """Return one generated text as a scored prediction; `marker` and `given` are as for `extract_answer`."""
    extraction = extract_answer(
        output, fmt=sample.format, options=sample.options, marker=marker, setting=setting, given=given
    )
    scores = score_answer(sample.format, extraction, sample.answers, sample.options)
    # An answer of several events, if the sample's meta lists these and their triggers.
    spans, triggers = sample.meta.get("spans"), sample.meta.get("triggers")
    events = None
    if sample.format == "qa" and isinstance(spans, list) and isinstance(triggers, list):
        events = score_events(" ".join(extraction.answers), spans, triggers)
    return Prediction(
        **sample.model_dump(include=SAMPLE_FIELDS),
        gold=sample.answers,
        output=output,
        answer=list(extraction.answers),
        extraction=extraction.mode,
        ambiguous=extraction.ambiguous or None,
        events=events,
        **scores._asdict(),
    )


def score_answer(
    fmt: str, extraction: Extraction, gold_answers: Sequence[str], options: Sequence[str] = ()
) -> AnswerScores:
    """Score an extracted answer.

    - nli: both metrics are 1 for the correct label and otherwise 0.
    - scq: against the one correct option.
    - mcq: exact match compares the options in the model's order with the correct ones in the prompt's order, which the
      paper leaves open. Set accuracy ignores the order. F1 compares the tokens of all named options with those of all
      correct ones.
    - qa, chat: the best over the accepted answers.

    Options are compared as they are written: `-5` is not `5` (`score_options`). `gold_answers` are all correct options
    for mcq; `options` are in the order of the prompt.
    """
    predicted = " ".join(extraction.answers)
    if not predicted or extraction.ambiguous:  # even where an accepted answer is nothing but an article
        return AnswerScores(0.0, 0.0, 0.0 if fmt == "mcq" else None)
    if fmt == "nli":
        right = float(extraction.parsed and predicted == gold_answers[0])
        return AnswerScores(right, right)
    if fmt in ("qa", "chat"):
        return AnswerScores(exact_match(predicted, gold_answers), token_f1(predicted, gold_answers))
    exact, f1 = score_options(extraction.answers, gold_answers, options)
    same_set = float(extraction.parsed and {*extraction.answers} == {*gold_answers})
    return AnswerScores(exact * extraction.parsed, f1, same_set if fmt == "mcq" else None)


def score_events(answer: str, gold: Sequence[str], triggers: Sequence[str]) -> EventScores:
    """Score an extracted answer against all gold events; without triggers, event F1 and HIT@1 are 0."""
    events = [part.strip() for part in answer.split(";")]
    hits = sum(any(trigger in event for event in events) for trigger in triggers)
    holding = [any(trigger in event for trigger in triggers) for event in events]
    predicted, expected = _tokens(events), _tokens(gold)
    shared = (predicted & expected).total()
    return EventScores(
        token_f1=_f1(shared / expected.total(), shared / predicted.total()) if predicted and expected else 0.0,
        event_f1=_f1(hits / len(triggers), sum(holding) / len(events)) if triggers else 0.0,
        hit_at_1=float(holding[0]),
        exact_match=float(set(events) == set(gold)),
    )


def _tokens(events: Sequence[str]) -> Counter[str]:
    # Split at single blanks, as in the script: punctuation between two blanks counts as an empty token.
    return Counter(token for event in events for token in _PUNCTUATION.sub("", event).split(" "))


def _f1(recall: float, precision: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


Normalise = Literal["none", "tokens", "characters"]
NORMALISATIONS: tuple[Normalise, ...] = get_args(Normalise)


def likeliest(options: Sequence[ScoredOption], normalise: Normalise) -> int:
    """Return the place of the option with the largest log-probability, as a sum, per token or per character."""
    lengths = {
        "none": [1] * len(options),
        "tokens": [option.tokens for option in options],
        "characters": [option.characters for option in options],
    }[normalise]
    values = [option.logprob / length for option, length in zip(options, lengths, strict=True)]
    return values.index(max(values))


def score_likelihoods(
    sample: EventSample, scores: Sequence[tuple[float, int]], wording: PromptSet, normalise: Normalise
) -> Prediction:
    """Return the likeliest option as a scored prediction, with the scores of all options.

    If several options are correct (mcq), one is chosen. Exact match and set accuracy then ask whether it is the only
    correct one, `acc` and `acc_norm` whether it is one of them.

    `scores` are log-probability and number of tokens of each candidate; ValueError if their numbers differ. The output
    of the prediction is the response with the chosen option.
    """
    responses, form = candidate_responses(wording, sample), wording.marker(sample.format)
    options = [
        ScoredOption(
            option=option, logprob=logprob, tokens=tokens, characters=len(response.strip().removeprefix(form).strip())
        )
        for option, response, (logprob, tokens) in zip(sample.candidates, responses, scores, strict=True)
    ]
    chosen = likeliest(options, normalise)
    extraction = Extraction((options[chosen].option,), "strict")
    acc, acc_norm = (options[likeliest(options, rule)].option in sample.answers for rule in ("none", "characters"))
    return Prediction(
        **sample.model_dump(include=SAMPLE_FIELDS),
        gold=sample.answers,
        output=responses[chosen],
        answer=list(extraction.answers),
        extraction=extraction.mode,
        **score_answer(sample.format, extraction, sample.answers, sample.options)._asdict(),
        likelihoods=options,
        acc=float(acc),
        acc_norm=float(acc_norm),
    )
