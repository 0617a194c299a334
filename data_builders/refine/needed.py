"""The sentences that a refined context must keep, whatever their relevance score.

- An accepted answer that is in the context word for word: without it, a refined context would teach the model to
  answer from nothing. If no sentence states an answer ("Why is he proud?" "He is a father."), the neighbours of the
  most relevant sentence stay, since the answer may follow from them.
- `meta.evidence`: texts of the context to which the question refers by its wording ("the latest step").
- `meta.events`: the sentences of the two events in the question and all sentences between them, which show the order
  and the effect of events. If a context does not state an event ("She felt guilty"), the sentences that imply it are
  unknown, so the whole context stays.
- `meta.chain`: the same for a cause and an effect in a process whose steps are in order. If the cause is not stated,
  the steps up to the effect stay; if the effect is not stated, the steps from the cause on.
- The sentence of an event in the question ("What happened after patients were admitted?").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from d2e_sft.data.sample import EventSample
from d2e_sft.util.answers import WORD
from data_builders.text.words import STOP_WORDS, stem, stems

# A sentence states an event if it has at least this share of the event's content words, apart from names.
_LEAST_SHARE = 0.5
_INDEX = re.compile(r"[_^]\{(\w+)\}")


def labelled_datasets(samples: Iterable[EventSample]) -> frozenset[str]:
    """Return the datasets whose rows all offer the same options, such as "more likely" and "less likely": labels.

    A dataset with a single row is never one.
    """
    offered: dict[str, set[frozenset[str]]] = {}
    rows = Counter[str]()
    for sample in samples:
        offered.setdefault(sample.dataset, set()).add(frozenset(sample.options))
        rows[sample.dataset] += 1
    return frozenset(name for name, sets in offered.items() if rows[name] > 1 and len(sets) == 1 and any(*sets))


def spans_of(sample: EventSample, labelled: Collection[str] = ()) -> list[str]:
    """Return the texts that stay if the context has them: `meta.spans` if the source has them, else all answers.

    For a conversation that trains on all its answers, these include the earlier ones. If the answer is a label, as in
    nli or in a dataset of `labelled_datasets`, it says nothing about content, and no text stays.
    """
    if answers_with_a_label(sample, labelled):
        return []
    earlier = sample.conversation.earlier_answers if sample.conversation and sample.conversation.loss == "all" else []
    return texts_of(sample, "spans") or [*sample.answers, *earlier]


def answers_with_a_label(sample: EventSample, labelled: Collection[str] = ()) -> bool:
    """Return whether the answer is a label: of the relation of two events, such as `positive`, or of its dataset."""
    if sample.format == "nli" or sample.dataset in labelled:
        return True
    return bool(texts_of(sample, "events") or texts_of(sample, "chain"))


def query_of(sample: EventSample, labelled: Collection[str] = ()) -> str:
    """Return the text with which the sentences of the sample's context are compared."""
    if answers_with_a_label(sample, labelled):
        return sample.question
    earlier = sample.conversation.turns if sample.conversation and sample.conversation.loss == "all" else ()
    return " ".join([sample.question, *sample.answers, *(turn.content for turn in earlier if turn.role != "system")])


def texts_of(sample: EventSample, key: str) -> list[str]:
    """Return the texts of a list in `meta`, or an empty list."""
    found = sample.meta.get(key)
    return [str(text) for text in found] if isinstance(found, list) else []


def needed(sample: EventSample, sentences: Sequence[str], relevance: Sequence[float]) -> set[int]:
    """Return the places of the sentences with the evidence and the events, and those between the events.

    If a text occurs several times, the occurrence of the highest `relevance` counts.
    """
    kept: set[int] = set()
    for text in texts_of(sample, "evidence"):
        kept |= best_occurrence(sentences, text, relevance)
    for key in ("events", "chain"):
        if not (events := texts_of(sample, key)):
            continue
        places = [_stating(event, sentences, relevance) for event in events]
        stating = set().union(*places)
        first, last = 0, len(sentences) - 1
        if all(places) or (stating and key == "chain"):
            first, last = min(stating) if places[0] else first, max(stating) if places[-1] else last
        kept |= set(range(first, last + 1))
    return kept


def stated_by_question(
    sample: EventSample, sentences: Sequence[str], relevance: Sequence[float], labelled: Collection[str] = ()
) -> set[int]:
    """Return the place of the sentence that states an event in the question ("after patients have been admitted").

    Empty if no sentence has half of the question's content words, or if the answer is a label: then `needed` keeps the
    events.
    """
    if answers_with_a_label(sample, labelled):
        return set()
    stating = _stating(sample.question, sentences, relevance)
    return {max(sorted(stating), key=lambda place: relevance[place])} if stating else set()


def holding_answers(
    sample: EventSample, sentences: Sequence[str], relevance: Sequence[float], labelled: Collection[str] = ()
) -> set[int]:
    """Return the places of the sentences with accepted answers, or from which one may follow; see the module."""
    spans = spans_of(sample, labelled)
    found = set().union(*(best_occurrence(sentences, span, relevance) for span in spans))
    if (
        found
        or not spans
        or texts_of(sample, "evidence")
        or any(_stating(span, sentences, relevance) for span in spans)
    ):
        return found
    best = max(range(len(sentences)), key=lambda place: relevance[place])
    return set(range(max(best - 1, 0), min(best + 2, len(sentences))))


def best_occurrence(sentences: Sequence[str], span: str, relevance: Sequence[float]) -> set[int]:
    """Return the sentences that a span covers, in any spelling (`_folded`); empty if the text lacks it.

    If it occurs several times, the occurrence with the most relevant sentence counts, then the first.
    """
    wanted, folded = _folded(span), [_folded(sentence) for sentence in sentences]
    text, starts = "", []
    for sentence in folded:
        starts.append(len(text))
        text += sentence + " "
    best: tuple[float, set[int]] = (-1.0, set())
    # Whole words only: "another" does not have the answer "no".
    for place in re.finditer(rf"(?<!\w){re.escape(wanted)}(?!\w)", text) if wanted and wanted in text else ():
        first, end = place.span()
        covered = {i for i, start in enumerate(starts) if start < end and first < start + len(folded[i])}
        score = max(relevance[i] for i in covered)
        if score > best[0]:
            best = (score, covered)
    return best[1]


def _folded(text: str) -> str:
    """The text without differences in letter case, blanks and the notation of an index ("Al_{2}", "Al2")."""
    return _INDEX.sub(r"\1", " ".join(text.split()).casefold())


def _stating(event: str, sentences: Sequence[str], relevance: Sequence[float]) -> set[int]:
    """The sentences that state an event: with its exact words, else with most of its content words."""
    if verbatim := best_occurrence(sentences, event.strip(" ."), relevance):
        return verbatim
    # Words that always have a capital name the participants of an event, and these do not locate it.
    spelled = [word for text in (event, *sentences) for word in WORD.findall(text)]
    capital = {stem(word.casefold()) for word in spelled if word[0].isupper()}
    small = {stem(word.casefold()) for word in spelled if not word[0].isupper()}
    wanted = stems(event) - (capital - small - STOP_WORDS)
    shared = [len(stems(sentence) & wanted) for sentence in sentences]
    most = max(shared, default=0)
    if not wanted or most < _LEAST_SHARE * len(wanted):
        return set()
    return {place for place, count in enumerate(shared) if count == most}
