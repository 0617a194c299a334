"""A transformers model on this machine, decoding greedily in batches of similar length."""

from collections.abc import Callable, Generator, Sequence
from functools import cached_property
from typing import Any

from d2e_sft.judge.judge import JudgePrompt, Reply, Usage
from d2e_sft.judge.options import JudgeOptions
from d2e_sft.model.loading import position_limit
from d2e_sft.util.errors import UserError


class LocalBackend:
    """Answers, as `OpenAIBackend` does, with a model that `load_model` can load; it is loaded for the first prompt."""

    counts_tokens = True

    def __init__(self, options: JudgeOptions) -> None:
        assert options.model is not None
        self.model = options.model
        self._options = options

    @cached_property
    def identity(self) -> dict[str, Any]:
        from d2e_sft.model.storage.folder import model_identity

        return {
            "backend": "local",
            "model": model_identity(self.model),
            "dtype": self._options.dtype,
            "max_tokens": self._options.max_tokens,
        }

    def prompt_tokens(self, prompt: JudgePrompt) -> int:
        return len(self._encode(prompt))

    def answers(
        self, prompts: Sequence[JudgePrompt], usage: Usage, keep: Callable[[JudgePrompt, Reply], None]
    ) -> Generator[tuple[int, Reply | None]]:
        from d2e_sft.data.chat_template import end_of_turn_id
        from d2e_sft.decoding import DecodingConfig, PromptPair, generate, stop_token_ids

        model, tokenizer = self._loaded.model, self._loaded.tokenizer
        encoded = [self._encode(prompt) for prompt in prompts]
        limit, longest = position_limit(model.config), max(range(len(prompts)), key=lambda i: len(encoded[i]))
        if limit is not None and len(encoded[longest]) + self._options.max_tokens > limit:
            raise UserError(
                f"model {self.model!r}: the prompt for {prompts[longest].label or 'a sample'} has "
                f"{len(encoded[longest]):,} tokens and its reply may have {self._options.max_tokens:,}; "
                f"expected at most {limit:,} together",
                remedy="use a model with a longer context, or for a judge lower --judge-max-tokens",
            )
        decoding = DecodingConfig(
            alpha=0.0, max_new_tokens=self._options.max_tokens, batch_size=self._options.concurrency
        )
        stop_ids = stop_token_ids(model, end_of_turn_id(tokenizer))
        pairs = [PromptPair(tokens, name=prompt.label) for tokens, prompt in zip(encoded, prompts, strict=True)]
        for output in generate(model, tokenizer, pairs, decoding, stop_ids=stop_ids):
            if output.ended:
                reply = Reply(
                    text=output.text,
                    prompt_tokens=len(encoded[output.index]),
                    completion_tokens=len(output.tokens),
                    cut_off=len(output.tokens) >= self._options.max_tokens,
                )
                keep(prompts[output.index], reply)
                yield output.index, reply

    @cached_property
    def _loaded(self) -> Any:
        from d2e_sft.model.device import usable_device
        from d2e_sft.model.layers import ready_to_decode
        from d2e_sft.model.loading import load_model

        loaded = load_model(self.model, dtype=self._options.dtype)
        if not getattr(loaded.tokenizer, "chat_template", None):
            raise UserError(
                f"model {self.model!r}: its tokenizer has no chat template; expected an instruction-tuned model",
                remedy="use the model's -Instruct or -Chat variant",
            )
        ready_to_decode(loaded.model, usable_device())
        return loaded

    def _encode(self, prompt: JudgePrompt) -> list[int]:
        from d2e_sft.data.chat_template import rendered

        tokenizer = self._loaded.tokenizer
        # The template writes the BOS token itself if the model needs one.
        text = rendered(tokenizer, prompt.messages, add_generation_prompt=True)
        return tokenizer(text, add_special_tokens=False)["input_ids"]
