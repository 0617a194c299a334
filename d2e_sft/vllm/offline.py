"""Debiased decoding of many prompts on a `vllm.LLM`, and log-probabilities of given answers.

vLLM is imported only when an engine is loaded or a request is made.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from d2e_sft.config.decoding import RECORDED, DecodingConfig
from d2e_sft.data.chat_template import merged_stop_ids
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding.generation import sample_pairs
from d2e_sft.decoding.pairs import OptionScore, Output, TokenPair, finished, resolved
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.engine import (
    check_engine,
    check_probe,
    choose_sentinel,
    model_folder,
    require_vllm,
    unregistered_plugin,
)
from d2e_sft.vllm.pairing import RowView, check_decoder
from d2e_sft.vllm.requests import PairProgress, PairRequest, probe_parameters

if TYPE_CHECKING:
    from vllm import LLM

# Options that are used here, or have no effect: greedy decoding draws nothing, and the engine makes its own batches.
_SUPPORTED = frozenset({*RECORDED, "max_new_tokens", "batch_size", "compiled", "seed", "top_k", "top_p"})
# Fruitless submissions in a row after which a pair gets the engine to itself.
_EXCLUSIVE_AFTER = 4
# Prompts whose options are in the engine at once: enough to fill it. Earlier scores survive a kill.
_AT_ONCE = 256


def load_llm(model: str, *, gpu_memory_utilization: float | None = None, **options: Any) -> LLM:
    """Return a vLLM engine that can decode pairs; UserError for a missing model or options that do not allow it.

    `model` is a run folder, another checkpoint, an adapter (merged into its base model in the cache), a Hub name or
    `builtin:…`. `options` are vLLM's, such as `dtype`, `tensor_parallel_size` and `max_model_len`.
    """
    require_vllm()
    from vllm import LLM

    if plugins := [*(options.pop("logits_processors", None) or []), *unregistered_plugin()]:
        options["logits_processors"] = plugins
    if gpu_memory_utilization is not None:
        options["gpu_memory_utilization"] = gpu_memory_utilization
    # Parted pairs go first, while the cache holds their prompts.
    llm = LLM(model=model_folder(model), **{"scheduling_policy": "priority", **options})
    check_engine(llm.llm_engine.vllm_config)
    return llm


def generate(
    llm: LLM,
    pairs: Sequence[TokenPair],
    decoding: DecodingConfig = DecodingConfig(),
    *,
    stop_ids: Sequence[int],
) -> Iterator[Output]:
    """Decode many pairs debiased (PIPER paper, equation 6); yields each complete output as it comes.

    Keep the engine's prefix caching on, as resubmitted pairs read their prompts from the cache. A pair is two
    requests, or one if it is decoded plainly. Tokens in `stop_ids` end an answer and are not part of it.

    Raises:
        UserError: The engine cannot decode pairs, or never computes some pair in one step. A prompt is too long.
            `decoding` has a temperature, stop strings or a custom decoder, which are not supported.
        ValueError: An imagined prompt is missing, or a prompt has no token.
    """
    return RequestBatch(llm, requests_of(llm, pairs, decoding, stop_ids)).run()


def requests_of(
    llm: LLM, pairs: Sequence[TokenPair], decoding: DecodingConfig, stop_ids: Sequence[int]
) -> list[PairRequest]:
    """Check pairs against the engine and make their requests; arguments and errors as for `generate`."""
    check_decoder(decoding.decoder)
    for option in fields(decoding):
        value = getattr(decoding, option.name)
        if option.name not in _SUPPORTED and value != option.default:
            raise UserError(
                f"{option.name}={value!r}: debiased decoding in vLLM offline is greedy and stops only at tokens",
                remedy="decode in process (d2e_sft.decoding), or ask a server (d2e serve)",
            )
    pairs, config = resolved(pairs, decoding), llm.llm_engine.vllm_config
    longest = max((len(prompt) for pair in pairs for prompt in (pair.original, pair.imagined or ())), default=0)
    if longest + decoding.max_new_tokens > config.model_config.max_model_len:
        raise UserError(
            f"the longest prompt has {longest} tokens, plus {decoding.max_new_tokens} new ones; expected at most the "
            f"engine's {config.model_config.max_model_len} positions",
            remedy="raise max_model_len if the model allows it, lower max_new_tokens, or shorten the contexts",
        )
    stops, sentinel = tuple(stop_ids), -1
    if any(pair.imagined is not None for pair in pairs):
        check_engine(config)
        sentinel = choose_sentinel(llm.get_tokenizer(), config.model_config.get_vocab_size(), set(stops))
        if not getattr(llm, "_d2e_probed", False):  # one token, once per engine
            from vllm.inputs.engine import tokens_input

            [output] = llm.generate([tokens_input([0])], probe_parameters(sentinel), use_tqdm=False)
            check_probe(list(output.outputs[0].token_ids), sentinel)
            llm._d2e_probed = True
    return [PairRequest(pair, decoding, stops, sentinel) for pair in pairs]


def answer_samples(
    llm: LLM,
    samples: Sequence[EventSample],
    decoding: DecodingConfig = DecodingConfig(),
    *,
    prompt_set: str = "default",
) -> list[str]:
    """Answer samples, decoded debiased, one text per sample, in order; a sample without context is decoded plainly.

    `llm` is from `load_llm`; `prompt_set` is the wording, by name or as a YAML file. Raises UserError as
    `generate`, or if the model has no chat template.
    """
    tokenizer: Any = llm.get_tokenizer()
    encoder = ViewEncoder(tokenizer, load_prompt_set(prompt_set), ("original", "imagined"))
    stop_ids = stop_ids_of(llm, encoder.end_of_turn)
    return [
        output.text for output in finished(generate(llm, sample_pairs(encoder, samples), decoding, stop_ids=stop_ids))
    ]


def stop_ids_of(llm: LLM, end_of_turn: int) -> list[int]:
    """The end-of-turn token and the stop tokens of the model's generation config."""
    config = llm.llm_engine.vllm_config.model_config
    return merged_stop_ids(config.try_get_generation_config().get("eos_token_id"), end_of_turn)


class RequestBatch:
    """Decodes requests on one engine: submits pairs while there is room, and parted ones again."""

    def __init__(self, llm: LLM, requests: Sequence[PairRequest]) -> None:
        self.llm = llm
        self.scheduler = llm.llm_engine.vllm_config.scheduler_config
        self.room = self.scheduler.max_num_seqs  # rows that may be in the engine
        self.progress = [PairProgress(request) for request in requests]
        self.waiting, self.parted = deque(range(len(requests))), deque[int]()
        self.inside: dict[str, tuple[int, RowView]] = {}  # by name of the engine's request

    def run(self) -> Iterator[Output]:
        """Yield each request's complete answer as it comes; the others are aborted if the caller stops."""
        if self.room < 2 and any(progress.paired for progress in self.progress):
            raise UserError(f"max_num_seqs={self.room}: a pair is two sequences", "start the engine with at least 2")
        try:
            while not all(progress.complete for progress in self.progress):
                self._submit()
                for output in self.llm.llm_engine.step():
                    if output.finished and output.request_id in self.inside:
                        yield from self._finished(output)
        finally:
            if self.inside:  # after an error, an interrupt, or where the caller stopped
                self.llm.llm_engine.abort_request(list(self.inside))

    def _submit(self) -> None:
        """Fill the engine, parted pairs first; a pair enters only if both rows have room, or it would part at once."""
        exclusive = any(progress.fruitless >= _EXCLUSIVE_AFTER and not progress.complete for progress in self.progress)
        while len(self.inside) + 2 <= self.room or not self.inside:
            if exclusive and self.inside:
                return
            queue = self.parted if self.parted or exclusive else self.waiting
            if not queue:
                return
            self._submit_one(queue.popleft())

    def _submit_one(self, index: int) -> None:
        progress, engine = self.progress[index], self.llm.llm_engine
        rows = progress.submission(stream=False)
        resubmitted = progress.submissions > 1
        priority = -1 if resubmitted and self.scheduler.policy == "priority" else 0
        idle = progress.paired and not self.inside
        if idle:  # or the engine could compute the first row before it gets the second
            self.llm.sleep(level=0, mode="keep")
        try:
            for view, prompt, parameters in rows:
                name = f"d2e-{uuid.uuid4().hex}"
                self.inside[name] = (index, view)
                engine.add_request(name, prompt, parameters, priority=priority)
        finally:
            if idle:
                self.llm.wake_up(tags=["scheduling"])

    def _finished(self, output: Any) -> Iterator[Output]:
        index, view = self.inside.pop(output.request_id)
        progress = self.progress[index]
        progress.report(view, list(output.outputs[0].token_ids), ended=True)
        if progress.complete:
            self.room = min(self.room + 1, self.scheduler.max_num_seqs)
            resubmissions = progress.submissions - 1
            yield Output(index, self.llm.get_tokenizer(), progress.answer, ended=True, resubmissions=resubmissions)
        elif progress.outcome == "decoupled":
            if self.inside:
                self.parted.append(index)
            else:
                # It ran while no other did, and is in the cache, from which another parted pair would remove it.
                self.parted.appendleft(index)
            if not progress.fruitless:
                # Parted after some tokens: the requests inside fill the cache, and more would only part.
                self.room = max(2, len(self.inside))


def score(llm: Any, pairs: Sequence[TokenPair]) -> Iterator[tuple[int, list[OptionScore]]]:
    """Yield the index of each pair and the plain log-probability of its options after its original prompt.

    vLLM reports the log-probability of each prompt token, so each option is sent as the end of a prompt. The plug-in
    does not see the logits of a prompt, so scores are always plain. `llm` comes from `load_llm`.
    """
    from vllm import SamplingParams

    # vLLM requires at least one new token; it is ignored.
    parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1, detokenize=False)
    for start in range(0, len(pairs), _AT_ONCE):
        part = pairs[start : start + _AT_ONCE]
        prompts = [{"prompt_token_ids": [*pair.original, *option]} for pair in part for option in pair.options]
        outputs = iter(llm.generate(prompts, parameters, use_tqdm=False))
        for index, pair in enumerate(part, start):
            yield index, [_score(next(outputs).prompt_logprobs, pair, option) for option in pair.options]


def _score(logprobs: Sequence[Any], pair: TokenPair, option: Sequence[int]) -> OptionScore:
    start = len(pair.original)
    tokens = [logprobs[start + place][option[place]] for place in range(pair.given, len(option))]
    return OptionScore(sum(token.logprob for token in tokens), len(tokens), all(token.rank == 1 for token in tokens))
