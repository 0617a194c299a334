"""Questions about two phrases, where one causes, enables or prevents the other.

The wording depends on the kind of the phrase that the question names, so the phrase fits in unchanged and the question
is grammatical. A question for the effect without the cause is counterfactual ("What would not be the case if it were
not for …?"). One for a cause, or for what a cause does, is causal. If no wording fits, there is no question.
"""

from dataclasses import dataclass
from typing import Literal

from d2e_sft.data.sample import Relation
from data_builders.text.phrases import Phrase
from data_builders.text.words import words_of

Link = Literal["cause", "enable", "prevent"]
# In reports the subject of these is "we".
_EXPECTING = ("expect", "forecast", "project", "anticipate")
_PLURAL_STARTS = frozenset(["are", "were", "have", "do", "don't", "aren't", "weren't", "haven't"])
# "Prices are capped so that | luxury cars are excluded": an aim that was marked as the cause.
_AIM = ("so", "that")
# "We are | raising our estimate": the subject is not the marked cause.
_DOERS = words_of("nominatives") | {"it", "that"}
_CHANCES = ("likely", "unlikely")
# An infinitive after one of these is done, not made possible; the value is the verb of a question for its subject.
_GOING_ON = {
    **{form: f"{verb}s" for verb in ("continue", "begin", "tend", "seem", "appear") for form in (verb, f"{verb}s")},
    **{form: form for form in ("continued", "began")},
    **dict.fromkeys(("continuing", "was", "were", *_CHANCES), ""),
}
# "The network forms | the heart of its moat": an identity, not an effect.
_SAMENESS = frozenset(["is", "are", "was", "were", "be", "form", "forms", "formed", "represent", "represents"])
# "If it were not for no debt" would be hard to understand.
_LACKS = ("no", "little", "few")
# Kinds that can be an answer; others are pieces of a clause.
_ANSWERS = frozenset(("clause", "noun", "gerund"))

# (kind of the effect, link) → question for the cause; question for the effect, before its "if it were not for …?".
_WORDINGS: dict[tuple[str, Link], tuple[str, str]] = {
    ("noun", "cause"): ("What leads to {}?", "What would there not be"),
    ("noun", "enable"): ("What enables {}?", "What would not be possible"),
    ("noun", "prevent"): ("What limits or prevents {}?", "What would not be limited or prevented"),
    ("clause", "cause"): ("Why is it that {}?", "What would not be the case"),
    ("clause", "enable"): ("What helps explain why {}?", "What would not be the case"),
    ("infinitive", "cause"): ("", "What would not be possible"),
    ("infinitive", "enable"): ("", "What would not be possible"),
    ("infinitive", "prevent"): ("", "What would be easier"),
}


@dataclass(frozen=True)
class CausalQuestion:
    """A question, its relation and the phrase of the passage that answers it."""

    text: str
    relation: Relation
    answer: str


def ask_for_cause(cause: Phrase, effect: Phrase, link: Link) -> CausalQuestion | None:
    """Return the question that names the effect and is answered by the cause; None if none is well-formed."""
    purpose = cause.kind == "infinitive" and effect.kind == "clause"  # "Why …?" "To serve customers."
    wording = _cause_wording(cause, effect, link) if _can_be_linked(cause, effect) else ""
    if not wording or not effect.stands_alone or not cause.says_what or not (cause.kind in _ANSWERS or purpose):
        return None
    return CausalQuestion(wording.format(effect.inner), "causal", cause.text)


def _cause_wording(cause: Phrase, effect: Phrase, link: Link) -> str:
    """The question for a cause, with {} for the effect; may be empty."""
    earlier, last = effect.before
    going_on, wording = _GOING_ON.get(last, ""), ""
    match effect.kind:
        case "noun" if _is_effect(effect):
            wording = _WORDINGS["noun", link][0]
        case "clause":
            wording = _WORDINGS["clause", link][0] if link != "prevent" else ""
        case "infinitive" if going_on and _is_near_subject(cause, effect, last):
            wording = f"What {going_on} {{}}?"  # "strikes | continue | to halt work"
        case "infinitive" if earlier in ("is", "are") and _is_near_subject(cause, effect, f"{earlier} {last}"):
            wording = f"What is {last} {{}}?" if last in _CHANCES else ""
        case "infinitive" if _is_purpose(cause, effect):
            wording = f"What makes it {'hard' if link == 'prevent' else 'possible'} {{}}?"
        case "gerund" if last == "," or (last in ("is", "are") and earlier not in _DOERS):  # "is driving prices down"
            wording = "What is {}?"
        case "bare" if last and _is_predicate(cause, effect):
            wording = f"What {last} {{}}?"
        # A "that" and a predicate behind the cause describe something else, or "that" opens a clause.
        case "finite" if last != "that" or 0 <= effect.start - cause.end <= len(" that "):
            wording = "" if effect.text.split()[0].casefold() in _PLURAL_STARTS else "What {}?"
        case "complement" if link == "prevent" or last == "for":
            wording = f"What makes it {'hard' if link == 'prevent' else 'possible'} for {{}}?"
        case "complement" if last in _EXPECTING:
            wording = f"Why do we {last} {{}}?" if earlier == "we" else ""
        case "complement":
            wording = "What allows {}?" if link == "enable" else "What causes {}?"
    return wording


def _is_near_subject(cause: Phrase, effect: Phrase, between: str) -> bool:
    """Whether only these words are between a noun phrase and its predicate."""
    return cause.kind == "noun" and 0 <= effect.start - cause.end <= len(between) + 2


def _is_effect(noun: Phrase) -> bool:
    """Whether a thing is brought about: not in "margins | fell" or after "is", but after "there is"."""
    return not noun.is_subject and (noun.before[1] not in _SAMENESS or noun.before[0] == "there")


def _can_be_linked(cause: Phrase, effect: Phrase) -> bool:
    """Whether one may lead to the other: no aim, and no "but" in between ("It hedges, but | income will fall")."""
    first, second = sorted((cause, effect), key=lambda phrase: phrase.start)
    return cause.before != _AIM and not (second.contrasted and first.end <= second.start)


def _is_purpose(cause: Phrase, effect: Phrase) -> bool:
    """Whether an infinitive is the purpose of the cause, not its action: "expect | rates | to rise"."""
    return effect.before[1] not in _GOING_ON and (cause.kind != "noun" or not 0 <= effect.start - cause.end <= 1)


def _is_predicate(cause: Phrase, effect: Phrase) -> bool:
    """Whether the cause is the subject of a base form: "strikes | halt work", "strikes could | halt work"."""
    subject, modal = effect.before
    if effect.text.split()[0].casefold() in ("have", "be"):
        return False
    if not modal:
        return True
    follows = cause.kind == "noun" and 0 <= effect.start - cause.end <= len(modal) + 2
    return modal in words_of("modals") and (follows or subject in ("which", "that", "this"))


def ask_for_effect(cause: Phrase, effect: Phrase, link: Link) -> CausalQuestion | None:
    """Return the question that names the cause and is answered by the effect; None if none is well-formed."""
    unstated = cause.hypothetical and cause.kind == "clause"
    lack = cause.kind == "noun" and cause.inner.split()[0] in _LACKS
    if cause.kind not in _ANSWERS or not cause.stands_alone or unstated or lack or not _can_be_linked(cause, effect):
        return None
    fact = f"the fact that {cause.inner}" if cause.kind == "clause" else cause.inner
    cut = (effect.kind == "noun" and not _is_effect(effect)) or (
        effect.kind == "infinitive" and not _is_purpose(cause, effect)
    )
    if (effect.kind, link) in _WORDINGS and not cut and effect.says_what:
        wording = f"{_WORDINGS[effect.kind, link][1]} if it were not for {fact}?"
        return CausalQuestion(wording, "counterfactual", effect.text)
    if effect.kind == "gerund" and effect.before[1] == "," and link != "prevent":
        return CausalQuestion(f"What is the effect of {fact}?", "causal", effect.text)
    auxiliary, first = "", effect.text.split()[0].casefold()
    if effect.kind == "bare" and cause.kind == "noun" and _is_predicate(cause, effect):
        auxiliary = effect.before[1] or "do"  # a base form without a modal verb has a subject in the plural
    # The predicate follows a subject and has no auxiliary itself.
    asks = not effect.before[1] and first not in words_of("auxiliaries")
    if effect.kind == "finite" and cause.kind == "noun" and asks:
        auxiliary = "does" if first in words_of("s_forms") else "did"
    return CausalQuestion(f"What {auxiliary} {cause.inner} do?", "causal", effect.text) if auxiliary else None
