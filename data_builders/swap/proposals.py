"""Other answers that a language model proposes.

The model sees the sentence with the answer, the question and the answer, and writes one other answer per line. Whether
one fits is decided as for the other pools. Replies are kept on disk like a judge's, so a killed build resumes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from d2e_sft.data.sample import EventSample
from d2e_sft.judge.judge import make_judge
from d2e_sft.judge.options import JudgeOptions
from d2e_sft.judge.templates import load_templates
from d2e_sft.util.paths import cache_dir
from data_builders.swap.options import SwapOptions
from data_builders.text.mentions import mentions
from data_builders.text.sentences import split_sentences

_TOKENS = 60  # of a reply
_LIST_MARK = re.compile(r"^\s*(?:[-*•]|\(?\d{1,2}[.)])\s+")
_QUOTES = "\"'“”‘’`*"


def propose(samples: Sequence[EventSample], answers: Sequence[str], options: SwapOptions) -> list[list[str]]:
    """Return the answers that the model proposes in the place of each sample's; none for a reply without any.

    Args:
        answers: of the samples, as their contexts write them.

    Raises:
        UserError: the model cannot be loaded, or its replies cannot be kept.
    """
    templates = load_templates(Path(__file__).with_name("prompts.yaml"), "propose")
    judge = make_judge(
        JudgeOptions(
            backend="local",
            model=options.model,
            dtype=options.dtype,
            max_tokens=_TOKENS,
            cache=cache_dir() / "swap",
        )
    )
    assert judge is not None
    prompts = [
        templates.prompt(sample, "sample", [answer], sentence=_sentence(sample, answer))
        for sample, answer in zip(samples, answers, strict=True)
    ]
    return [found or [] for found in judge.ask(prompts, read_answers, what="swap", reminder=templates.reminder)]


def read_answers(reply: str) -> list[str] | None:
    """Return the answers in a reply, divided by line breaks or semicolons, without marks; None for an empty reply."""
    parts = re.split(r"[;\n]", reply)
    found = [_LIST_MARK.sub("", part).strip().rstrip(".,").strip(_QUOTES).strip() for part in parts]
    return list(dict.fromkeys(filter(None, found))) or None


def _sentence(sample: EventSample, answer: str) -> str:
    sentences = split_sentences(sample.context)
    return next((text for text in sentences if mentions(answer, text)), sample.context)
