"""The plug-in that vLLM loads (entry point `vllm.logits_processors`): pairing behind its two interfaces.

vLLM has two model runners with different interfaces and one list of plug-ins, so one class serves both. It tells them
apart by its arguments: the V1 runner gives a device, Model Runner V2 its request slots. Rows of plain requests stay as
they are.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessor as V1LogitsProcessor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2LogitsProcessor

from d2e_sft.vllm.pairing import BatchRows, PairedRow, SlotRows, check_sampling, debias_rows, read_row


class DebiasLogitsProcessor(V1LogitsProcessor, V2LogitsProcessor):
    """Debiased decoding of the paired requests in a step (see `pairing.py`)."""

    def __init__(self, vllm_config: Any, *state: Any) -> None:
        self._slots = SlotRows(state[0]) if len(state) == 1 else None  # Model Runner V2
        self._batch = BatchRows()  # the V1 runner

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise ValueError (the server answers 400) for a malformed `d2e` entry, or options that do not fit it."""
        row = read_row(sampling_params.extra_args)
        if row is None:
            return
        check_sampling(sampling_params, row=True)
        if row.sentinel not in (sampling_params.stop_token_ids or ()):
            raise ValueError(f"stop_token_ids: missing the sentinel {row.sentinel} of extra_args['d2e']")

    def is_argmax_invariant(self) -> bool:
        """False: the most probable token changes."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """V1 runner: requests came, went or moved in the batch."""
        if batch_update is not None:
            added = [(i, _row(parameters), outputs) for i, parameters, _, outputs in batch_update.added]
            self._batch.update(batch_update.removed, added, batch_update.moved)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Model Runner V2: a request takes a slot."""
        assert self._slots is not None
        return self._slots.add(req_idx, _row(sampling_params))

    def apply(self, logits: Tensor, ctx: Any = None) -> Tensor:
        """Debias the step's pairs in place; `ctx` is Model Runner V2's layout of the step."""
        rows = self._batch.in_batch() if self._slots is None else self._slots.in_batch(ctx, len(logits))
        return debias_rows(logits, rows)


def _row(parameters: SamplingParams | None) -> PairedRow | None:
    return None if parameters is None else read_row(parameters.extra_args)
