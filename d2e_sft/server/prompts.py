"""Requests → prompts as tokens, worded and fitted to one model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.chat_template import ChatEncoder, Messages
from d2e_sft.data.prompts import PromptSet
from d2e_sft.decoding.generation import stop_token_ids
from d2e_sft.decoding.pairs import PromptPair, Tokens
from d2e_sft.model.loading import LoadedModel, shared_positions
from d2e_sft.server.openai import (
    ApiRequest,
    ChatRequest,
    CompletionRequest,
    RequestError,
    chosen_decoding,
    with_context,
    with_system,
)
from d2e_sft.server.queue import Prompt
from d2e_sft.server.start import ServeOptions
from d2e_sft.util.errors import UserError

_PLAIN = DecodingConfig(alpha=0.0)


class Prompts:
    """Makes prompts of requests.

    `prompt_set` has the context lines, and the system message of requests that have none.
    """

    def __init__(self, loaded: LoadedModel, prompt_set: PromptSet, options: ServeOptions) -> None:
        self._model, self._tokenizer = loaded.model, loaded.tokenizer
        self._prompt_set, self._options, self._longest = prompt_set, options, options.max_new_tokens
        config = loaded.model.config
        self._encoder_decoder = bool(config.is_encoder_decoder)
        self._texts = ChatEncoder(loaded.tokenizer, encoder_decoder=self._encoder_decoder, as_text=True)
        self._chat: ChatEncoder | None = None
        if self._encoder_decoder or getattr(loaded.tokenizer, "chat_template", None):
            self._chat = ChatEncoder(loaded.tokenizer, encoder_decoder=self._encoder_decoder)

    def of_chat(self, request: ChatRequest) -> tuple[Prompt, str | None]:
        """Return the prompt of a chat request, and why it is decoded plainly although it has a context."""
        if self._chat is None:
            raise RequestError("this model has no chat template; send a text to /v1/completions", "messages")
        options = self._options
        chosen = chosen_decoding(request, options.decoding)
        system = options.system_of(self._prompt_set, request.format or options.format)
        messages = with_system([message.model_dump() for message in request.messages], system)
        reason, original = None, messages
        if request.context is not None:
            original, reason = with_context(messages, request, chosen, self._prompt_set, options.format)
        paired = request.context is not None and reason is None
        try:
            ids = self._chat.ids([_turns(turns) for turns in ([original, messages] if paired else [original])])
        except UserError as error:
            raise RequestError(error.one_line, "messages") from None
        decoding = replace(chosen, plausibility=request.plausibility or 0.0) if paired else _PLAIN
        limited = request.model_copy(update={"max_tokens": request.max_completion_tokens or request.max_tokens})
        return self._prompt(limited, ids, decoding, self._chat.end_of_turn), reason

    def of_completion(self, request: CompletionRequest) -> list[Prompt]:
        """Return the prompts of a request of texts; RequestError if one does not fit the model."""
        end = self._texts.end_of_turn
        return [self._prompt(request, [ids], _PLAIN, end) for ids in self._tokens(request)]

    def of_echo(self, request: CompletionRequest) -> list[Tokens]:
        """Return the prompts of a request of texts as tokens, without an answer; RequestError as `of_completion`."""
        if self._encoder_decoder:
            raise RequestError("echo: an encoder-decoder gives the tokens of its prompt no probability", "echo")
        prompts = self._tokens(request)
        for ids in prompts:
            self._room(request, [ids], least=0)
        return prompts

    def _tokens(self, request: CompletionRequest) -> list[Tokens]:
        prompts: Any = request.prompts
        if isinstance(prompts[0], str):
            return list(self._tokenizer(prompts, add_special_tokens=True)["input_ids"])
        vocabulary = self._model.config.get_text_config().vocab_size
        for token in (token for prompt in prompts for token in prompt):
            if not 0 <= token < vocabulary:
                raise RequestError(f"prompt: token {token}; expected 0 to {vocabulary - 1}", "prompt")
        return list(prompts)

    def _room(self, request: ApiRequest, ids: Sequence[Tokens], least: int = 1) -> int:
        """Return the new tokens that prompts leave; RequestError if they are empty or leave fewer than `least`."""
        limit = shared_positions(self._model.config)
        longest = max(map(len, ids))
        room = (request.max_tokens or self._longest) if limit is None else limit - longest
        if room < least or min(map(len, ids)) < 1:
            lengths = " and ".join(str(len(tokens)) for tokens in ids)
            raise RequestError(
                f"the prompt has {lengths} tokens; expected at least 1"
                + (f", and at most {limit - least}: the model has {limit} positions" if limit is not None else ""),
                "messages" if isinstance(request, ChatRequest) else "prompt",
            )
        return room

    def _prompt(self, request: ApiRequest, ids: Sequence[Tokens], base: DecodingConfig, end: int) -> Prompt:
        room = self._room(request, ids)
        sampling = request.sampling(self._model.generation_config)
        try:
            longest = min(request.max_tokens or self._longest, room)
            decoding = replace(base, max_new_tokens=longest, **sampling)
        except UserError as error:
            raise RequestError(error.one_line) from None
        alpha = float(base.alpha) if base.decoder == "d2e" else None
        pair = PromptPair(ids[0], ids[1] if len(ids) > 1 else None, alpha=alpha, name="the request")
        stop_ids = tuple(stop_token_ids(self._model, end))
        return Prompt(pair, decoding, stop_ids, tuple(request.stop))


def _turns(messages: Sequence[dict[str, Any]]) -> Messages:
    """Return messages with texts as their content."""
    turns: Messages = []
    for message in messages:
        content, role = message["content"], message["role"]
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        turns.append({"role": "system" if role == "developer" else role, "content": text})
    return turns
