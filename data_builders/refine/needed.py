"""What of a context must stay in its refined one, whatever a scorer says of it.

- An accepted answer that stands in the context word for word: a refined context without it would teach the model to
  answer from nothing. Where no sentence tells an answer at all ("Why is he proud?" "He is a father."), the sentences
  beside the most relevant one, from which it may follow.
- `meta.evidence`: texts of the context that the question is about by its wording ("the latest step").
- `meta.events`: the sentences of the two events that the question is about, and all that stands between them, since
  the order and the effect of events are told by what lies between. Where a context does not tell an event in its own
  words ("She felt guilty"), nothing says which sentences imply it, so the whole context stays.
- `meta.chain`: likewise for a cause and an effect in a process whose steps the context tells in order. There an effect
  comes of the steps up to it, and a cause acts on those from it on, where the other one is not told.
- The sentence of the event by which a question asks ("What happened after patients were admitted?").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from d2e_sft.data.sample import EventSample
from data_builders.text.stems import STOP_WORDS, stem, stems

# An event is told by a sentence that has at least this share of its content words, names aside.
_LEAST_SHARE = 0.5
_WORD = re.compile(r"[^\W_]+")
_INDEX = re.compile(r"[_^]\{(\w+)\}")


def labelled_datasets(samples: Iterable[EventSample]) -> frozenset[str]:
    """The datasets whose rows all offer the same options, such as "more likely" and "less likely": labels, no content.

    One row alone does not tell.
    """
    offered: dict[str, set[frozenset[str]]] = {}
    rows = Counter[str]()
    for sample in samples:
        offered.setdefault(sample.dataset, set()).add(frozenset(sample.options))
        rows[sample.dataset] += 1
    return frozenset(name for name, sets in offered.items() if rows[name] > 1 and len(sets) == 1 and any(*sets))


def spans_of(sample: EventSample, labelled: Collection[str] = ()) -> list[str]:
    """The texts that stay where they stand in the context: `meta.spans` where the source has them, else all answers,
    and of a conversation that is trained on in all its answers the earlier ones.

    Where the question is about two events, as in nli, the answer is a label and says nothing about content.

    Args:
        labelled: `labelled_datasets` of all rows that the sample stands among.
    """
    if answers_with_a_label(sample, labelled):
        return []
    earlier = sample.conversation.earlier_answers if sample.conversation and sample.conversation.loss == "all" else []
    return _texts(sample, "spans") or [*sample.answers, *earlier]


def answers_with_a_label(sample: EventSample, labelled: Collection[str] = ()) -> bool:
    """Whether the answer is a label of how two events relate, such as `positive`, or one of its dataset's labels."""
    if sample.format == "nli" or sample.dataset in labelled:
        return True
    return bool(_texts(sample, "events") or _texts(sample, "chain"))


def needed(sample: EventSample, sentences: Sequence[str], relevance: Sequence[float]) -> set[int]:
    """The places of the sentences that hold the evidence, the events, and what lies between the events.

    Args:
        relevance: of each sentence; of several places of a text, the most relevant one counts.
    """
    kept: set[int] = set()
    for text in _texts(sample, "evidence"):
        kept |= best_occurrence(sentences, text, relevance)
    for key in ("events", "chain"):
        if events := _texts(sample, key):
            places = [_told(event, sentences, relevance) for event in events]
            kept |= _between(places, len(sentences), in_order=key == "chain")
    return kept


def _between(places: Sequence[set[int]], sentences: int, *, in_order: bool) -> set[int]:
    told = set().union(*places)
    if all(places):
        return set(range(min(told), max(told) + 1))
    if not told or not in_order:
        return set(range(sentences))
    return set(range(min(told), sentences)) if places[0] else set(range(max(told) + 1))


def told_by_question(
    sample: EventSample, sentences: Sequence[str], relevance: Sequence[float], labelled: Collection[str] = ()
) -> set[int]:
    """The place of the sentence that tells the event by which a question asks ("after patients have been admitted").

    Empty where no sentence has half of the question's content words, or the answer is a label: then the events are
    those of `needed`.
    """
    if answers_with_a_label(sample, labelled):
        return set()
    told = _told(sample.question, sentences, relevance)
    return {max(sorted(told), key=lambda place: relevance[place])} if told else set()


def holding_answers(
    sample: EventSample, sentences: Sequence[str], relevance: Sequence[float], labelled: Collection[str] = ()
) -> set[int]:
    """The places of the sentences that hold the accepted answers, or from which one may follow; see the module."""
    spans = spans_of(sample, labelled)
    found = set().union(*(best_occurrence(sentences, span, relevance) for span in spans))
    if found or not spans or _texts(sample, "evidence") or any(_told(span, sentences, relevance) for span in spans):
        return found
    best = max(range(len(sentences)), key=lambda place: relevance[place])
    return set(range(max(best - 1, 0), min(best + 2, len(sentences))))


def best_occurrence(sentences: Sequence[str], span: str, relevance: Sequence[float]) -> set[int]:
    """The sentences over which the span stands, in any spelling (`_folded`); empty where it stands nowhere.

    Where it stands several times, the place with the most relevant sentences counts, then the first.
    """
    wanted, folded = _folded(span), [_folded(sentence) for sentence in sentences]
    text, starts = "", []
    for sentence in folded:
        starts.append(len(text))
        text += sentence + " "
    best: tuple[float, set[int]] = (-1.0, set())
    # Whole words only: an answer "no" does not stand in "another".
    for place in re.finditer(rf"(?<!\w){re.escape(wanted)}(?!\w)", text) if wanted else ():
        covered = {
            i for i, start in enumerate(starts) if start < place.end() and place.start() < start + len(folded[i])
        }
        score = max(relevance[i] for i in covered)
        if score > best[0]:
            best = (score, covered)
    return best[1]


def _folded(text: str) -> str:
    """A text without what spellings differ in: letter case, blanks, and how an index is set ("Al_{2}", "Al2")."""
    return _INDEX.sub(r"\1", " ".join(text.split()).casefold())


def _told(event: str, sentences: Sequence[str], relevance: Sequence[float]) -> set[int]:
    """The sentences that tell an event: its words as they are, else the most of its content words."""
    if verbatim := best_occurrence(sentences, event.strip(" ."), relevance):
        return verbatim
    wanted = stems(event) - _names([event, *sentences])
    shared = [len(stems(sentence) & wanted) for sentence in sentences]
    most = max(shared, default=0)
    if not wanted or most < _LEAST_SHARE * len(wanted):
        return set()
    return {place for place, count in enumerate(shared) if count == most}


def _names(texts: Sequence[str]) -> set[str]:
    """Stems of the words that have a capital wherever they stand: who takes part in an event does not place it."""
    capital, small = set[str](), set[str]()
    for text in texts:
        for word in _WORD.findall(text):
            (capital if word[0].isupper() else small).add(stem(word.casefold()))
    return capital - small - STOP_WORDS


def _texts(sample: EventSample, key: str) -> list[str]:
    found = sample.meta.get(key)
    return [str(text) for text in found] if isinstance(found, list) else []
