"""Answers to a question, decoded together and token by token: plain, without the context, and debiased above α = 0."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from d2e_sft.config.recipe import recipe_of
from d2e_sft.data.prompts import PromptSet, load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, stop_token_ids
from d2e_sft.decoding.pairs import TokenPair
from d2e_sft.model.loading import LoadedModel, load_to_decode, position_limit
from d2e_sft.server.queue import BatchQueue, Prompt
from d2e_sft.train.data_record import trained_wording
from d2e_sft.util.errors import UserError
from eval.pages.demo.question import Question
from eval.run.options import EvalOptions, resolve_options
from eval.run.task import encode, sample_task

_DEFAULT_ALPHA = 0.5


@dataclass(frozen=True)
class Answers:
    """The answers so far; `cut` if the end of the context was cut off, `done` if all are complete."""

    plain: str = ""
    debiased: str = ""
    imagined: str = ""
    cut: bool = False
    done: bool = False


@dataclass(frozen=True)
class DemoModel:
    """A loaded model with the defaults of the page: the given debias ratio, the run's own, or 0.5."""

    name: str
    loaded: LoadedModel
    prompt_set: PromptSet
    decoding: DecodingConfig

    @property
    def alpha(self) -> float:
        """Where the slider for α starts."""
        return self.decoding.alpha

    @property
    def max_new_tokens(self) -> int:
        """Where the slider for the longest answer starts."""
        return self.decoding.max_new_tokens


def load_demo_model(model: str, options: EvalOptions) -> DemoModel:
    """Load a model like `d2e eval`; UserError if there is no such model or prompt set, or α is out of its range."""
    if options.alpha is None and recipe_of(model) is None:
        options = replace(options, alpha=_DEFAULT_ALPHA)
    config = resolve_options(model, options)
    wording = load_prompt_set(options.prompt_set or trained_wording(model, config.prompt_set), config.form)
    loaded = load_to_decode(model, config.section, options.dtype)
    # A tokenizer that cannot make prompts is found now, not at the first question.
    ViewEncoder(loaded.tokenizer, wording, (), encoder_decoder=loaded.model.config.is_encoder_decoder)
    return DemoModel(model, loaded, wording, config.decoding)


class Answerer:
    """Answers questions by the queue of a server."""

    def __init__(self, model: DemoModel, queue: BatchQueue) -> None:
        self._model, self._queue = model, queue

    async def stream(self, question: Question, alpha: float, max_new_tokens: int) -> AsyncGenerator[Answers, None]:
        """The answers after each new token; decoding ends when the iterator is closed.

        UserError if the question is incomplete, or too long for the model even without its context.
        """
        pair, end_of_turn = _prompts(self._model, question, max_new_tokens)
        assert pair.imagined is not None
        pairs = {
            "plain": replace(pair, imagined=None, alpha=0.0),
            "debiased": replace(pair, alpha=float(alpha)),
            "imagined": replace(pair, original=pair.imagined, imagined=None, alpha=0.0),
        }
        how = (
            DecodingConfig(max_new_tokens=max_new_tokens),
            tuple(stop_token_ids(self._model.loaded.model, end_of_turn)),
        )
        if alpha == 0:
            del pairs["debiased"]  # it would be the plain one
        names, said = list(pairs), Answers(cut=pair.truncated)
        async with aclosing(self._queue.answers([Prompt(one, *how) for one in pairs.values()])) as pieces:
            async for piece in pieces:
                name = names[piece.index]
                said = replace(said, **{name: getattr(said, name) + piece.text})
                yield said
        yield replace(said, done=True)

    def answer(self, question: Question, alpha: float, max_new_tokens: int) -> Answers:
        """The complete answers; raises as `stream`."""

        async def last() -> Answers:
            return [said async for said in self.stream(question, alpha, max_new_tokens)][-1]

        return asyncio.run(last())


def _prompts(model: DemoModel, question: Question, max_new_tokens: int) -> tuple[TokenPair, int]:
    """Both prompts as `d2e eval` makes them, with the end of a long context cut off, and the end-of-turn token."""
    config = model.loaded.model.config
    limit = position_limit(config)
    # The imagined prompt is answered too, whatever the ratio.
    decoding = DecodingConfig(alpha=1.0, max_new_tokens=max_new_tokens)
    task = sample_task([question.sample()], question.wording(model.prompt_set), decoding, truncate=True)
    try:
        [pair], end = encode(task, model.loaded.tokenizer, encoder_decoder=config.is_encoder_decoder, limit=limit)
    except UserError:
        raise UserError(
            f"The question is too long: even without its context it does not fit the model's {limit:,} tokens beside "
            f"{max_new_tokens:,} new ones.",
            "Shorten it, or ask for a shorter answer.",
        ) from None
    return pair, end
