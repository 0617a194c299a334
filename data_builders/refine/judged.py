"""Refined contexts by a judge, which deletes the irrelevant words of a context and cannot write any.

The words of a reply must be a subsequence of the context's, letter case and punctuation aside. If they are not, the
judge is asked once more with the first word that is wrong. If that fails, it is asked for the numbers of whole
sentences. Samples with an invalid choice and undecided ones go to the rule refiner.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from d2e_sft.data.sample import EventSample
from d2e_sft.judge.judge import Judge, JudgePrompt
from d2e_sft.judge.templates import JobTemplates, closing_value, templates_of, without_closing
from d2e_sft.util.answers import words
from data_builders.text.clauses import split_spans
from data_builders.text.keeping import keep_sentences
from data_builders.text.sentences import split_sentences

_NUMBERS = re.compile(r"\d{1,9}(\s*,\s*\d{1,9})*")


class Outcome(StrEnum):
    """The origin of a refined context and, for the rule refiner's, the reason why it is not the judge's."""

    JUDGE = "judge"
    SENTENCES = "judge, by whole sentences"
    REJECTED_INVENTED = "rejected: a sentence that the context does not have"
    REJECTED_REORDERED = "rejected: sentences out of order or twice"
    REJECTED_EMPTY = "rejected: no sentence"
    UNDECIDED = "undecided"
    NOTHING_TO_CHOOSE = "nothing to leave out"
    ALREADY_REFINED = "refined by its source"


BY_JUDGE = (Outcome.JUDGE, Outcome.SENTENCES)
ASKED = tuple(set(Outcome) - {Outcome.NOTHING_TO_CHOOSE, Outcome.ALREADY_REFINED})


def judge_refine(
    samples: Sequence[EventSample], judge: Judge, fallback: Callable[[EventSample], EventSample]
) -> tuple[list[EventSample], Counter[Outcome]]:
    """Refine contexts by a judge, or by the rule refiner (`fallback`) without a valid reply.

    Return the samples in order, and the number of each outcome. `meta.refiner` of a sample is `judge` or `rules`; one
    that already has a refined context stays as it is.
    """
    outcomes = dict[int, Outcome]()
    for place, sample in enumerate(samples):
        if not _can_lose_words(sample):
            is_refined = sample.refined_context is not None
            outcomes[place] = Outcome.ALREADY_REFINED if is_refined else Outcome.NOTHING_TO_CHOOSE
    todo = [place for place in range(len(samples)) if place not in outcomes]
    texts = dict(zip(todo, _shortened([samples[place] for place in todo], judge), strict=True))
    retried = [place for place in todo if not texts[place]]
    for place, (text, outcome) in zip(retried, _chosen([samples[place] for place in retried], judge), strict=True):
        texts[place], outcomes[place] = text, outcome
    refined = list[EventSample]()
    for place, sample in enumerate(samples):
        if outcomes.get(place) is Outcome.ALREADY_REFINED:
            refined.append(sample)
            continue
        by_judge = texts.get(place)
        meta = {**sample.meta, "refiner": "judge" if by_judge else "rules"}
        update = {"refined_context": by_judge or fallback(sample).refined_context, "meta": meta}
        refined.append(sample.model_copy(update=update))
    return refined, Counter(outcomes.get(place, Outcome.JUDGE) for place in range(len(samples)))


def refine_prompts(samples: Sequence[EventSample], judge: Judge | None = None) -> list[JudgePrompt]:
    """Return the first prompts of `judge_refine`, for an estimate of its cost."""
    templates = _templates("refine", judge)
    return [_prompt(templates, sample, sample.context) for sample in samples if _can_lose_words(sample)]


def _shortened(samples: Sequence[EventSample], judge: Judge) -> list[str]:
    """The contexts without what the judge deleted; empty where both its replies are wrong."""
    templates = _templates("refine", judge)
    prompts, reminder = refine_prompts(samples, judge), templates.reminder

    def read(reply: str) -> str | None:
        return _read_text(templates.closed(reply))

    replies = [reply or "" for reply in judge.ask(prompts, read, job="refine", reminder=reminder)]
    wrong = {place: word for place, sample in enumerate(samples) if (word := _added(sample.context, replies[place]))}
    if wrong:
        retold = [
            replace(prompts[place], user=f'{prompts[place].user}\n\n(The text has no "{word}" there. {reminder[1:]}')
            for place, word in wrong.items()
        ]
        judge.usage.reasked += len(set(retold))
        mended = judge.ask(retold, read, job="refine, what was rewritten", reminder=reminder)
        for place, reply in zip(wrong, mended, strict=True):
            replies[place] = "" if reply is None or _added(samples[place].context, reply) else reply
    return replies


def _chosen(samples: Sequence[EventSample], judge: Judge) -> list[tuple[str, Outcome]]:
    """The sentences that the judge chose of each context, and the outcome; empty if the choice is invalid."""
    sentences = [split_sentences(sample.context) for sample in samples]
    numbered = ["\n".join(f"[{number}] {sentence}" for number, sentence in enumerate(parts, 1)) for parts in sentences]
    templates = _templates("sentences", judge)
    prompts = [_prompt(templates, sample, text) for sample, text in zip(samples, numbered, strict=True)]
    choices = judge.ask(
        prompts,
        lambda reply: _read_choice(templates.closed(reply)),
        job="refine, whole sentences",
        reminder=templates.reminder,
    )
    result = []
    for sample, parts, choice in zip(samples, sentences, choices, strict=True):
        outcome = _check_choice(choice, len(parts))
        valid = choice is not None and outcome is Outcome.SENTENCES
        result.append((keep_sentences(sample.context, [n - 1 for n in choice or ()]) if valid else "", outcome))
    return result


def _templates(job: str, judge: Judge | None) -> JobTemplates:
    return templates_of(judge, Path(__file__).with_name("prompts.yaml"), job)


def _prompt(templates: JobTemplates, sample: EventSample, text: str) -> JudgePrompt:
    return templates.prompt(sample, "sample", sample.answers, text=text)


def _read_text(reply: str) -> str | None:
    """The text above a reply's closing line, without fences; None without text or that line, as in a reply cut off."""
    lines = [line for line in without_closing(reply).splitlines() if not line.startswith("```")]
    return "\n".join(lines).strip() or None if closing_value(reply, "Status") == "done" else None


def _added(context: str, text: str) -> str | None:
    """The first word of a text that the context does not have after those before it; None without one."""
    remaining = iter(words(context))
    return next((word for word in words(text) if word not in remaining), None)


def _read_choice(reply: str) -> list[int] | None:
    """The numbers in a reply's closing line, an empty list for `none`; None if the line has another form."""
    value = closing_value(reply, "Sentences")
    if value == "none":
        return []
    if value is None or not _NUMBERS.fullmatch(value):
        return None
    return [int(number) for number in value.split(",")]


def _check_choice(choice: Sequence[int] | None, sentences: int) -> Outcome:
    """SENTENCES if a choice is some of the sentences 1 to `sentences`, each once and in order; else the reason."""
    if choice is None:
        return Outcome.UNDECIDED
    if not choice:
        return Outcome.REJECTED_EMPTY
    if not all(1 <= number <= sentences for number in choice):
        return Outcome.REJECTED_INVENTED
    if any(later <= sooner for sooner, later in pairwise(choice)):
        return Outcome.REJECTED_REORDERED
    return Outcome.SENTENCES


def _can_lose_words(sample: EventSample) -> bool:
    return sample.refined_context is None and len(split_spans(sample.context)) > 1
