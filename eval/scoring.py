"""From a generated text to a scored prediction."""

from __future__ import annotations

from d2e_sft.sample import EventSample
from eval.extract import extract_answer
from eval.metrics import score_answer
from eval.predictions import Prediction


def score_output(sample: EventSample, output: str, marker: str) -> Prediction:
    """One generated text as a scored prediction.

    Args:
        output: what the model generated, without the prompt.
        marker: the response form before the answer, as the prompt asked for it.
    """
    extraction = extract_answer(output, fmt=sample.format, options=sample.options, marker=marker)
    exact, f1 = score_answer(sample.format, extraction, sample.answers)
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
        parsed=extraction.parsed,
        exact_match=exact,
        f1=f1,
    )
