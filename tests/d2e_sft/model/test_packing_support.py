"""Which layout a model gets: what its architecture says, and what is found by asking the model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.packing_support import agree_on_layout, choose_layout, computing_on
from d2e_sft.util.distributed import process_state
from tests.command import program
from tests.servers import free_port
from tests.tiny import tiny_model


def recurrent(model: Any) -> None:
    plain = model.model.forward

    def smeared(*args: Any, **inputs: Any) -> Any:
        output = plain(*args, **inputs)
        output.last_hidden_state = output.last_hidden_state.cumsum(dim=1)
        return output

    model.model.forward = smeared


def windowed(model: Any) -> None:
    model.config.sliding_window = 40  # which the layer does not pass on, as if only the mask had it


@pytest.mark.parametrize(
    ("change", "attention", "reason"),
    [
        (recurrent, None, "hidden states of packed sequences differ"),
        (windowed, None, "does not pass its sliding window"),
        (lambda model: None, "flash_attention_2", "packed rows (flash-attention has no mask for a tree of branches)"),
    ],
)
def test_a_model_is_batched_if_packing_would_not_be_exact(change: Any, attention: str | None, reason: str) -> None:
    model = tiny_model("llama")
    change(model)
    layout = choose_layout(model, D2ESection(), "auto", attention)
    assert layout.packing == "batched"
    assert reason in layout.describe()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_packed_rows_are_exact_in_one_pass_and_in_two_and_draw_no_random_numbers(dtype: torch.dtype | None) -> None:
    # A resumed run chooses again: its random numbers must go on where they were.
    model = tiny_model("llama")
    state = torch.get_rng_state()
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        assert choose_layout(model, D2ESection()).describe() == "packing: shared_batch; attention: d2e_by_branch"
    assert torch.equal(torch.get_rng_state(), state)


def failing(error: Exception) -> Any:
    """Make a model whose last layer raises the error for packed rows."""
    model = tiny_model("llama")

    def fail(layer: Any, args: Any, options: Any) -> None:
        if options.get("packed") is not None:
            raise error

    model.model.layers[-1].register_forward_pre_hook(fail, with_kwargs=True)
    return model


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: an illegal memory access")]
)
def test_a_device_that_fails_is_no_reason_to_batch(error: Exception) -> None:
    with pytest.raises(type(error)):
        choose_layout(failing(error), D2ESection())
    assert choose_layout(failing(ValueError("no such argument")), D2ESection()).packing == "batched"


def test_a_device_holds_one_layer_at_a_time() -> None:
    model, held = tiny_model("qwen2"), []
    before = dict(model.named_parameters())
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda *_: held.append([one.mlp.up_proj.weight.is_meta for one in layers]))
    layers = model.model.layers
    with computing_on(torch.device("meta"), model), torch.no_grad():
        assert model(torch.ones(1, 3, dtype=torch.long, device="meta")).logits.is_meta
    assert held == [[True, False], [False, True]]
    assert all(parameter is before[name] for name, parameter in model.named_parameters())


def test_processes_choose_the_same_layout(tmp_path: Path) -> None:
    program(tmp_path, f"{__name__}:_in_two_processes", str(tmp_path), PORT=str(free_port()))
    layouts = [(tmp_path / str(rank)).read_text() for rank in range(2)]
    assert layouts[0] == layouts[1]
    assert "hidden states of packed sequences differ" in layouts[0]


def _in_two_processes() -> None:
    """Write the layout that each of two processes chooses; packed rows are inexact in the second."""
    import sys

    for rank in range(2):
        if not os.fork():
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["PORT"]}
            process_state()
            model = tiny_model("llama")
            if rank:
                recurrent(model)
            described = agree_on_layout(model, D2ESection()).describe()
            Path(sys.argv[1], str(rank)).write_text(f"{described} {model.config._attn_implementation}")
            os._exit(0)
    for _ in range(2):
        os.wait()
