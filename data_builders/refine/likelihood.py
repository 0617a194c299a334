"""The refiner that asks a language model how likely the answer is without each span of the context.

A model that finds the answer no likelier with the context than without does not use it, so there the rule refiner
decides (`removal.py` has the method). A row's result is kept on disk like a judge's reply, so a killed build resumes.
In the PIPER paper (Table 9) the trained model also refines for itself, by writing.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from tqdm import tqdm

from d2e_sft.data.prompts import DEFAULT, load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.judge.judge import Judge
from d2e_sft.judge.local_backend import LocalBackend
from d2e_sft.judge.messages import Listener, Prompt, Reply
from d2e_sft.judge.options import JudgeOptions
from d2e_sft.util.paths import cache_dir
from d2e_sft.util.terminal import filled
from data_builders.refine.needed import best_occurrence, needed, query_of, spans_of, stated_by_question
from data_builders.refine.removal import Limits, SpannedContext, remove_spans
from data_builders.refine.rules import RefinerOptions, refine_samples
from data_builders.refine.scorers import make_scorer
from data_builders.text.clauses import Span, keep_spans, split_spans, with_needed

if TYPE_CHECKING:
    from data_builders.refine.answer_scores import AnswerScorer

_PROBES = 3  # rows that are timed for the estimate
_FORM = 60  # tokens of a prompt besides its context, about
# The question points at spans that share this much with it, as a part of what the span that shares most does.
_POINTED = 0.5


class Outcome(StrEnum):
    """The origin of a refined context and, for the rule refiner's, the reason why it is not the likelihood's."""

    LIKELIHOOD = "likelihood"
    NOT_USED = "rules: the model does not use the context"
    TOO_LONG = "rules: too long for the model"
    NOTHING_TO_REMOVE = "rules: no span can go"
    ALREADY_REFINED = "refined by its source"


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
        """Remove spans by the model's scores."""
        text, spans = self.sample.context, self.context.spans
        if not scorer.fits(self.sample):
            return _Decision(outcome=Outcome.TOO_LONG)
        kept = remove_spans(
            self.context,
            lambda sets: scorer.scores(self.sample, [keep_spans(text, one, spans) for one in sets]),
            self.limits,
        )
        if kept is None:
            return _Decision(outcome=Outcome.NOT_USED)
        return _Decision(outcome=Outcome.LIKELIHOOD, text=keep_spans(text, kept, spans))


class _Decision(BaseModel):
    outcome: Outcome
    text: str | None = None


class LikelihoodBackend(LocalBackend):
    """Decides tasks; the model is loaded for the first one."""

    counts_tokens = False

    @cached_property
    def identity(self) -> dict[str, Any]:
        wording = load_prompt_set(DEFAULT).digest()
        return {**super().identity, "backend": "likelihood", "wording": wording}

    def prompt_tokens(self, prompt: Prompt) -> int:
        return _Task.model_validate_json(prompt.user).work

    def answer(self, prompts: Sequence[Prompt], listener: Listener) -> None:
        for index, prompt in enumerate(prompts):
            decision = _Task.model_validate_json(prompt.user).decide(self._scorer)
            listener.received(index, Reply(text=decision.model_dump_json()))

    @cached_property
    def _scorer(self) -> AnswerScorer:
        from data_builders.refine.answer_scores import AnswerScorer  # imports torch

        return AnswerScorer(self.model, self._options.dtype)


def refine_by(
    samples: Sequence[EventSample], options: RefinerOptions, labelled: Collection[str]
) -> tuple[list[EventSample], Counter[Outcome]]:
    """Refine contexts as the options say: all by rule, or by likelihood where the model uses the context.

    Return the samples in order and, by likelihood, the number of each outcome. `meta.refiner` is then `likelihood` or
    `rules`. A sample that already has a refined context stays as it is.

    Raises:
        UserError: The model cannot be loaded, or its results cannot be kept.
    """
    refined, counts = refine_samples(samples, options, labelled), Counter[Outcome]()
    if options.by == "rules":
        return refined, counts
    todo = [i for i, sample in enumerate(samples) if sample.refined_context is None]
    prompts = {i: prompt for i in todo if (prompt := _prompt(samples[i], options, labelled))}
    judge = _judge(options)
    if estimate := _estimate(judge, [*prompts.values()]):
        tqdm.write(filled(f"refine: {estimate}"), sys.stderr)
    decisions = dict(zip(prompts, _ask(judge, [*prompts.values()]), strict=True))
    counts[Outcome.ALREADY_REFINED] = len(samples) - len(todo)
    for i in todo:
        decision = decisions.get(i, _Decision(outcome=Outcome.NOTHING_TO_REMOVE))
        counts[decision.outcome] += 1
        by_model = decision.text is not None
        changes: dict[str, Any] = {"meta": {**refined[i].meta, "refiner": "likelihood" if by_model else "rules"}}
        refined[i] = refined[i].model_copy(update=changes | ({"refined_context": decision.text} if by_model else {}))
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


def _ask(judge: Judge, prompts: Sequence[Prompt]) -> list[_Decision]:
    found = judge.ask(prompts, _Decision.model_validate_json, what="refine", reminder="")
    return [decision for decision in found if decision is not None]


def _estimate(judge: Judge, prompts: Sequence[Prompt]) -> str | None:
    """Decide a few rows of different length, and extrapolate their time by `work`; None if no other row is left."""
    work = {prompt: _Task.model_validate_json(prompt.user).work for prompt in dict.fromkeys(prompts)}
    left = sorted((prompt for prompt in work if judge.cache.get(prompt, 1) is None), key=lambda prompt: work[prompt])
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


def _prompt(sample: EventSample, options: RefinerOptions, labelled: Collection[str]) -> Prompt | None:
    """The task of refining a sample as a prompt; None if no span can go."""
    spans = split_spans(sample.context)
    texts = [sample.context[span.start : span.end] for span in spans]
    [relevance] = make_scorer("overlap")([texts], [query_of(sample, labelled)])
    protected = _protected(sample, spans, texts, labelled)
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
    return Prompt("refine by likelihood", task.model_dump_json(), label=f"sample {sample.id!r}")


def _protected(
    sample: EventSample, spans: Sequence[Span], texts: Sequence[str], labelled: Collection[str]
) -> set[int]:
    """The spans that state an answer, the evidence or an event, or to which the question's words point."""
    [asked] = make_scorer("overlap")([texts], [sample.question])
    kept = needed(sample, texts, asked) | stated_by_question(sample, texts, asked, labelled)
    kept |= set().union(*(best_occurrence(texts, answer, asked) for answer in spans_of(sample, labelled)))
    kept |= {number for number, shared in enumerate(asked) if shared and shared >= _POINTED * max(asked)}
    return with_needed(spans, kept)
