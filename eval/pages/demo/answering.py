"""Three answers to a question, decoded together and token by token: plain, debiased, and without the context."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

from d2e_sft.config.recipe import recipe_of
from d2e_sft.data.chat_template import pad_id
from d2e_sft.data.prompts import PromptSet, SettingPrompts, load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, generate_debiased, stop_token_ids
from d2e_sft.model.device import usable_device
from d2e_sft.model.loading import LoadedModel, load_model
from d2e_sft.model.positions import position_limit
from d2e_sft.util.errors import UserError
from eval.pages.demo.question import Question
from eval.run.engines.engine import TokenPrompts
from eval.run.engines.sample_task import SampleTask
from eval.run.options import EvalOptions, resolve_options

_DEFAULT_ALPHA = 0.5


@dataclass(frozen=True)
class Answers:
    """What the model has said so far.

    Attributes:
        plain: with the context, nothing subtracted.
        debiased: with the context, α times the imagined logits subtracted.
        imagined: without the context.
        cut: whether the end of the context had to be left out.
        done: whether all three have ended.
    """

    plain: str
    debiased: str
    imagined: str
    cut: bool = False
    done: bool = False


@dataclass(frozen=True)
class DemoModel:
    """A model, loaded, and how it is asked unless the visitor says otherwise.

    Attributes:
        name: as it was given.
        alpha: debias ratio: as asked for, else as the run was trained, else 0.5.
        max_new_tokens: the longest answer.
    """

    name: str
    loaded: LoadedModel
    prompt_set: PromptSet
    alpha: float
    max_new_tokens: int


def load_demo_model(model: str, options: EvalOptions) -> DemoModel:
    """Load a model into this process, as `d2e eval` does.

    Raises:
        UserError: no such model or prompt set, or α is out of its range.
    """
    if options.alpha is None and recipe_of(model) is None:
        options = replace(options, alpha=_DEFAULT_ALPHA)
    config = resolve_options(model, options)
    wording = load_prompt_set(config.prompt_set)
    loaded = load_model(model, dtype=options.dtype or config.section.dtype, attention=config.section.attention)
    # A tokenizer that cannot make prompts is found now, not at the first question.
    ViewEncoder(loaded.tokenizer, wording, (), encoder_decoder=loaded.model.config.is_encoder_decoder)
    loaded.model.to(usable_device()).eval()
    return DemoModel(model, loaded, wording, config.decoding.alpha, config.decoding.max_new_tokens)


class Answerer:
    """Answers questions with one model, one at a time: decoding changes the model's attention for a while."""

    def __init__(self, model: DemoModel) -> None:
        self._model = model
        self._lock = threading.Lock()

    def stream(self, question: Question, alpha: float, max_new_tokens: int) -> Iterator[Answers]:
        """The answers, whenever there is a new token; decoding ends when nobody takes the next one any more.

        Raises:
            UserError: the question is incomplete, or too long for the model even without its context.
        """
        with self._lock:
            yield from _Decoding(self._model, question, alpha, max_new_tokens).stream()

    def answer(self, question: Question, alpha: float, max_new_tokens: int) -> Answers:
        """The complete answers; raises as `stream`."""
        *_, last = self.stream(question, alpha, max_new_tokens)
        return last


class _AbandonedError(Exception):
    """Nobody waits for the answers any more."""


class _Decoding:
    """One question. The loop of decoding calls back at every token, so it runs in a thread of its own."""

    def __init__(self, model: DemoModel, question: Question, alpha: float, max_new_tokens: int) -> None:
        self._network, self._tokenizer = model.loaded.model, model.loaded.tokenizer
        self._prompts = _prompts(model, question, max_new_tokens)
        self._alpha, self._limit = float(alpha), max_new_tokens
        self._news: queue.Queue[tuple[int, int] | Exception | None] = queue.Queue()
        self._abandoned = threading.Event()

    def stream(self) -> Iterator[Answers]:
        worker = threading.Thread(target=self._decode, daemon=True)
        worker.start()
        tokens: list[list[int]] = [[], [], []]
        try:
            going = True
            while going:
                news = [self._news.get()]
                while not self._news.empty():  # a page that is slower than the model skips some states
                    news.append(self._news.get())
                for item in news:
                    if isinstance(item, Exception):
                        raise item
                    if item is not None:
                        tokens[item[0]].append(item[1])
                going = None not in news
                yield self._answers(tokens, done=not going)
        finally:
            self._abandoned.set()
            worker.join()

    def _answers(self, tokens: list[list[int]], *, done: bool) -> Answers:
        plain, debiased, imagined = self._tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return Answers(plain, debiased, imagined, bool(self._prompts.truncated), done)

    def _decode(self) -> None:
        [original], imagined = self._prompts.originals, self._prompts.imagined
        assert imagined is not None
        try:
            generate_debiased(
                self._network,
                [original, original, imagined[0]],
                [imagined[0]] * 3,
                DecodingConfig(max_new_tokens=self._limit),
                alpha=[0.0, self._alpha, 0.0],
                on_token=self._take,
                stop_ids=stop_token_ids(self._network, self._prompts.end_of_turn),
                pad_id=pad_id(self._tokenizer),
            )
        except _AbandonedError:
            pass
        except Exception as error:  # to be raised where the answers are waited for
            self._news.put(error)
            return
        self._news.put(None)

    def _take(self, index: int, token: int) -> None:
        if self._abandoned.is_set():
            raise _AbandonedError
        self._news.put((index, token))


def _prompts(model: DemoModel, question: Question, max_new_tokens: int) -> TokenPrompts:
    """Both prompts, by the code of `d2e eval`; a context that is too long gives way at its end."""
    config = model.loaded.model.config
    task = SampleTask(
        samples=[question.sample()],
        wording=SettingPrompts(question.wording(model.prompt_set)),
        # Whatever the slider says, the imagined prompt is answered too.
        decoding=DecodingConfig(alpha=1.0, max_new_tokens=max_new_tokens),
        without_context=False,
        overlong="truncate_context",
    )
    limit = position_limit(config)
    try:
        return task.tokens(model.loaded.tokenizer, encoder_decoder=config.is_encoder_decoder, limit=limit)
    except UserError:
        raise UserError(
            f"The question is too long: even without its context it does not fit the model's {limit:,} tokens beside "
            f"{max_new_tokens:,} new ones.",
            "Shorten it, or ask for a shorter answer.",
        ) from None
