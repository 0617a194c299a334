"""From the log-probabilities of a sample's options to a scored prediction; lm-evaluation-harness's accuracies.

As in the harness, `acc` is about the option with the largest sum, `acc_norm` about the one with the largest sum per
character. A tie goes to the first option.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from d2e_sft.data.prompts import PromptSet, candidate_responses
from d2e_sft.data.sample import EventSample
from eval.score.extract import Extraction
from eval.score.predictions import Prediction, ScoredOption
from eval.score.scoring import SAMPLE_FIELDS, score_answer

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

    Args:
        scores: Log-probability and number of tokens of each of the sample's candidates.
        wording: Wording of the prompt; the prediction's output is the response with the chosen option.
        normalise: The length to divide by.

    Raises:
        ValueError: the numbers of scores and candidates differ.
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
