"""The outputs that the caller of a pair sees; vLLM's own detokeniser makes text and stop strings of their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from vllm import SamplingParams
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from d2e_sft.vllm.pairing import RowView
from d2e_sft.vllm.requests import PairProgress


class PairStream:
    """Turns the tokens that a pair's answer gains into outputs.

    Args:
        tokenizer: the engine's.
        prompt: the original prompt, as an engine input of tokens.
        parameters: output kind, stop strings and special tokens.

    Attributes:
        stopped: the stop string that has ended the answer.
    """

    def __init__(self, tokenizer: Any, request_id: str, prompt: Any, parameters: SamplingParams) -> None:
        self._id = request_id
        self._prompt = prompt
        self._kind = parameters.output_kind
        self._tokens: list[int] = []
        self._unsent: list[int] = []
        self._cached: int | None = None
        self.stopped: str | None = None
        asked = SimpleNamespace(
            request_id=request_id,
            sampling_params=parameters,
            prompt_token_ids=prompt["prompt_token_ids"],
            prompt_embeds=None,
        )
        self._text = IncrementalDetokenizer.from_new_request(tokenizer if parameters.detokenize else None, asked)

    def take(
        self, gained: Sequence[int], progress: PairProgress, output: RequestOutput, view: RowView
    ) -> Iterator[RequestOutput]:
        """Outputs for tokens that the answer has gained, except the last output."""
        if view == "original" and self._cached is None:
            self._cached = output.num_cached_tokens
        for token in gained:
            self._add(token, ended=False)
            if self.stopped:
                return
        if gained and not progress.complete and self._kind != RequestOutputKind.FINAL_ONLY:
            yield self._output(None, None)

    def last(self, progress: PairProgress) -> RequestOutput:
        """The output that ends the stream, with the reason."""
        if self.stopped:
            return self._output("stop", self.stopped)
        if progress.stopped_by is not None:
            self._add(progress.stopped_by, ended=True)
        stop = progress.outcome == "stop"
        return self._output("stop" if stop else "length", progress.stopped_by if stop else None)

    def _add(self, token: int, *, ended: bool) -> None:
        self._tokens.append(token)
        self._unsent.append(token)
        self.stopped = self._text.update([token], ended)

    def _output(self, reason: str | None, stop: int | str | None) -> RequestOutput:
        delta = self._kind == RequestOutputKind.DELTA
        completion = CompletionOutput(
            index=0,
            text=self._text.get_next_output_text(reason is not None, delta),
            token_ids=list(self._unsent if delta else self._tokens),
            cumulative_logprob=None,
            logprobs=None,
            finish_reason=reason,
            stop_reason=stop,
        )
        self._unsent = []
        return RequestOutput(
            request_id=self._id,
            prompt=self._prompt.get("prompt"),
            prompt_token_ids=self._prompt["prompt_token_ids"],
            prompt_logprobs=None,
            outputs=[completion],
            finished=reason is not None,
            num_cached_tokens=self._cached,
        )
