"""The plug-in as vLLM finds, builds and calls it, with vLLM's own types; no engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")

from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality, _load_logitsprocs_plugins
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState
from vllm.v1.worker.gpu.sample.logits_processor.loader import _load_v2_logitsprocs_plugins

from d2e_sft.util.errors import UserError
from d2e_sft.vllm.engine import check_engine, check_probe, unregistered_plugin
from d2e_sft.vllm.pairing import PairedRow
from d2e_sft.vllm.processor import DebiasLogitsProcessor

VOCAB, SENTINEL, ALPHA = 11, 10, 0.5


def _parameters(pair: str | None, view: Any = "original") -> SamplingParams:
    extra = None if pair is None else PairedRow(pair, view, ALPHA, SENTINEL).as_extra_args()
    return SamplingParams(temperature=0.0, stop_token_ids=[SENTINEL], extra_args=extra)


def _logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(1))


def test_both_model_runners_find_the_one_class_by_its_entry_point() -> None:
    assert unregistered_plugin() == []
    assert _load_logitsprocs_plugins() == [DebiasLogitsProcessor]
    assert _load_v2_logitsprocs_plugins() == [DebiasLogitsProcessor]


def test_the_v1_runner_s_batch_updates_are_followed() -> None:
    processor = DebiasLogitsProcessor(None, torch.device("cpu"), False)
    assert not processor.is_argmax_invariant()
    outputs: list[list[int]] = [[], [], []]
    added = [
        (0, _parameters("p", "original"), [1], outputs[0]),
        (1, _parameters(None), [1], outputs[1]),
        (2, _parameters("p", "imagined"), [1], outputs[2]),
    ]
    processor.update_state(BatchUpdate(batch_size=3, removed=[], added=added, moved=[]))
    logits = _logits(3)
    expected = logits[0] - ALPHA * logits[2]
    plain = logits[1].clone()
    out = processor.apply(logits)
    torch.testing.assert_close(out[0, :SENTINEL], expected[:SENTINEL])
    assert torch.equal(out[0], out[2])
    assert torch.equal(out[1], plain)
    # The plain request ends and the imagined row moves to its place; then the original is a token ahead.
    processor.update_state(
        BatchUpdate(batch_size=2, removed=[1], added=[], moved=[(2, 1, MoveDirectionality.UNIDIRECTIONAL)])
    )
    out = processor.apply(_logits(2))
    assert torch.equal(out[0], out[1])
    outputs[0].append(-1)
    processor.update_state(None)
    assert processor.apply(_logits(2)).argmax(dim=-1).tolist() == [SENTINEL, SENTINEL]


def test_model_runner_v2_s_slots_are_followed() -> None:
    # Untested on a device: the runner itself needs one. These are its types, on the CPU.
    lengths = SimpleNamespace(np=np.array([4, 9, 6, 0]))
    states = LogitsProcRequestState(
        device=torch.device("cpu"),
        max_num_reqs=4,
        vocab_size=VOCAB,
        all_token_ids=None,  # type: ignore[arg-type]
        prompt_len=lengths,  # type: ignore[arg-type]
        prefill_len=lengths,  # type: ignore[arg-type]
        total_len=None,  # type: ignore[arg-type]
    )
    processor = DebiasLogitsProcessor(None, states)
    assert processor.add_request(1, _parameters("p", "original"))
    assert processor.add_request(0, _parameters("p", "imagined"))
    assert not processor.add_request(2, _parameters(None))
    slots = np.array([2, 1, 0])

    def context(tokens: list[int]) -> LogitsContext:
        mapping = torch.tensor(slots)
        return LogitsContext(mapping, mapping, slots, mapping * 0, mapping * 0, mapping * 0, np.array(tokens))

    logits = _logits(3)
    expected, plain = logits[1] - ALPHA * logits[2], logits[0].clone()
    out = processor.apply(logits, context([8, 11, 6]))
    torch.testing.assert_close(out[1, :SENTINEL], expected[:SENTINEL])
    assert torch.equal(out[1], out[2])
    assert torch.equal(out[0], plain)
    alone = processor.apply(_logits(3), context([8, 8, 6]))  # the original's prompt of 9 is still being read
    assert int(alone[2].argmax()) == SENTINEL


def _config(**changes: Any) -> Any:
    parallel = {"pipeline_parallel_size": 1, "tensor_parallel_size": 1, "enable_batch_sharded_sampling": False}
    given = {key: changes.pop(key) for key in list(changes) if key in parallel}
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**{**parallel, **given}), **{"speculative_config": None, **changes}
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"speculative_config": object()}, "speculative decoding"),
        ({"pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"tensor_parallel_size": 2, "enable_batch_sharded_sampling": True}, "batch-sharded sampling"),
        ({"watermark_config": object()}, "watermarking"),
    ],
)
def test_an_engine_that_would_part_a_pair_is_refused(changes: dict[str, Any], said: str) -> None:
    check_engine(_config(tensor_parallel_size=4))
    with pytest.raises(UserError, match=said):
        check_engine(_config(**changes))


def test_an_engine_without_the_plug_in_is_found_out() -> None:
    check_probe([SENTINEL], SENTINEL)
    with pytest.raises(UserError, match="would decode undebiased"):
        check_probe([3], SENTINEL)
