"""Leave out clauses and phrases of the sentences that the refiner keeps.

What stays, with all that it needs to be read (`text/clauses.py`):

- words that the sample's texts share with the context: an accepted answer, `meta.spans`, `meta.evidence`, the events,
  and every run of words that the question repeats,
- for each further content word of the query a span that has it, so none is lost,
- spans with at least `threshold` of the best span's relevance, and of each sentence at least the most relevant span,
- "as a result" and the like between two clauses that stay.

That holds where the context states an answer. Where it only implies one, or the answer is a label, the answer may rest
on any clause. Then phrases without a verb go, and clauses of less relevant sentences (`_droppable`); reasons stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from d2e_sft.data.sample import EventSample
from d2e_sft.util.answers import words
from data_builders.refine.needed import answers_with_a_label, query_of, spans_of, texts_of
from data_builders.refine.scorers import Scorer
from data_builders.text.clauses import Span, keep_spans, split_spans, with_needed
from data_builders.text.words import begins_with_verb, predicate_place, stems, words_of

_RUN = 3  # words in a row that the question repeats, one of them with content
_LINK_WORDS = 5
_CALL_WORDS = 2
_CLAUSE_SHARE = 2  # of the threshold: in a short clause a single word that happens to recur weighs more
_LEANING = ("adjunct", "remark", "phrase", "wrapper")
_KEPT = ("evidence", "events", "chain")


def keep_clauses(
    sample: EventSample, sentences: Collection[int], scorer: Scorer, threshold: float, labelled: Collection[str]
) -> str:
    """Return what remains of a context's `sentences` without the clauses and phrases that the answer does not need.

    Args:
        sentences: Numbers of sentences, at least one.
        threshold: A span stays with twice this share of the best span's relevance to the question and the answers.
        labelled: Datasets whose options are labels.
    """
    query, label = query_of(sample, labelled), answers_with_a_label(sample, labelled)
    everything = split_spans(sample.context)
    spans = {number: span for number, span in enumerate(everything) if span.sentence in sentences}
    texts = {number: sample.context[span.start : span.end] for number, span in spans.items()}
    if not texts:
        return sample.context
    scores = dict(zip(texts, scorer([list(texts.values())], [query])[0], strict=True))
    stated = set() if label else _answers(sample, texts, scores)
    asked, again = _asked(sample.question, spans, texts)
    kept = stated | asked | _stated([text for key in _KEPT for text in texts_of(sample, key)], texts)
    if stated:
        floor = min(1, _CLAUSE_SHARE * threshold) * max(scores.values())
        kept |= {number for number, score in scores.items() if 0 < score >= floor}
        kept |= set(_best_of_sentences(spans, scores))
        kept |= {n for n in spans if sample.relation == "temporal" and _tells_when(texts[n])}
        kept -= (again := again - stated)
    elif everything[-1].sentence == 0 and sample.relation != "temporal":
        return sample.context  # the one sentence that the question is about
    else:
        droppable = _droppable(sample, spans, scores, label=label)
        calls = {number for number, text in texts.items() if not scores[number] and _is_call(text)}
        kept |= {number for number, span in spans.items() if span.kind not in droppable[span.sentence]} - calls
        kept |= {number for number, text in texts.items() if _tells_why(text, when=sample.relation == "temporal")}
        again = set()
    said = stems(" ".join(texts[number] for number in again))
    kept |= _with_words(stems(query) - said, texts, scores, with_needed(everything, kept))
    kept = with_needed(everything, kept)
    for number, span in spans.items():
        follows = stated and span.kind == "phrase" and kept.issuperset(span.needs)
        if number not in again and (follows or _links(number, texts, kept)):
            kept.add(number)
    return keep_spans(sample.context, kept or set(spans), everything)


def _placed(texts: Mapping[int, str]) -> tuple[list[str], list[int]]:
    """The words of the spans, and for each the number of its span."""
    placed = [(word, number) for number, text in texts.items() for word in words(text)]
    return [word for word, _ in placed], [number for _, number in placed]


def _stated(wanted: Sequence[str], texts: Mapping[int, str]) -> set[int]:
    """The spans that hold one of the wanted texts, word for word."""
    spoken, numbers = _placed(texts)
    return {numbers[place] for text in wanted if stems(text) for place in _run(words(text), spoken)}


def _answers(sample: EventSample, texts: Mapping[int, str], scores: Mapping[int, float]) -> set[int]:
    """The spans that state an answer, word for word or (qa) with all its content words."""
    answers = spans_of(sample)
    if (found := _stated(answers, texts)) or sample.format != "qa":
        return found
    said = stems(" ".join(texts.values()))
    whole = [wanted for answer in answers if (wanted := stems(answer)) and wanted <= said]
    return set().union(*(_with_words(wanted, texts, scores, set()) for wanted in whole))


def _asked(question: str, spans: Mapping[int, Span], texts: Mapping[int, str]) -> tuple[set[int], set[int]]:
    """The spans with words in a row that the question repeats, and those of them that only say the same once more.

    The latter lean on a clause that the question repeats, too, and it has all their words.
    """
    spoken, numbers = _placed(texts)
    asked = words(question)
    repeated = Counter[int]()
    for block in SequenceMatcher(None, asked, spoken, autojunk=False).get_matching_blocks():
        if block.size >= _RUN and stems(" ".join(asked[block.a : block.a + block.size])):
            repeated.update(numbers[block.b : block.b + block.size])
    whole = {number for number, count in repeated.items() if count == len(words(texts[number]))}
    leaning = {number for number in whole if spans[number].kind in _LEANING or _is_aside(number, texts)}
    clause = any(count >= _RUN - 1 for number, count in repeated.items() if spans[number].kind in ("main", "rest"))
    return set(repeated), leaning if clause else set()


def _run(wanted: Sequence[str], spoken: Sequence[str]) -> range:
    """The places of the first occurrence of words in a row; none if they do not occur."""
    for start in range(len(spoken) - len(wanted) + 1 if wanted else 0):
        if spoken[start] == wanted[0] and list(spoken[start : start + len(wanted)]) == list(wanted):
            return range(start, start + len(wanted))
    return range(0)


def _best_of_sentences(spans: Mapping[int, Span], scores: Mapping[int, float]) -> Iterator[int]:
    """The most relevant span of each sentence; its first clause if all are irrelevant."""
    for sentence in {span.sentence for span in spans.values()}:
        own = [number for number, span in spans.items() if span.sentence == sentence]
        yield max(own, key=lambda number: (scores[number], spans[number].kind == "main", -number))


def _with_words(wanted: set[str], texts: Mapping[int, str], scores: Mapping[int, float], kept: set[int]) -> set[int]:
    """Spans with the wanted words that no span of `kept` has."""
    missing = wanted - stems(" ".join(text for number, text in texts.items() if number in kept))
    chosen = set[int]()
    for number in sorted(texts, key=lambda number: (-scores[number], number)):
        if number not in kept and missing & (found := stems(texts[number])):
            chosen.add(number)
            missing -= found
    return chosen


def _droppable(
    sample: EventSample, spans: Mapping[int, Span], scores: Mapping[int, float], *, label: bool
) -> dict[int, tuple[str, ...]]:
    """The kinds of spans that can go from each sentence if the context only implies the answer.

    The order of events does not rest on places and persons. A further answer mostly rests on the most relevant
    sentence, so this one keeps all but remarks and phrases; its neighbours keep their clauses.
    """
    sentences = {span.sentence for span in spans.values()}
    if sample.relation == "temporal":
        return dict.fromkeys(sentences, ("remark", "wrapper", "phrase"))
    if label:
        return dict.fromkeys(sentences, ("remark", "wrapper"))
    best = max(sentences, key=lambda one: (sum(scores[n] for n, span in spans.items() if span.sentence == one), -one))
    others = ("remark", "wrapper", "phrase", "adjunct", "item")
    return {one: others[: 3 if len(sentences) > 1 else 2] if one == best else others for one in sentences}


def _tells_why(text: str, *, when: bool) -> bool:
    """Whether a span gives a reason, an aim or examples, or tells which one is meant; or, if asked, when it was."""
    spoken = words(text)
    if when:
        return _tells_when(text) or not words_of("reasons").isdisjoint(spoken)
    which = text.lstrip()[:1].isalpha() and spoken[0] in words_of("relatives")  # after a comma it only adds something
    return bool(spoken) and (which or spoken[0] in words_of("aims") or not words_of("reasons").isdisjoint(spoken))


def _is_call(text: str) -> bool:
    """Whether a span is an exclamation of a few words without a verb: "No joke!"."""
    spoken = words(text)
    return len(spoken) <= _CALL_WORDS and predicate_place(spoken) is None


def _is_aside(number: int, texts: Mapping[int, str]) -> bool:
    """Whether a span is a further predicate ("and sells tea"), or stands between commas and is no item of a series."""
    own, after = words(texts[number]), words(texts.get(number + 1, ""))
    if own[:1] in (["and"], ["but"]):
        return begins_with_verb(own[1:], finite=True)
    between = texts[number].lstrip()[:1] == "," and texts.get(number + 1, "").lstrip()[:1] == ","
    return between and len(own) > 1 and "or" not in (*own[:1], *after[:1]) and "and" not in after[:1]


def _tells_when(text: str) -> bool:
    """Whether a span tells a time."""
    spoken = words(text)
    return any(word.isdigit() for word in spoken) or not words_of("links", "times").isdisjoint(spoken)


def _links(number: int, texts: Mapping[int, str], kept: Collection[int]) -> bool:
    """Whether a span only links two that stay."""
    spoken = words(texts[number])
    linked = number + 1 in kept and any(earlier in kept for earlier in range(number))
    return linked and len(spoken) <= _LINK_WORDS and not words_of("links").isdisjoint(spoken)
