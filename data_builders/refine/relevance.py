"""Which sentences of a context are relevant to a sample: scores of their relevance, and those that stay in any case.

Relevance is the overlap of words with a query. At the same number of words it keeps known answers as often as BM25,
and more often than sentence embeddings (docs/explanation/evidence-refiners.md has the numbers).

These sentences stay, whatever their score:

- An accepted answer that is in the context word for word: without it, a refined context would teach the model to
  answer from nothing. Else the most relevant sentence that states one stays. If none does ("Why is he proud?" "He is a
  father."), the neighbours of the most relevant sentence stay, since the answer may follow from them.
- `meta.evidence`: texts of the context to which the question refers by its wording ("the latest step").
- `meta.events`: the sentences of the two events in the question and all sentences between them, which show the order
  and the effect of events. If a context does not state an event ("She felt guilty"), the sentences that imply it are
  unknown, so the whole context stays.
- `meta.chain`: the same for a cause and an effect in a process whose steps are in order. If the cause is not stated,
  the steps up to the effect stay; if the effect is not stated, the steps from the cause on.
- The sentence of an event in the question ("What happened after patients were admitted?").
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from d2e_sft.data.sample import EventSample
from d2e_sft.util.answers import WORD
from data_builders.text.words import STOP_WORDS, stem, stems

# A sentence states an event if it has at least this share of the event's content words, apart from names.
_LEAST_SHARE = 0.5
_QUOTES_AND_BLANKS = "\"'“”‘’„«»`\t\n "
_INDEX = re.compile(r"[_^]\{(\w+)\}")


def labelled_datasets(samples: Iterable[EventSample]) -> frozenset[str]:
    """Return the datasets with several rows that all offer the same options, like "more likely" and "less likely"."""
    offered: dict[str, set[frozenset[str]]] = {}
    rows = Counter[str]()
    for sample in samples:
        offered.setdefault(sample.dataset, set()).add(frozenset(sample.options))
        rows[sample.dataset] += 1
    return frozenset(name for name, sets in offered.items() if rows[name] > 1 and len(sets) == 1 and any(*sets))


class Asked:
    """What a sample asks for, by which its context is refined.

    A label says nothing about content: the relation of two events, such as `positive`, or an option that all rows of
    the dataset offer. For a conversation that trains on all its answers, the earlier turns count, too.

    Attributes:
        query: The text with which sentences are compared: the question and, unless it is a label, the answers.
        answers: The texts that stay if the context has them: `meta.spans` if the source has them, else all answers;
            without quotes around them and the mark that ends them.
    """

    def __init__(self, sample: EventSample, labelled: Collection[str] = ()) -> None:
        self.sample = sample
        of_events = self.texts("events") or self.texts("chain")
        self.label = sample.format == "nli" or sample.dataset in labelled or bool(of_events)
        self.query, self.answers = sample.question, list[str]()
        if not self.label:
            chat = sample.conversation if sample.conversation and sample.conversation.loss == "all" else None
            turns = [turn.content for turn in chat.turns if turn.role != "system"] if chat else []
            self.query = " ".join([sample.question, *sample.answers, *turns])
            accepted = self.texts("spans") or [*sample.answers, *(chat.earlier_answers if chat else ())]
            self.answers = [*map(_bare, accepted)]

    def texts(self, key: str) -> list[str]:
        """Return the texts of a list in `meta`, or an empty list."""
        value = self.sample.meta.get(key)
        return [str(text) for text in value] if isinstance(value, list) else []

    def evidence(self, sentences: Sequence[str], relevance: Sequence[float]) -> set[int]:
        """Return the places of the sentences with the evidence and the events, and those between the events.

        If a text occurs several times, the occurrence of the highest `relevance` counts.
        """
        kept = set[int]().union(*(best_occurrence(sentences, text, relevance) for text in self.texts("evidence")))
        for key in ("events", "chain"):
            if places := [_stating(event, sentences, relevance) for event in self.texts(key)]:
                stating = set[int]().union(*places)
                first, last = 0, len(sentences) - 1
                if all(places) or (stating and key == "chain"):
                    first, last = min(stating) if places[0] else first, max(stating) if places[-1] else last
                kept |= set(range(first, last + 1))
        return kept

    def event_of_question(self, sentences: Sequence[str], relevance: Sequence[float]) -> set[int]:
        """Return the place of the sentence that states an event in the question ("after patients were admitted").

        Empty if no sentence has half of the question's content words, or if the answer is a label: then `evidence`
        has the events.
        """
        stating = set() if self.label else _stating(self.sample.question, sentences, relevance)
        return {max(sorted(stating), key=lambda place: relevance[place])} if stating else set()

    def holding_answers(self, sentences: Sequence[str], relevance: Sequence[float]) -> set[int]:
        """Return the places of the sentences with accepted answers, or from which one may follow; see the module."""
        places = set[int]().union(*(best_occurrence(sentences, answer, relevance) for answer in self.answers))
        if places or not self.answers or self.texts("evidence"):
            return places
        if stating := set[int]().union(*(_stating(answer, sentences, relevance) for answer in self.answers)):
            return {max(sorted(stating), key=lambda place: relevance[place])}
        best = max(range(len(sentences)), key=lambda place: relevance[place])
        return set(range(max(best - 1, 0), min(best + 2, len(sentences))))


def _bare(answer: str) -> str:
    """The answer without quotes around it and the mark that ends it, as a context may have it inside a sentence."""
    return answer.strip(_QUOTES_AND_BLANKS).rstrip(f".!{_QUOTES_AND_BLANKS}")


def best_occurrence(sentences: Sequence[str], span: str, relevance: Sequence[float]) -> set[int]:
    """Return the sentences that a span covers, in any spelling (`_folded`); empty if the text lacks it.

    If it occurs several times, the occurrence with the most relevant sentence counts, then the first.
    """
    phrase, folded = _folded(span), [_folded(sentence) for sentence in sentences]
    text, starts = "", []
    for sentence in folded:
        starts.append(len(text))
        text += sentence + " "
    best: tuple[float, set[int]] = (-1.0, set())
    # Whole words only: "another" does not have the answer "no".
    for place in re.finditer(rf"(?<!\w){re.escape(phrase)}(?!\w)", text) if phrase and phrase in text else ():
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
    event_stems = stems(event) - (capital - small - STOP_WORDS)
    shared = [len(stems(sentence) & event_stems) for sentence in sentences]
    most = max(shared, default=0)
    if not event_stems or most < _LEAST_SHARE * len(event_stems):
        return set()
    return {place for place, count in enumerate(shared) if count == most}


def word_overlap(sentences: Sequence[str], query: str) -> list[float]:
    """Return for each sentence the summed weight of the query's words in it; a weight is log(1 + n / df)."""
    query_stems = stems(query)
    matches = [stems(sentence) & query_stems for sentence in sentences]
    frequency = Counter(stem for shared in matches for stem in shared)
    weight = {stem: math.log(1 + len(sentences) / count) for stem, count in frequency.items()}
    # Sorted, since the sum of floats depends on their order.
    return [sum(weight[stem] for stem in sorted(shared)) for shared in matches]
