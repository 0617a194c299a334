"""The quality filter: does a sample's context support its answer (PIPER paper, section 3.1, step 2)?

A model reasons in a few sentences and ends with a verdict, with a prompt for each format (after the paper's Table 17,
in our own words). Without a model, only the words of free-text answers are checked.
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from d2e_sft.data.sample import EventSample
from d2e_sft.judge.judge import Judge, JudgePrompt
from d2e_sft.judge.templates import JobTemplates, closing_value, templates_of
from d2e_sft.util.answers import words
from data_builders.text.words import stem

# Grammatical words of an answer, without negations: "not sold" is not "sold".
_FUNCTION_WORDS_TEXT = """
a an and are as at be been being but by did do does for from had has have he her his i in is it its of on or our she
so that the their them they this to was we were will with you your s
"""
_FUNCTION_WORDS = frozenset(_FUNCTION_WORDS_TEXT.split())


class JudgedVerdict(StrEnum):
    """Verdict on a sample. NOT_JUDGED: there is no rule for its format; UNDECIDED: the judge gave no verdict."""

    SUPPORTED = "supported"
    UNSUPPORTED = "unsupported"
    UNDECIDED = "undecided"
    NOT_JUDGED = "not_judged"


# Verdicts with which a sample is kept.
KEPT = frozenset({JudgedVerdict.SUPPORTED, JudgedVerdict.NOT_JUDGED})


def judge_quality(samples: Sequence[EventSample], judge: Judge | None) -> list[JudgedVerdict]:
    """Return whether each sample's context supports its answer, in order.

    Without a judge, a qa sample is supported if the context has every content word of an accepted answer, in any
    inflection. Samples of other formats are not judged.
    """
    if judge is None:
        return [_by_rule(sample) for sample in samples]
    templates = _templates(judge)
    verdicts = judge.ask(
        quality_prompts(samples, judge),
        lambda reply: read_verdict(templates.closed(reply)),
        job="quality filter",
        reminder=templates.reminder,
    )
    return [verdict or JudgedVerdict.UNDECIDED for verdict in verdicts]


def require_verdicts(judge: Judge | None, verdicts: Counter[JudgedVerdict]) -> None:
    """Raise UserError if a judge was asked and gave no verdict at all."""
    if judge is not None:
        judge.require_usable("quality filter", verdicts.total() - verdicts[JudgedVerdict.UNDECIDED], verdicts.total())


def quality_prompts(samples: Sequence[EventSample], judge: Judge | None = None) -> list[JudgePrompt]:
    """Return the prompts of `judge_quality`, also to estimate its cost."""
    return [_templates(judge).prompt(sample, "sample", sample.answers) for sample in samples]


def _templates(judge: Judge | None) -> JobTemplates:
    return templates_of(judge, Path(__file__).with_name("prompts.yaml"), "quality")


def read_verdict(reply: str) -> JudgedVerdict | None:
    """Return the verdict in the closing line of a reply; None without one."""
    value = closing_value(reply, "Verdict")
    return JudgedVerdict(value) if value in (JudgedVerdict.SUPPORTED, JudgedVerdict.UNSUPPORTED) else None


def _by_rule(sample: EventSample) -> JudgedVerdict:
    if sample.format != "qa":
        return JudgedVerdict.NOT_JUDGED
    context = {stem(word) for word in words(sample.context)}
    for answer in sample.answers:
        spoken = words(answer)
        # An answer of only function words ("to her") is used whole, since an empty set would match every context.
        content = [word for word in spoken if word not in _FUNCTION_WORDS] or spoken
        # An answer without any word (a sign) is not supported.
        if content and {stem(word) for word in content} <= context:
            return JudgedVerdict.SUPPORTED
    return JudgedVerdict.UNSUPPORTED
