"""From a generated text to a scored prediction."""

from __future__ import annotations

from d2e_sft.data.prompts import Setting
from d2e_sft.data.sample import EventSample
from eval.score.extract import extract_answer
from eval.score.metrics import score_answer
from eval.score.predictions import Prediction


def score_output(sample: EventSample, output: str, marker: str, setting: Setting = "zero_shot") -> Prediction:
    """One generated text as a scored prediction.

    Args:
        output: what the model generated, without the prompt.
        marker: the response form before the answer, as the prompt asked for it.
        setting: how the model was asked; a chain of thought gives its answer last.
    """
    extraction = extract_answer(output, fmt=sample.format, options=sample.options, marker=marker, setting=setting)
    scores = score_answer(sample.format, extraction, sample.answers, sample.options)
    return Prediction(
        id=sample.id,
        dataset=sample.dataset,
        relation=sample.relation,
        format=sample.format,
        context=sample.context,
        question=sample.question,
        options=sample.options,
        gold=sample.answers,
        output=output,
        answer=list(extraction.answers),
        extraction=extraction.mode,
        **scores._asdict(),
    )
