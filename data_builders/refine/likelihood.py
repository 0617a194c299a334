"""The refiner that asks a language model how likely the answer is without each span of the context.

Spans go, the most superfluous first, as long as the answer's score does not fall. This is leave-one-out attribution of
the context: each span's worth is what the score loses without it. ContextCite (Cohen-Wang et al., 2024) estimates the
same from random ablations. A model that finds the answer no likelier with the context than without does not use it, so
there the rule refiner decides. A row's result is kept on disk like a judge's reply, so a killed build resumes. In the
PIPER paper (Table 9) the trained model also refines for itself, by writing.
"""

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from enum import StrEnum
from functools import cached_property
from itertools import accumulate
from typing import Any

from pydantic import BaseModel
from tqdm import tqdm

from d2e_sft.data.prompts import DEFAULT, load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.judge.judge import Judge, JudgePrompt, Reply, Usage
from d2e_sft.judge.local import LocalBackend
from d2e_sft.judge.options import JudgeOptions
from d2e_sft.util.errors import UserError
from d2e_sft.util.paths import cache_dir
from d2e_sft.util.terminal import filled
from data_builders.refine.relevance import Asked, best_occurrence, word_overlap
from data_builders.refine.rules import Limits, RefinerOptions, refine_samples
from data_builders.text.clauses import Span, split_spans
from data_builders.text.keeping import keep_spans, with_needed

Kept = frozenset[int]  # numbers of the spans that stay
Score = Callable[[Sequence[Kept]], list[float]]  # contexts → the answer's score with each; an empty one is no context

_AT_ONCE = 8192  # tokens that go through the model together
_PROBES = 3  # rows that are timed for the estimate
_FORM = 60  # tokens of a prompt besides its context, about
# The question points at spans that share this much with it, as a part of what the span that shares most does.
_POINTED = 0.5


class SpannedContext(BaseModel):
    """A context as spans, with the number of words and the relevance of each.

    `protected` are the numbers of the spans that stay, with all that they need.
    """

    spans: list[Span]
    words: list[int]
    relevance: list[float]
    protected: list[int]


def remove_spans(context: SpannedContext, score: Score, limits: Limits) -> Kept | None:
    """Return the spans that stay; None if the whole context does not raise the score by the margin.

    Whole sentences go first, then spans inside the others. A round scores the context without each of them. Those
    that may go do so together, the least relevant first, as many as the score allows.
    """
    known: dict[Kept, float] = {}  # so that nothing is scored twice and rounded otherwise

    def values(sets: Sequence[Kept]) -> dict[Kept, float]:
        new = [kept for kept in dict.fromkeys(sets) if kept not in known]
        known.update(zip(new, score(new) if new else [], strict=True))
        return {kept: known[kept] for kept in sets}

    def fits(rest: Kept) -> bool:
        return bool(rest) and sum(context.words[number] for number in rest) >= limits.least_share * sum(context.words)

    def rank(rest: Kept) -> tuple[float, float]:
        return max(context.relevance[number] for number in kept - rest), -known[rest]

    kept, nothing = frozenset(range(len(context.spans))), frozenset[int]()
    best = values([nothing, kept])[kept]
    if best - known[nothing] < limits.margin:
        return None
    for units in _levels(context):
        while True:
            single = values([kept - unit for unit in units if unit & kept and fits(kept - unit)])
            removable = sorted((rest for rest in single if single[rest] >= best - limits.loss), key=rank)
            if not removable:
                break
            # Spans that may go one by one may matter together.
            joint = values([*accumulate(removable, lambda rest, other: rest & other if fits(rest & other) else rest)])
            kept = next(rest for rest in reversed(joint) if joint[rest] >= best - limits.loss)
            best = max(best, known[kept])
    return kept


def _levels(context: SpannedContext) -> list[list[Kept]]:
    """Sets of spans that go together: whole sentences, then each span with those that need it."""
    spans, numbers = context.spans, range(len(context.spans))
    sentences = dict.fromkeys(span.sentence for span in spans)
    whole = [frozenset(n for n in numbers if spans[n].sentence == sentence) for sentence in sentences]
    single = [frozenset(n for n in numbers if number in with_needed(spans, [n])) for number in numbers]
    stay = with_needed(spans, context.protected)
    return [[unit for unit in units if not unit & stay] for units in (whole, single)]


class AnswerScorer:
    """A language model that scores how strongly it expects a sample's answer, in the wording of training.

    A model without a chat template continues the prompt as a text. All contexts of a sample are branches of one packed
    row, so what their prompts share goes through the model once.
    """

    def __init__(self, name: str, dtype: str = "float32") -> None:
        # These import torch.
        from d2e_sft.data.views import ViewEncoder
        from d2e_sft.model.device import usable_device
        from d2e_sft.model.loading import load_model

        loaded = load_model(name, dtype=dtype)
        self._model, self.tokenizer = loaded.model.to(usable_device()).eval(), loaded.tokenizer
        encodes = bool(self._model.config.is_encoder_decoder)
        in_turns = encodes or getattr(self.tokenizer, "chat_template", None)
        wording = load_prompt_set(DEFAULT, "chat" if in_turns else "completion")
        self._encoder = ViewEncoder(self.tokenizer, wording, ("original",), encoder_decoder=encodes)

    def scores(self, sample: EventSample, contexts: Sequence[str]) -> list[float]:
        """Return the score of the answer with each context, in nats.

        It is the mean log-probability of the accepted answers. If the format has options or labels, it is their margin
        over the others: minus the log of the others' summed probability.
        """
        from d2e_sft.decoding import DecodingConfig, PromptPair
        from d2e_sft.decoding.likelihood import score

        if not contexts:
            return []
        prompts = self._prompts(sample, contexts)
        responses, given = self._encoder.option_ids(sample)
        pairs = [PromptPair(prompt, options=responses, given=given, name=sample.id) for prompt in prompts]
        size = max(1, _AT_ONCE // max(map(len, prompts)))
        results = sorted(score(self._model, pairs, DecodingConfig(alpha=0.0, batch_size=size)))
        return [_score(sample, [option.logprob for option in options]) for _, options in results]

    def fits(self, sample: EventSample) -> bool:
        """Return whether the model has a position for each token of the sample."""
        from d2e_sft.model.loading import position_limit

        limit = position_limit(self._model.config)
        longest = max(map(len, self._encoder.option_ids(sample)[0]))
        return limit is None or len(self._prompts(sample, [sample.context])[0]) + longest <= limit

    def _prompts(self, sample: EventSample, contexts: Sequence[str]) -> list[list[int]]:
        wording = self._encoder.prompt_set
        return self._encoder.chat.ids([wording.messages(sample, "original", context=text) for text in contexts])


def _score(sample: EventSample, logprobs: Sequence[float]) -> float:
    """The score from the log-probabilities of the candidates, or without any of the accepted answers."""
    if not sample.candidates:
        return sum(logprobs) / len(logprobs)
    right = [value for value, option in zip(logprobs, sample.candidates, strict=True) if option in sample.answers]
    wrong = [value for value, option in zip(logprobs, sample.candidates, strict=True) if option not in sample.answers]
    best = max(wrong, default=0.0)
    rest = best + math.log(sum(math.exp(value - best) for value in wrong)) if wrong else 0.0
    return sum(right) / len(right) - rest


class LikelihoodOutcome(StrEnum):
    """The origin of a refined context and, for the rule refiner's, the reason why it is not the likelihood's."""

    LIKELIHOOD = "likelihood"
    NOT_USED = "rules: the model does not use the context"
    TOO_LONG = "rules: too long for the model"
    NOTHING_TO_REMOVE = "rules: no span can go"
    ALREADY_REFINED = "refined by its source"


class _Decision(BaseModel):
    outcome: LikelihoodOutcome
    text: str | None = None


class _Task(BaseModel):
    """A context to refine; written as the prompt of a judge, whose replies are kept."""

    sample: EventSample
    context: SpannedContext
    limits: Limits

    @property
    def work(self) -> int:
        """The tokens of the first round, about."""
        removable = len(self.context.spans) - len(self.context.protected)
        return (2 + removable) * (_FORM + sum(self.context.words))

    def decide(self, scorer: AnswerScorer) -> _Decision:
        text, spans = self.sample.context, self.context.spans
        if not scorer.fits(self.sample):
            return _Decision(outcome=LikelihoodOutcome.TOO_LONG)

        def score(sets: Sequence[Kept]) -> list[float]:
            return scorer.scores(self.sample, [keep_spans(text, kept, spans) for kept in sets])

        kept = remove_spans(self.context, score, self.limits)
        if kept is None:
            return _Decision(outcome=LikelihoodOutcome.NOT_USED)
        return _Decision(outcome=LikelihoodOutcome.LIKELIHOOD, text=keep_spans(text, kept, spans))


class LikelihoodBackend(LocalBackend):
    """Decides tasks; the model is loaded for the first one."""

    counts_tokens = False

    @cached_property
    def identity(self) -> dict[str, Any]:
        wording = load_prompt_set(DEFAULT).digest()
        return {**super().identity, "backend": "likelihood", "wording": wording}

    def prompt_tokens(self, prompt: JudgePrompt) -> int:
        return _Task.model_validate_json(prompt.user).work

    def answers(
        self, prompts: Sequence[JudgePrompt], usage: Usage, keep: Callable[[JudgePrompt, Reply], None]
    ) -> Generator[tuple[int, Reply | None]]:
        for index, prompt in enumerate(prompts):
            decision = _Task.model_validate_json(prompt.user).decide(self._scorer)
            reply = Reply(text=decision.model_dump_json())
            keep(prompt, reply)
            yield index, reply

    @cached_property
    def _scorer(self) -> AnswerScorer:
        return AnswerScorer(self.model, self._options.dtype)


def refine_by(
    samples: Sequence[EventSample], options: RefinerOptions, labelled: Collection[str]
) -> tuple[list[EventSample], Counter[LikelihoodOutcome]]:
    """Refine contexts as the options say: all by rule, or by likelihood where the model uses the context.

    Return the samples in order and, by likelihood, the number of each outcome. `meta.refiner` is then `likelihood` or
    `rules`. A sample that already has a refined context stays as it is.
    """
    if options.by_model:
        raise UserError(f"refine.by={options.by}: only `d2e data build` asks a model", "drop it, or build the data")
    refined, counts = refine_samples(samples, options, labelled), Counter[LikelihoodOutcome]()
    if options.by == "rules":
        return refined, counts
    todo = [i for i, sample in enumerate(samples) if sample.refined_context is None]
    prompts = {i: prompt for i in todo if (prompt := _prompt(samples[i], options, labelled))}
    judge = _judge(options)
    if estimate := _estimate(judge, [*prompts.values()]):
        tqdm.write(filled(f"refine: {estimate}"), sys.stderr)
    decisions = dict(zip(prompts, _ask(judge, [*prompts.values()]), strict=True))
    counts[LikelihoodOutcome.ALREADY_REFINED] = len(samples) - len(todo)
    for i in todo:
        decision = decisions.get(i, _Decision(outcome=LikelihoodOutcome.NOTHING_TO_REMOVE))
        counts[decision.outcome] += 1
        text = refined[i].refined_context if decision.text is None else decision.text
        meta = {**refined[i].meta, "refiner": "rules" if decision.text is None else "likelihood"}
        refined[i] = refined[i].model_copy(update={"refined_context": text, "meta": meta})
    return refined, +counts


def check_model(model: str) -> None:
    """Raise UserError if the model's configuration or tokenizer cannot be loaded; reads no weights."""
    from d2e_sft.model.loading import load_tokenizer  # imports torch

    load_tokenizer(model)


def estimate_likelihood(samples: Sequence[EventSample], options: RefinerOptions, labelled: Collection[str]) -> str:
    """Return how long `refine_by` would take here by likelihood, from a few rows that it refines and keeps."""
    prompts = [_prompt(sample, options, labelled) for sample in samples if sample.refined_context is None]
    return _estimate(_judge(options), [prompt for prompt in prompts if prompt]) or "all results are kept already"


def _judge(options: RefinerOptions) -> Judge:
    folder = cache_dir() / "refine"
    described = JudgeOptions(backend="local", model=options.model, dtype=options.dtype, cache=folder)
    return Judge(LikelihoodBackend(described), described)


def _ask(judge: Judge, prompts: Sequence[JudgePrompt]) -> list[_Decision]:
    decisions = judge.ask(prompts, _Decision.model_validate_json, job="refine", reminder="")
    return [decision for decision in decisions if decision is not None]


def _estimate(judge: Judge, prompts: Sequence[JudgePrompt]) -> str | None:
    """Decide a few rows of different length, and extrapolate their time by `work`; None if no other row is left."""
    work = {prompt: _Task.model_validate_json(prompt.user).work for prompt in dict.fromkeys(prompts)}
    left = sorted((prompt for prompt in work if judge.cache.get(prompt) is None), key=lambda prompt: work[prompt])
    probes = list(dict.fromkeys(left[len(left) * (2 * i + 1) // (2 * _PROBES)] for i in range(_PROBES) if left))
    _ask(judge, probes[:1])  # loads the model
    start = time.perf_counter()
    _ask(judge, probes[1:])
    seconds = time.perf_counter() - start
    timed, rest = (sum(work[prompt] for prompt in part) for part in (probes[1:], set(left) - set(probes)))
    if not rest or not timed:
        return None
    minutes = seconds / timed * rest / 60
    return (
        f"{len(left) - len(probes):,} rows by the likelihood of {judge.options.model}, about "
        f"{minutes:,.0f} minutes (timed on {len(probes) - 1} rows; {len(work) - len(left):,} are kept from earlier)"
    )


def _prompt(sample: EventSample, options: RefinerOptions, labelled: Collection[str]) -> JudgePrompt | None:
    """The task of refining a sample as a prompt; None if no span can go."""
    spans, asked = split_spans(sample.context), Asked(sample, labelled)
    texts = [sample.context[span.start : span.end] for span in spans]
    relevance = word_overlap(texts, asked.query)
    # The spans that state an answer, the evidence or an event, or to which the question's words point.
    shared = word_overlap(texts, sample.question)
    kept = asked.evidence(texts, shared) | asked.event_of_question(texts, shared)
    kept |= set[int]().union(*(best_occurrence(texts, answer, shared) for answer in asked.answers))
    kept |= {number for number, value in enumerate(shared) if value and value >= _POINTED * max(shared)}
    protected = with_needed(spans, kept)
    if len(spans) < 2 or len(protected) == len(spans):
        return None
    task = _Task(
        sample=sample.model_copy(update={"meta": {}}),
        context=SpannedContext(
            spans=spans,
            words=[len(text.strip(" ,;:—").split()) for text in texts],  # a comma of its own is no word
            relevance=relevance,
            protected=sorted(protected),
        ),
        limits=Limits(**{name: getattr(options, name) for name in Limits.model_fields}),
    )
    return JudgePrompt("refine by likelihood", task.model_dump_json(), label=f"sample {sample.id!r}")
