"""Refined contexts by a judge, which chooses among the context's own sentences and cannot write any.

The prompt numbers the sentences and the reply is their numbers, so a reply costs a few tokens, and the refined context
has the original's sentences, word for word. An invalid choice (a number without a sentence, numbers out of order, no
number) is rejected; such samples and undecided ones go to the rule refiner.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from itertools import pairwise
from pathlib import Path

from d2e_sft.data.sample import EventSample
from d2e_sft.judge.judge import Judge
from d2e_sft.judge.messages import Prompt
from d2e_sft.judge.templates import closing_value, load_templates
from data_builders.text.sentences import keep_sentences, split_sentences

_templates = partial(load_templates, Path(__file__).with_name("prompts.yaml"), "refine")

_NUMBERS = re.compile(r"\d{1,9}(\s*,\s*\d{1,9})*")


class Outcome(StrEnum):
    """The origin of a refined context and, for the rule refiner's, the reason why it is not the judge's."""

    JUDGE = "judge"
    REJECTED_INVENTED = "rejected: a sentence that the context does not have"
    REJECTED_REORDERED = "rejected: sentences out of order or twice"
    REJECTED_EMPTY = "rejected: no sentence"
    UNDECIDED = "undecided"
    RULES_ONLY = "rules only"
    NOTHING_TO_CHOOSE = "fewer than two sentences"
    ALREADY_REFINED = "refined by its source"


def judge_refine(
    samples: Sequence[EventSample], judge: Judge | None, fallback: Callable[[EventSample], EventSample]
) -> tuple[list[EventSample], Counter[Outcome]]:
    """Refine contexts by a judge, or by the rule refiner (`fallback`) without a judge or a valid choice.

    Return the samples in order, and the number of each outcome. `meta.refiner` of a sample is `judge` or `rules`; one
    that already has a refined context stays as it is.

    Raises:
        UserError: The judge cannot be reached, or its budget is spent.
    """
    outcomes = [_before_asking(sample, judge) for sample in samples]
    asked = [sample for sample, outcome in zip(samples, outcomes, strict=True) if outcome is None]
    choices = iter(
        judge.ask(refine_prompts(asked), _read_choice, what="refine", reminder=_templates().reminder) if judge else []
    )
    refined, counts = list[EventSample](), Counter[Outcome]()
    for sample, known in zip(samples, outcomes, strict=True):
        choice = next(choices) if known is None else None
        outcome = known or _check_choice(choice, len(split_sentences(sample.context)))
        counts[outcome] += 1
        if outcome is Outcome.ALREADY_REFINED:
            refined.append(sample)
            continue
        if outcome is not Outcome.JUDGE or choice is None:
            text, refiner = fallback(sample).refined_context, "rules"
        else:
            text, refiner = keep_sentences(sample.context, [number - 1 for number in choice]), "judge"
        meta = {**sample.meta, "refiner": refiner}
        refined.append(sample.model_copy(update={"refined_context": text, "meta": meta}))
    return refined, counts


def refine_prompts(samples: Sequence[EventSample]) -> list[Prompt]:
    """Return the prompts of `judge_refine`, for an estimate of its cost."""
    prompts = []
    for sample in filter(_needs_a_choice, samples):
        numbered = (f"[{number}] {sentence}" for number, sentence in enumerate(split_sentences(sample.context), 1))
        prompts.append(_templates().prompt(sample, "sample", sample.answers, sentences="\n".join(numbered)))
    return prompts


def _read_choice(reply: str) -> list[int] | None:
    """The numbers in a reply's closing line, an empty list for `none`; None if the line has another form."""
    value = closing_value(reply, "Sentences")
    if value == "none":
        return []
    if value is None or not _NUMBERS.fullmatch(value):
        return None
    return [int(number) for number in value.split(",")]


def _check_choice(choice: Sequence[int] | None, sentences: int) -> Outcome:
    """JUDGE if a choice is some of the sentences 1 to `sentences`, each once and in order; else the reason."""
    if choice is None:
        return Outcome.UNDECIDED
    if not choice:
        return Outcome.REJECTED_EMPTY
    if not all(1 <= number <= sentences for number in choice):
        return Outcome.REJECTED_INVENTED
    if any(later <= sooner for sooner, later in pairwise(choice)):
        return Outcome.REJECTED_REORDERED
    return Outcome.JUDGE


def _before_asking(sample: EventSample, judge: Judge | None) -> Outcome | None:
    if sample.refined_context is not None:
        return Outcome.ALREADY_REFINED
    if judge is None:
        return Outcome.RULES_ONLY
    return None if _needs_a_choice(sample) else Outcome.NOTHING_TO_CHOOSE


def _needs_a_choice(sample: EventSample) -> bool:
    return sample.refined_context is None and len(split_sentences(sample.context)) > 1
