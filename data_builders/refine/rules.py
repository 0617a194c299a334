"""The extractive refiner: keep the sentences of a context that are relevant to the question, and their clauses.

In the paper (section 3.2) GPT-4o removes what the answer does not need. This refiner needs no model, always gives
the same result and cannot invent anything. The refined context consists of the context's own words, in order: of
sentences chosen by their relevance to a query (`relevance.py`), and of their clauses and phrases.

These clauses stay, with all that they need to be read (`text/clauses.py`):

- words that the sample's texts share with the context: an accepted answer, `meta.spans`, `meta.evidence`, the events,
  and every run of words that the question repeats,
- for each further content word of the query a span that has it, so none is lost,
- spans with at least `threshold` of the best span's relevance, and of each sentence at least the most relevant span,
- "as a result" and the like between two clauses that stay.

That holds where the context states an answer. Where it only implies one, or the answer is a label, the answer may rest
on any clause. Then phrases without a verb go, and clauses of less relevant sentences (`_droppable`); reasons stay.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from d2e_sft.data.sample import EventSample
from d2e_sft.util.answers import words
from d2e_sft.util.progress import Progress
from data_builders.refine.relevance import Asked, labelled_datasets, word_overlap
from data_builders.text.clauses import Span, split_spans
from data_builders.text.keeping import keep_sentences, keep_spans, with_needed
from data_builders.text.sentences import split_sentences
from data_builders.text.words import begins_with_verb, predicate_place, stems, words_of

_RUN = 3  # words in a row that the question repeats, one of them with content
_LINK_WORDS = 5
_CALL_WORDS = 2
_CLAUSE_SHARE = 2  # times the threshold: in a short clause a single word that happens to recur weighs more
_LEANING = ("adjunct", "remark", "phrase", "wrapper")
_KEPT = ("evidence", "events", "chain")


class Limits(BaseModel):
    """When a context is shortened by likelihood, and how far; at least `least_share` of the words stay.

    Attributes:
        margin: Nats by which the whole context must raise the answer's score above that without a context.
        loss: Nats by which the score may fall below its best value so far.
    """

    margin: float = Field(2.0, ge=0)
    loss: float = Field(1.0, ge=0)
    least_share: float = Field(0.35, ge=0, le=1)


class RefinerOptions(Limits):
    """Options of the refiner; on the command line `refine.NAME=VALUE`.

    Attributes:
        by: Who decides: rules; likelihood (a language model, span by span; the rules where it does not use the
            context); or a model that is asked which words stay, `local` or at an endpoint (`openai`).
        model: For `by` other than rules, the language model: a folder, a Hub name or `builtin:…`.
        unit: The smallest part that can go: clause (clauses and phrases of sentences, too), or sentence.
        threshold: Keep sentences and clauses with at least this share of the best one's relevance.
        max_share: Keep at most this share of the sentences (rounded up), the most relevant ones.
        keep_answer: Keep the sentences with an accepted answer, even above `max_share`; if no sentence states an
            answer, the neighbours of the most relevant one.
        keep_events: Keep the source's evidence (`meta.evidence`), the sentences of two events (`meta.events`) and
            those between them, and that of an event in the question, even above `max_share`.
        dtype: For by=likelihood and local, of the model's weights.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    by: Literal["rules", "likelihood", "local", "openai"] = "rules"
    model: str | None = None
    unit: Literal["clause", "sentence"] = "clause"
    threshold: float = Field(0.25, ge=0, le=1)
    max_share: float = Field(0.6, gt=0, le=1)
    keep_answer: bool = True
    keep_events: bool = True
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"

    @property
    def by_model(self) -> bool:
        """Whether a model is asked which words stay, as a judge is."""
        return self.by in ("local", "openai")

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        by_likelihood, needs_model = self.by == "likelihood", self.by != "rules"
        if needs_model and self.model is None:
            raise ValueError(
                f"refine.by={self.by} without a model; name one: --refine-model builtin:smollm2-135m-instruct"
            )
        if by_likelihood and self.unit == "sentence":
            raise ValueError("refine.unit=sentence with --refine likelihood, which leaves out clauses")
        if self.model is not None and not needs_model:
            raise ValueError("refine.model without --refine likelihood, local or openai")
        unused = set(Limits.model_fields) if not by_likelihood else set()
        unused |= set() if by_likelihood or self.by == "local" else {"dtype"}
        if idle := sorted(self.model_fields_set & unused):
            raise ValueError(f"refine.{idle[0]} without --refine likelihood{' or local' * (idle[0] == 'dtype')}")
        return self


def refine_samples(
    samples: Sequence[EventSample], options: RefinerOptions, labelled: Collection[str] | None = None
) -> list[EventSample]:
    """Return each sample with its refined context; a sample that already has one stays as it is.

    `labelled` are the datasets whose options are labels, if known from more rows; None finds them in these rows.
    """
    labelled = labelled_datasets(samples) if labelled is None else labelled
    refined = list(samples)
    for i, sample in enumerate(Progress(samples, desc="refine", unit="row")):
        if sample.refined_context is not None:
            continue
        asked, sentences = Asked(sample, labelled), split_sentences(sample.context)
        kept = _kept(asked, sentences, word_overlap(sentences, asked.query), options)
        if options.unit == "clause":
            text = _keep_clauses(asked, kept, options.threshold)
        else:
            text = keep_sentences(sample.context, kept)
        refined[i] = sample.model_copy(update={"refined_context": text})
    return refined


def refine(sample: EventSample, options: RefinerOptions, labelled: Collection[str] = ()) -> EventSample:
    """Return one sample with its refined context; `labelled` as for `refine_samples`."""
    return refine_samples([sample], options, labelled)[0]


def _kept(
    asked: Asked, sentences: Sequence[str], relevance: Sequence[float], options: RefinerOptions
) -> Collection[int]:
    if len(sentences) < 2 or not any(relevance):
        return range(len(sentences))  # there is no reason to leave any out
    floor, most = options.threshold * max(relevance), math.ceil(options.max_share * len(relevance) - 1e-9)
    ranked = sorted(range(len(relevance)), key=lambda i: (-relevance[i], i))
    kept = {i for i in ranked[:most] if relevance[i] > 0 and relevance[i] >= floor}
    if options.keep_events:
        kept |= asked.evidence(sentences, relevance) | asked.event_of_question(sentences, relevance)
    if options.keep_answer:
        kept |= asked.holding_answers(sentences, relevance)
    return kept


def _keep_clauses(asked: Asked, sentences: Collection[int], threshold: float) -> str:
    """What remains of a context's `sentences` without the clauses and phrases that the answer does not need.

    A span stays with twice the share `threshold` of the best span's relevance to the question and the answers.
    """
    sample, everything = asked.sample, split_spans(asked.sample.context)
    spans = {number: span for number, span in enumerate(everything) if span.sentence in sentences}
    texts = {number: sample.context[span.start : span.end] for number, span in spans.items()}
    if not texts:
        return sample.context
    scores = dict(zip(texts, word_overlap(list(texts.values()), asked.query), strict=True))
    stated, when = _stating_answers(asked, texts, scores), sample.relation == "temporal"
    repeated, repeats = _repeated(sample.question, spans, texts)
    kept = stated | repeated | _verbatim([text for key in _KEPT for text in asked.texts(key)], texts)
    if stated:
        floor = min(1, _CLAUSE_SHARE * threshold) * max(scores.values())
        kept |= {number for number, score in scores.items() if 0 < score >= floor}
        for sentence in {span.sentence for span in spans.values()}:  # the first clause if all are irrelevant
            numbers = [number for number, span in spans.items() if span.sentence == sentence]
            kept.add(max(numbers, key=lambda number: (scores[number], spans[number].kind == "main", -number)))
        kept |= {number for number in spans if when and _tells_when(texts[number])}
        kept -= (repeats := repeats - stated)
    elif everything[-1].sentence == 0 and not when:
        return sample.context  # the one sentence that the question is about
    else:
        droppable = _droppable(spans, scores, when=when, label=asked.label)
        # An exclamation of a few words without a verb: "No joke!".
        short = {number: words(text) for number, text in texts.items() if len(words(text)) <= _CALL_WORDS}
        calls = {number for number, spoken in short.items() if not scores[number] and predicate_place(spoken) is None}
        kept |= {number for number, span in spans.items() if span.kind not in droppable[span.sentence]} - calls
        kept |= {number for number, text in texts.items() if _tells_why(text, when=when)}
        repeats = set()
    repeated_stems = stems(" ".join(texts[number] for number in repeats))
    kept |= _with_words(stems(asked.query) - repeated_stems, texts, scores, with_needed(everything, kept))
    kept = with_needed(everything, kept)
    for number, span in spans.items():
        follows = stated and span.kind == "phrase" and kept.issuperset(span.needs)
        if number not in repeats and (follows or _links(number, texts, kept)):
            kept.add(number)
    return keep_spans(sample.context, kept or set(spans), everything)


def _placed(texts: Mapping[int, str]) -> tuple[list[str], list[int]]:
    """The words of the spans, and for each the number of its span."""
    placed = [(word, number) for number, text in texts.items() for word in words(text)]
    return [word for word, _ in placed], [number for _, number in placed]


def _verbatim(phrases: Sequence[str], texts: Mapping[int, str]) -> set[int]:
    spoken, numbers = _placed(texts)
    return {numbers[place] for text in phrases if stems(text) for place in _run(words(text), spoken)}


def _stating_answers(asked: Asked, texts: Mapping[int, str], scores: Mapping[int, float]) -> set[int]:
    """The spans that state an answer, word for word or (qa) with all its content words; none if it is a label."""
    if (verbatim := _verbatim(asked.answers, texts)) or asked.sample.format != "qa":
        return verbatim
    present = stems(" ".join(texts.values()))
    whole = [needed for answer in asked.answers if (needed := stems(answer)) and needed <= present]
    return set[int]().union(*(_with_words(needed, texts, scores, set()) for needed in whole))


def _repeated(question: str, spans: Mapping[int, Span], texts: Mapping[int, str]) -> tuple[set[int], set[int]]:
    """The spans with words in a row that the question repeats, and those of them that only say the same once more.

    The latter lean on a clause that the question repeats, too, and it has all their words.
    """
    spoken, numbers = _placed(texts)
    question_words = words(question)
    repeated = Counter[int]()
    for block in SequenceMatcher(None, question_words, spoken, autojunk=False).get_matching_blocks():
        if block.size >= _RUN and stems(" ".join(question_words[block.a : block.a + block.size])):
            repeated.update(numbers[block.b : block.b + block.size])
    whole = {number for number, count in repeated.items() if count == len(words(texts[number]))}
    leaning = {number for number in whole if spans[number].kind in _LEANING or _is_aside(number, texts)}
    clause = any(count >= _RUN - 1 for number, count in repeated.items() if spans[number].kind in ("main", "rest"))
    return set(repeated), leaning if clause else set()


def _run(phrase: Sequence[str], spoken: Sequence[str]) -> range:
    """The places of the first occurrence of words in a row; none if they do not occur."""
    for start in range(len(spoken) - len(phrase) + 1 if phrase else 0):
        if spoken[start] == phrase[0] and list(spoken[start : start + len(phrase)]) == list(phrase):
            return range(start, start + len(phrase))
    return range(0)


def _with_words(needed: set[str], texts: Mapping[int, str], scores: Mapping[int, float], kept: set[int]) -> set[int]:
    """Spans with the wanted words that no span of `kept` has."""
    missing = needed - stems(" ".join(text for number, text in texts.items() if number in kept))
    chosen = set[int]()
    for number in sorted(texts, key=lambda number: (-scores[number], number)):
        if number not in kept and missing & (span_stems := stems(texts[number])):
            chosen.add(number)
            missing -= span_stems
    return chosen


def _droppable(
    spans: Mapping[int, Span], scores: Mapping[int, float], *, when: bool, label: bool
) -> dict[int, tuple[str, ...]]:
    """The kinds of spans that can go from each sentence if the context only implies the answer.

    The order of events does not rest on places and persons. A further answer mostly rests on the most relevant
    sentence, so this one keeps all but remarks and phrases; its neighbours keep their clauses.
    """
    sentences = {span.sentence for span in spans.values()}
    if when:
        return dict.fromkeys(sentences, ("remark", "wrapper", "phrase"))
    if label:
        return dict.fromkeys(sentences, ("remark", "wrapper"))
    best = max(sentences, key=lambda s: (sum(scores[n] for n, span in spans.items() if span.sentence == s), -s))
    kinds = ("remark", "wrapper", "phrase", "adjunct", "item")
    return {s: kinds[: 3 if len(sentences) > 1 else 2] if s == best else kinds for s in sentences}


def _tells_why(text: str, *, when: bool) -> bool:
    """Whether a span gives a reason, an aim or examples, or tells which one is meant; or, if asked, when it was."""
    spoken = words(text)
    if when:
        return _tells_when(text) or not words_of("reasons").isdisjoint(spoken)
    which = text.lstrip()[:1].isalpha() and spoken[0] in words_of("relatives")  # after a comma it only adds something
    return bool(spoken) and (which or spoken[0] in words_of("aims") or not words_of("reasons").isdisjoint(spoken))


def _is_aside(number: int, texts: Mapping[int, str]) -> bool:
    """Whether a span is a further predicate ("and sells tea"), or stands between commas and is no item of a series."""
    tokens, after = words(texts[number]), words(texts.get(number + 1, ""))
    if tokens[:1] in (["and"], ["but"]):
        return begins_with_verb(tokens[1:], finite=True)
    between = texts[number].lstrip()[:1] == "," and texts.get(number + 1, "").lstrip()[:1] == ","
    return between and len(tokens) > 1 and "or" not in (*tokens[:1], *after[:1]) and "and" not in after[:1]


def _tells_when(text: str) -> bool:
    spoken = words(text)
    return any(word.isdigit() for word in spoken) or not words_of("links", "times").isdisjoint(spoken)


def _links(number: int, texts: Mapping[int, str], kept: Collection[int]) -> bool:
    """Whether a span only links two that stay."""
    spoken = words(texts[number])
    linked = number + 1 in kept and any(earlier in kept for earlier in range(number))
    return linked and len(spoken) <= _LINK_WORDS and not words_of("links").isdisjoint(spoken)
