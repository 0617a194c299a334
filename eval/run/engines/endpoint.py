"""Any OpenAI-compatible endpoint, which decodes plainly.

Conversations go to `/chat/completions`, texts to `/completions`. To score options, it returns the log-probabilities of
the prompt (`echo`). These prompts are token ids, as in lm-evaluation-harness, so the tokenizer is needed here.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.chat_template import plain_text
from d2e_sft.decoding.pairs import OptionScore, PromptPair
from d2e_sft.judge.endpoint import OpenAIBackend
from d2e_sft.judge.judge import Reply, Usage
from d2e_sft.judge.options import Caller, EndpointOptions
from d2e_sft.model.loading import load_tokenizer
from d2e_sft.util.errors import UserError
from eval.run.engines.engine import EngineReply
from eval.run.task import Task, encode

CALLER = Caller(name="model", prefix="--", url="--base-url", model="the model's name", max_tokens="--max-new-tokens")
_ROUNDS = 2
_ECHO = "--answer likelihood needs /completions with `echo` and `logprobs`, which vLLM's server has"


@dataclass(frozen=True)
class _Request:
    pair: PromptPair[Any]

    @property
    def messages(self) -> list[dict[str, str]]:
        messages: list[dict[str, str]] = self.pair.original
        return messages

    @property
    def label(self) -> str:
        return self.pair.name


class EndpointEngine:
    """Sends prompts, and takes replies for outputs; the answers' length comes from the task.

    The `tokenizer` is only loaded if options will be scored (`likelihood`); None is that of the model's name.
    UserError if the address or the key is missing or malformed, or the `openai` package is not installed.
    """

    name = "openai"
    in_turn = False

    def __init__(self, options: EndpointOptions, tokenizer: str | None = None, *, likelihood: bool = False) -> None:
        self._options = options
        self._backend = OpenAIBackend(options, CALLER)
        self._tokenizer = _tokenizer(tokenizer or str(options.model)) if likelihood else None
        self.counts, self._usage = {"retried": 0}, Usage()

    def prepare(self, task: Task) -> Sequence[PromptPair[Any]]:
        self.counts, self._usage = {"retried": 0}, Usage()
        if task.likelihood:
            return encode(task, self._tokenizer)[0]
        prompts: list[Any] = [plain_text(turns) for turns in task.messages()] if task.as_text else task.messages()
        return [PromptPair(prompt, name=item.label) for prompt, item in zip(prompts, task.conversations, strict=True)]

    def generate(self, pairs: Sequence[PromptPair[Any]], decoding: DecodingConfig) -> Iterator[EngineReply]:
        update: dict[str, Any] = {"max_tokens": decoding.max_new_tokens}
        if decoding.temperature > 0:
            update["temperature"] = decoding.temperature
        kind = _TextBackend if pairs and isinstance(pairs[0].original, str) else OpenAIBackend
        backend = kind(self._options.model_copy(update=update), CALLER)
        if isinstance(backend, _TextBackend):
            backend.stops = list(decoding.stop_strings)
        for index, reply in self._replies(backend, pairs):
            yield EngineReply(index, reply.text)

    def score(self, pairs: Sequence[PromptPair[Any]], decoding: DecodingConfig) -> Iterator[EngineReply]:
        for index, reply in self._replies(_EchoBackend(self._options, CALLER), pairs):
            assert isinstance(reply, _EchoedReply)
            yield EngineReply(index, [OptionScore(sum(values), len(values)) for values in reply.logprobs])

    def environment(self) -> dict[str, Any]:
        return {"endpoint": self._backend.identity["base_url"]}

    def _replies(self, backend: OpenAIBackend, pairs: Sequence[PromptPair[Any]]) -> Iterator[tuple[int, Reply]]:
        left = list(range(len(pairs)))
        for _ in range(_ROUNDS):  # an unusable reply, such as a proxy's page, is requested once more
            unusable = []
            with closing(backend.answers([_Request(pairs[index]) for index in left], self._usage)) as answers:
                for place, reply in answers:
                    self.counts["retried"] = self._usage.retried
                    if reply is None:
                        unusable.append(left[place])
                    else:
                        yield left[place], reply
            if not unusable:
                return
            left = sorted(unusable)
        raise UserError(
            f"{len(left)} of {len(pairs)} prompts got no completion, twice; the first: {pairs[left[0]].name}",
            remedy="run the same command again; if it happens again, look at what the server sends",
        )


class _Logprobs(BaseModel):
    token_logprobs: list[float | None]


class _TextChoice(BaseModel):
    index: int = 0
    text: str | None = None
    logprobs: _Logprobs | None = None


class _TextCompletion(BaseModel):
    choices: list[_TextChoice] = Field(min_length=1)


class _TextBackend(OpenAIBackend):
    """Sends a prompt's text to `/completions`, without a chat template; `stops` are texts that end an answer."""

    stops: Sequence[str] = ()

    def _post(self, client: Any, prompt: Any) -> bytes:
        stops = {"stop": self.stops} if self.stops else {}
        return self._complete(client, prompt=prompt.pair.original, max_tokens=self._options.max_tokens, **stops)

    def _complete(self, client: Any, **fields: Any) -> bytes:
        sampling = self._options.temperature
        fields |= {} if sampling is None else {"temperature": sampling}
        raw = client.completions.with_raw_response.create(model=self.model, **fields)
        content: bytes = raw.http_response.content
        return content

    def _read(self, body: bytes, prompt: Any) -> Reply | None:
        try:
            return self._reply(_TextCompletion.model_validate_json(body).choices, prompt.pair)
        except ValidationError:
            return None

    def _reply(self, choices: list[_TextChoice], pair: PromptPair[Any]) -> Reply | None:
        text = choices[0].text
        return None if text is None else Reply(text=text)  # None, say, in a chat completion


class _EchoedReply(Reply):
    """The log-probabilities of the scored tokens of each option."""

    logprobs: list[list[float]]


class _EchoBackend(_TextBackend):
    """Has all options of a pair scored in one request."""

    def _post(self, client: Any, prompt: Any) -> bytes:
        texts = [[*prompt.pair.original, *option] for option in prompt.pair.options]
        return self._complete(client, prompt=texts, max_tokens=1, echo=True, logprobs=1)  # some servers refuse 0

    def _reply(self, choices: list[_TextChoice], pair: PromptPair[Any]) -> Reply:
        logprobs = [choice.logprobs for choice in sorted(choices, key=lambda choice: choice.index)]
        scores = []
        for option, echoed in zip(pair.options, logprobs, strict=False):
            span = slice(len(pair.original) + pair.given, len(pair.original) + len(option))
            values = [] if echoed is None else echoed.token_logprobs[span]
            scores.append([value for value in values if value is not None])
        if [len(scored) for scored in scores] != [len(option) - pair.given for option in pair.options]:
            raise UserError(
                f"{self._named()}: answered {pair.name} without a log-probability for each option's tokens; {_ECHO}",
                remedy="score in process (--engine transformers), or generate the answers (--answer generate)",
            )
        return _EchoedReply(text="", logprobs=scores)

    def _refused(self, status: int, body: bytes, prompt: Any) -> UserError:
        error = super()._refused(status, body, prompt)
        return UserError(error.message, f"{error.remedy}; {_ECHO}")


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
