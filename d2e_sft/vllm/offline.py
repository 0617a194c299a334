"""Debiased decoding of many prompts on a `vllm.LLM`."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from d2e_sft.config.decoding import RECORDED, DecodingConfig
from d2e_sft.data.chat_template import merged_stop_ids
from d2e_sft.data.sample import EventSample
from d2e_sft.decoding.generate import decoding_of_pairs
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.engine import (
    check_engine,
    check_probe,
    choose_sentinel,
    model_folder,
    probe_row,
    require_vllm,
    unregistered_plugin,
)
from d2e_sft.vllm.pairing import Draw, check_decoder
from d2e_sft.vllm.requests import MAX_FRUITLESS_SUBMISSIONS, PairProgress, PairRequest, plain_parameters

require_vllm()

from vllm import LLM  # noqa: E402
from vllm.inputs.engine import tokens_input  # noqa: E402

# Submissions in a row without a token after which a pair gets the engine to itself.
_ALONE_AFTER = 4
# Read here, or without an effect: greedy decoding draws nothing, and the engine makes its own batches.
_HANDLED = frozenset({*RECORDED, "max_new_tokens", "batch_size", "compiled", "seed", "top_k", "top_p"})


def load_llm(
    model: str,
    *,
    dtype: str = "auto",
    tensor_parallel_size: int = 1,
    max_model_len: int | None = None,
    gpu_memory_utilization: float | None = None,
    **options: Any,
) -> LLM:
    """A vLLM engine that can decode pairs.

    Args:
        model: a run folder, another checkpoint, an adapter (merged into its base model in the cache), a Hub name or
            `builtin:…`.
        dtype: of the weights; `auto` is what the checkpoint holds.
        tensor_parallel_size: devices that share the model.
        max_model_len: longest prompt and answer, in tokens; None: the model's own.
        gpu_memory_utilization: share of the device's memory; None: vLLM's default.
        **options: vLLM's other engine options.

    Raises:
        UserError: no such model, or options that cannot decode pairs.
    """
    if plugins := [*(options.pop("logits_processors", None) or []), *unregistered_plugin()]:
        options["logits_processors"] = plugins
    if gpu_memory_utilization is not None:
        options["gpu_memory_utilization"] = gpu_memory_utilization
    options.setdefault("scheduling_policy", "priority")  # parted pairs first, while the cache holds their prompts
    llm = LLM(
        model=model_folder(model),
        dtype=dtype,
        tensor_parallel_size=tensor_parallel_size,
        max_model_len=max_model_len,
        **options,
    )
    check_engine(llm.llm_engine.vllm_config)
    return llm


def generate_debiased(
    llm: LLM,
    originals: Sequence[Sequence[int]],
    imagined: Sequence[Sequence[int]] | None = None,
    decoding: DecodingConfig = DecodingConfig(),
    *,
    stop_ids: Sequence[int],
    alpha: Sequence[float] | None = None,
    on_finished: Callable[[int, list[int]], object] = lambda index, tokens: None,
    on_resubmission: Callable[[int], object] = lambda index: None,
    sentinel: int | None = None,
    draws: Sequence[Draw] | None = None,
) -> list[list[int]]:
    """Debiased decoding of many pairs at once (PIPER paper, section 3.3).

    Args:
        llm: an engine; prefix caching should be on, since resubmitted pairs read their prompts from the cache.
        originals: token ids of each original prompt.
        imagined: token ids of each prompt without context; needed unless all are decoded plainly. A pair whose
            prompts are equal, or that is decoded plainly, is one plain request.
        decoding: the decoder, `max_new_tokens` and plausibility; how many prompts go together is vLLM's affair.
        stop_ids: tokens that end an answer; they are not part of the result.
        alpha: the debias ratio of each pair, of the decoder `d2e`; None: that of `decoding`.
        on_finished: called with index and new tokens as each answer is complete.
        on_resubmission: called with a pair's index each time that it is submitted again.
        sentinel: the token that ends a row that is alone; None: one that no answer holds.
        draws: how to sample each pair; None: greedy. Plain requests stay greedy.

    Returns:
        the new token ids of each prompt, in order.

    Raises:
        UserError: the engine cannot decode pairs, a prompt is too long for it, it never computes some pair in one
            step, or `decoding` samples, has stop strings or a decoder of one's own, which is not done here.
        ValueError: a missing imagined prompt, or lists of different lengths.
    """
    _refuse_what_pairs_cannot(decoding)
    of_pairs = decoding_of_pairs(originals, imagined, decoding, alpha)
    paired = [i for i, each in enumerate(of_pairs) if each.needs_imagined]
    _check_lengths(llm, [*originals, *((imagined or [])[i] for i in paired)], decoding.max_new_tokens)
    if not originals:
        return []
    chosen = -1
    if paired:
        config = llm.llm_engine.vllm_config
        check_engine(config)
        vocab = config.model_config.get_vocab_size()
        chosen = choose_sentinel(llm.get_tokenizer(), vocab, set(stop_ids)) if sentinel is None else sentinel
        _probe(llm, chosen)
    assert imagined is not None or not paired
    requests = {
        i: PairRequest(
            original=originals[i],
            imagined=imagined[i],  # type: ignore[index]
            decoding=of_pairs[i],
            stops=tuple(stop_ids),
            sentinel=chosen,
            draw=None if draws is None else draws[i],
        )
        for i in paired
    }
    batch = PairBatch(llm, originals, requests, decoding, tuple(stop_ids), on_finished, on_resubmission)
    return batch.run()


def answer_samples(
    llm: LLM,
    samples: Sequence[EventSample],
    decoding: DecodingConfig = DecodingConfig(),
    *,
    alpha: Sequence[float] | None = None,
    prompt_set: str = "default",
    sentinel: int | None = None,
) -> list[str]:
    """The text that the model answers to each sample, debiased.

    Args:
        llm: from `load_llm`.
        samples: event-reasoning samples; one without context is decoded plainly.
        alpha: the debias ratio of each sample; None: that of `decoding`.
        prompt_set: wording, by name or as a YAML file.

    Returns:
        one text a sample, in order.

    Raises:
        UserError: as for `generate_debiased`; or the model has no chat template.
    """
    from d2e_sft.data.prompts import load_prompt_set
    from d2e_sft.data.views import ViewEncoder

    tokenizer: Any = llm.get_tokenizer()
    encoder = ViewEncoder(tokenizer, load_prompt_set(prompt_set), ("original", "imagined"))
    answers = generate_debiased(
        llm,
        [encoder.prompt_ids(sample, "original") for sample in samples],
        [encoder.prompt_ids(sample, "imagined") for sample in samples],
        decoding,
        stop_ids=stop_ids_of(llm, encoder.end_of_turn),
        alpha=alpha,
        sentinel=sentinel,
    )
    return [tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]


def stop_ids_of(llm: LLM, end_of_turn: int) -> list[int]:
    """The end-of-turn token and whatever else the model's generation config stops at."""
    config = llm.llm_engine.vllm_config.model_config
    return merged_stop_ids(config.try_get_generation_config().get("eos_token_id"), end_of_turn)


def _refuse_what_pairs_cannot(decoding: DecodingConfig) -> None:
    """An option that is not read here must not be passed over in silence."""
    check_decoder(decoding.decoder)
    for option in fields(decoding):
        value = getattr(decoding, option.name)
        if option.name not in _HANDLED and value != option.default:
            raise UserError(
                f"{option.name}={value!r}: debiased decoding in vLLM offline is greedy and stops at tokens alone",
                remedy="decode in process (d2e_sft.decoding), or ask a server (d2e serve)",
            )


def _check_lengths(llm: LLM, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
    limit = llm.llm_engine.vllm_config.model_config.max_model_len
    lengths = [len(prompt) for prompt in prompts]
    if lengths and min(lengths) == 0:
        raise UserError("an empty prompt; expected at least one token")
    over = [length for length in lengths if length + new_tokens > limit]
    if over:
        raise UserError(
            f"{len(over)} of {len(lengths)} prompts exceed the engine's {limit} positions (the longest has "
            f"{max(over)} tokens, plus {new_tokens} new ones)",
            remedy="raise max_model_len where the model allows it, lower max_new_tokens, or shorten the contexts",
        )


def _probe(llm: LLM, sentinel: int) -> None:
    """One token, once an engine: does it run the plug-in?"""
    if getattr(llm, "_d2e_probed", False):
        return
    parameters = plain_parameters(1, [sentinel])
    parameters.extra_args = probe_row(sentinel).as_extra_args()
    name = f"d2e-probe-{uuid.uuid4().hex}"
    llm.llm_engine.add_request(name, tokens_input([0]), parameters)
    while True:
        for output in llm.llm_engine.step():
            if output.request_id == name and output.finished:
                check_probe(list(output.outputs[0].token_ids), sentinel)
                llm._d2e_probed = True
                return


@dataclass
class PairBatch:
    """One call of `generate_debiased`: which prompts wait, which are in the engine, what they have answered.

    Prompts are submitted while there is room; a pair whose rows parted is submitted again.

    Attributes:
        requests: the pairs among the prompts, by index; the others are plain requests.
        decoding: the answers' length is read; of a pair its own request says how.
    """

    llm: LLM
    originals: Sequence[Sequence[int]]
    requests: dict[int, PairRequest]
    decoding: DecodingConfig
    stops: tuple[int, ...]
    on_finished: Callable[[int, list[int]], object]
    on_resubmission: Callable[[int], object]
    progress: dict[int, PairProgress] = field(default_factory=dict)
    inside: dict[str, tuple[int, Any]] = field(default_factory=dict)
    answers: dict[int, list[int]] = field(default_factory=dict)
    parted: deque[int] = field(default_factory=deque)
    room: int = 0

    def run(self) -> list[list[int]]:
        """Decode everything.

        Returns:
            the new tokens of each prompt, in order.

        Raises:
            UserError: the engine never computes some pair in one step.
        """
        waiting = deque(range(len(self.originals)))
        self.progress = {i: request.progress() for i, request in self.requests.items()}
        rows = self.llm.llm_engine.vllm_config.scheduler_config.max_num_seqs
        if rows < 2 and self.requests:
            raise UserError(f"max_num_seqs={rows}: a pair is two sequences", remedy="start the engine with at least 2")
        self.room = rows
        try:
            while len(self.answers) < len(self.originals):
                self._submit(waiting)
                for output in self.llm.llm_engine.step():
                    if output.finished:
                        self._finished(output)
        finally:
            if self.inside:  # an error or an interrupt: nothing of this call stays in the engine
                self.llm.llm_engine.abort_request(list(self.inside))
        return [self.answers[i] for i in range(len(self.originals))]

    def _submit(self, waiting: deque[int]) -> None:
        """Fill the engine's rows, parted pairs first: a pair of which one row had to queue would part at once."""
        unfinished = (progress for progress in self.progress.values() if not progress.complete)
        exclusive = any(progress.fruitless >= _ALONE_AFTER for progress in unfinished)
        while len(self.inside) + 2 <= self.room or not self.inside:
            if exclusive and self.inside:
                return
            if self.parted:
                self._submit_pair(self.parted.popleft())
            elif waiting and not exclusive:
                index = waiting.popleft()
                if index in self.requests:
                    self._submit_pair(index)
                else:
                    parameters = plain_parameters(self.decoding.max_new_tokens, self.stops)
                    self._add(index, None, self.originals[index], parameters)
            else:
                return

    def _submit_pair(self, index: int) -> None:
        progress = self.progress[index]
        if progress.fruitless >= MAX_FRUITLESS_SUBMISSIONS:
            request = self.requests[index]
            raise UserError(
                f"prompt {index} ({len(request.original)} tokens, {len(request.imagined)} without context): the "
                f"engine computed the pair in different steps {progress.fruitless} times in a row",
                remedy="enable prefix caching, or raise max_num_batched_tokens above the tokens of both prompts",
            )
        rows = self.requests[index].submission(progress, stream=False)
        progress.submit()
        if progress.submissions > 1:
            self.on_resubmission(index)
        for view, prompt, parameters in rows:
            self._add(index, view, prompt["prompt_token_ids"], parameters)

    def _add(self, index: int, view: Any, tokens: Sequence[int], parameters: Any) -> None:
        name = f"d2e-{uuid.uuid4().hex}"
        self.inside[name] = (index, view)
        engine = self.llm.llm_engine
        again = index in self.progress and self.progress[index].submissions > 1
        first = again and engine.vllm_config.scheduler_config.policy == "priority"
        engine.add_request(name, tokens_input(list(tokens)), parameters, priority=-1 if first else 0)

    def _finished(self, output: Any) -> None:
        known = self.inside.pop(output.request_id, None)
        if known is None:
            return
        index, view = known
        tokens = list(output.outputs[0].token_ids)
        if view is None:
            self._complete(index, [token for token in tokens if token not in self.stops])
            return
        progress = self.progress[index]
        progress.report(view, tokens, ended=True)
        if progress.complete:
            self._complete(index, progress.answer)
        elif progress.outcome == "decoupled":
            self.parted.append(index)
            if not progress.fruitless:
                # Parted after it had begun: the cache is full. What is inside already fills it; more would only part.
                self.room = max(2, len(self.inside))

    def _complete(self, index: int, answer: list[int]) -> None:
        if index not in self.answers:
            self.answers[index] = answer
            self.room = min(self.room + 1, self.llm.llm_engine.vllm_config.scheduler_config.max_num_seqs)
            self.on_finished(index, answer)
