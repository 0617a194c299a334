"""An endpoint that scores options: `/completions` that gives back (`echo`) the log-probabilities of what it is sent.

The prompts are sent as token ids, as lm-evaluation-harness does it, so the model's tokenizer is needed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from d2e_sft.judge.messages import Reply
from d2e_sft.judge.openai_backend import OpenAIBackend
from d2e_sft.judge.options import EndpointOptions
from d2e_sft.model.loading import load_tokenizer
from d2e_sft.util.errors import UserError
from eval.run.engines.endpoint import CALLER, EndpointEngine
from eval.run.engines.engine import Task
from eval.run.engines.option_task import OptionTask
from eval.run.journal_files import Answer

_NEEDED = "--answer likelihood needs /completions with `echo` and `logprobs`, which vLLM's server has"


@dataclass(frozen=True)
class OptionQuestion:
    """A prompt and its options as token ids; `given` are the options' first tokens that are not scored."""

    prompt: list[int]
    options: list[list[int]]
    given: int
    label: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """None: it is sent as tokens."""
        return []


class EchoedReply(Reply):
    """The log-probabilities of the scored tokens of each option."""

    logprobs: list[list[float]]


class EchoEngine(EndpointEngine):
    """Has an endpoint score the options of samples, all of a sample's in one request.

    Args:
        options: with the model's name.
        tokenizer: a name as for `d2e_sft.model.loading.load_tokenizer`; None: the model's name is one.

    Raises:
        UserError: as `EndpointEngine`, or there is no such tokenizer.
    """

    def __init__(self, options: EndpointOptions, tokenizer: str | None) -> None:
        super().__init__(options)
        self._tokenizer = _tokenizer(tokenizer or str(options.model))
        self._task: OptionTask | None = None

    def begin(self, task: Task) -> Sequence[int]:
        assert isinstance(task, OptionTask)
        self._task, self._backend = task, _EchoBackend(self._options, CALLER)
        prompts = task.tokens(self._tokenizer, encoder_decoder=False, limit=None)
        assert prompts.options is not None
        assert prompts.given is not None
        parts = zip(prompts.originals, prompts.options, prompts.given, strict=True)
        self._questions = [OptionQuestion(*part, task.label(place)) for place, part in enumerate(parts)]
        self.counts = {"retried": 0}
        return [len(prompt) for prompt in prompts.originals]

    def _answer(self, place: int, reply: Reply) -> Answer:
        assert self._task is not None
        assert isinstance(reply, EchoedReply)
        return self._task.scored(place, [(sum(values), len(values)) for values in reply.logprobs], truncated=False)


class _EchoBackend(OpenAIBackend):
    def _post(self, client: Any, prompt: Any) -> bytes:
        raw = client.completions.with_raw_response.create(
            model=self.model,
            prompt=[[*prompt.prompt, *option] for option in prompt.options],
            max_tokens=1,  # some servers take no 0
            echo=True,
            logprobs=1,
            **({} if self._options.temperature is None else {"temperature": self._options.temperature}),
        )
        content: bytes = raw.http_response.content
        return content

    def _read(self, body: bytes, prompt: Any) -> Reply | None:
        try:
            choices = _Completion.model_validate_json(body).choices
        except ValidationError:
            return None
        found = [choice.logprobs for choice in sorted(choices, key=lambda choice: choice.index)]
        start, first = len(prompt.prompt), len(prompt.prompt) + prompt.given
        if len(found) != len(prompt.options):
            raise self._without_echo(f"{len(found)} completions for {len(prompt.options)} options", prompt)
        scores = []
        for option, logprobs in zip(prompt.options, found, strict=True):
            values = [] if logprobs is None else logprobs.token_logprobs[first : start + len(option)]
            scored = [value for value in values if value is not None]
            if len(scored) != len(option) - prompt.given:
                raise self._without_echo("no log-probability for each token of the prompt", prompt)
            scores.append(scored)
        return EchoedReply(text="", logprobs=scores)

    def _without_echo(self, what: str, prompt: Any) -> UserError:
        return UserError(
            f"{self._named()}: answered {prompt.label} with {what}; {_NEEDED}",
            remedy="score in process (--engine transformers), or generate the answers (--answer generate)",
        )

    def _refused(self, status: int, body: bytes, prompt: Any) -> UserError:
        error = super()._refused(status, body, prompt)
        return UserError(error.message, f"{error.remedy}; {_NEEDED}")


class _Logprobs(BaseModel):
    token_logprobs: list[float | None]


class _Choice(BaseModel):
    index: int
    logprobs: _Logprobs | None = None


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)


def _tokenizer(name: str) -> Any:
    remedy = "name the tokenizer of the endpoint's model, a Hub name or a folder: --tokenizer NAME"
    try:
        tokenizer, encoder_decoder = load_tokenizer(name)
    except UserError as error:
        raise UserError(
            f"--answer likelihood with --engine openai sends tokens, and there is no tokenizer {name!r}: "
            f"{error.message}",
            remedy,
        ) from None
    if encoder_decoder:
        raise UserError(f"--tokenizer {name}: of an encoder-decoder; expected a causal model's", remedy)
    return tokenizer
