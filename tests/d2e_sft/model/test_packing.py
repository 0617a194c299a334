"""Packed rows: their layout and length, which models support them, shapes, and what a collator makes."""

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from d2e_sft.bench.train import synthetic_rows
from d2e_sft.config.recipe import D2ESection, View
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.collation import IGNORE, Collator, model_inputs
from d2e_sft.model.forward import enable_checkpointing
from d2e_sft.model.packing import PackedRow, pack
from d2e_sft.model.packing_support import Layout, agree_on_layout, choose_layout, computing_on
from d2e_sft.model.shapes import SHAPES, Work, config_of, random_model
from d2e_sft.objective.attach import AttachedObjective
from d2e_sft.util.distributed import process_state
from tests.command import program
from tests.servers import free_port
from tests.tiny import make_sample, tiny_model, tiny_tokenizer, with_lora


def _random_groups(seed: int) -> list[list[list[int]]]:
    """Three samples of three views, over few tokens, so that chance prefixes and equal sequences occur."""
    source = random.Random(seed)

    def some(low: int, high: int, tokens: int = 30) -> list[int]:
        return [source.randrange(tokens) for _ in range(source.randint(low, high))]

    system = some(0, 12)
    groups = []
    for _ in range(3):
        start = [*system, *some(0, 20)]
        groups.append([[*start, *some(1, 30, tokens=2)] for _ in range(2)] + [[*start, *some(1, 4, tokens=1)]])
    return groups


def _naive_mask(row: PackedRow) -> torch.Tensor:
    mask = torch.zeros(row.forest.length, row.forest.length, dtype=torch.bool)
    for index in row.indices:
        for count, token in enumerate(index, start=1):
            mask[token, index[:count]] = True
    return mask


def _flat(groups: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    return [list(sequence) for group in groups for sequence in group]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("leading", [None, 1])
@pytest.mark.parametrize("one_group", [False, True])
@pytest.mark.parametrize("min_shared", [1, 8])
def test_a_packed_row_holds_each_sequence(seed: int, leading: int | None, one_group: bool, min_shared: int) -> None:
    groups = _random_groups(seed)
    if one_group:
        groups = [_flat(groups)]
    row = pack(groups, leading=leading, min_shared=min_shared)
    for sequence, index in zip(_flat(groups), row.indices, strict=True):
        assert [row.tokens[i] for i in index] == sequence
        assert row.forest.position_ids[index].tolist() == list(range(len(sequence)))
    used = {i for index in row.indices for i in index}
    assert used == set(range(row.forest.length)), "no token is there for nobody"
    assert torch.equal(row.forest.plan(0, row.forest.length).mask(), _naive_mask(row))


@pytest.mark.parametrize("seed", range(10))
def test_blocks_name_each_visible_pair_once(seed: int) -> None:
    row = pack([_flat(_random_groups(seed))], leading=2, min_shared=1)
    lead, length = row.forest.lead, row.forest.length
    expected = _naive_mask(row).int()
    for start, end in ((0, length), (0, lead), (lead, length)):
        plan = row.forest.plan(start, end)
        seen = torch.zeros(plan.length, end, dtype=torch.int)
        for block in plan.blocks:
            shape = (block.q_end - block.q_start, block.k_end - block.k_start)
            part = torch.ones(shape, dtype=torch.int)
            seen[block.q_start : block.q_end, block.k_start : block.k_end] += part.tril() if block.causal else part
        assert torch.equal(seen, expected[start:end, :end])


PREFIX = list(range(10))
TWO_VIEWS = [[*PREFIX, 50], [*PREFIX, 51]]
SHORT = [[1, 2, 3, 4, 5], [1, 2, 3, 6, 7]]


@pytest.mark.parametrize(
    ("groups", "min_shared", "length"),
    [
        ([TWO_VIEWS, TWO_VIEWS], 8, 2 * (10 + 2)),  # prefixes are shared only within a group
        ([[*TWO_VIEWS, *TWO_VIEWS]], 8, 10 + 4),
        ([SHORT], 4, 10),  # a short prefix is not worth a segment
        ([SHORT], 3, 7),
        ([[PREFIX, PREFIX]], 8, 11),  # equal sequences keep their last token apart
    ],
)
def test_the_length_of_a_row(groups: list[list[list[int]]], min_shared: int, length: int) -> None:
    assert pack(groups, min_shared=min_shared).forest.length == length


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


CPU = torch.device("cpu")
# Of the published checkpoints.
PARAMETERS = {
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 4_300_079_472,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b": 7_248_023_552,
    "qwen1.5-7b": 7_721_324_544,
    "llama-2-7b": 6_738_415_616,
    "deepseek-llm-7b": 6_910_365_696,
}


@pytest.mark.parametrize("shape", sorted(name for name in SHAPES if not name.startswith("tiny")))
def test_a_shape_has_as_many_parameters_as_the_published_model(shape: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(shape))
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[shape]


@pytest.mark.parametrize("gradients", ["all", "original"])
@pytest.mark.parametrize("changed", ["adapter", "checkpointing"])
def test_frozen_weights_and_recomputation_are_counted_as_they_are_computed(changed: str, gradients: Any) -> None:
    model, d2e = random_model("tiny", CPU), D2ESection(view_gradients=gradients)
    if changed == "adapter":
        model = with_lora(model)
    batch = Collator("batched", d2e.views, gradients)(synthetic_rows(3, 40, 300))
    objective = AttachedObjective(model, d2e, Layout("batched", "sdpa"))
    if changed == "checkpointing":
        enable_checkpointing(model)
    with FlopCounterMode(display=False) as counted:
        objective.backward(model.train(), model_inputs(batch), "float32", CPU)
    products = sum(n for operator, n in counted.get_flop_counts()["Global"].items() if "mm" in str(operator))
    work = replace(Work.of_batch(batch, gradients), pairs=0, pairs_without_gradient=0)
    assert work.flops(model, recompute=changed == "checkpointing") == pytest.approx(products, rel=0.1)


def test_attention_is_counted_by_the_pairs_that_attend() -> None:
    before = torch.get_rng_state()
    model, again = random_model("tiny", CPU), random_model("tiny", CPU).state_dict()
    assert all(torch.equal(weights, again[name]) for name, weights in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), before), "it draws no number of others"
    pair = Work(0, 0, 1).flops(model)
    assert pair == 3 * 4 * 2 * 4 * 8, "forward and backward, scores and values, layers, heads, width"
    assert Work(0, 0, 0, 0, 1).flops(model) == pair / 3


VIEWS: tuple[View, ...] = ("original", "imagined", "refined")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    encoder = ViewEncoder(tiny_tokenizer(), load_prompt_set("default"), VIEWS)
    encoded = [encoder.encode(make_sample(number)) for number in (1, 2, 4)]  # each view differs from the others
    return [{**item.prompts, "answer": item.answer} for item in encoded]


def _answers(batch: dict[str, Any]) -> list[list[int]]:
    return [line[line != IGNORE].tolist() for line in batch["labels"]]


def test_padded_places_are_masked_by_length_not_by_the_pad_id(rows: list[dict[str, Any]]) -> None:
    # The end-of-turn token as the pad id, as many tokenizers have it: prompts must keep theirs.
    batch = Collator("batched", VIEWS, pad_token_id=rows[0]["answer"][-1])(rows)
    assert batch["input_ids"].shape[0] == 9
    for line, (view, row) in enumerate((view, row) for view in VIEWS for row in rows):
        ids = row[view] + row["answer"][:-1]
        assert batch["attention_mask"][line].sum() == len(ids)
        assert batch["input_ids"][line, -len(ids) :].tolist() == ids
        assert batch["position_ids"][line, -len(ids) :].tolist() == list(range(len(ids)))


def test_answer_tokens_that_are_not_trained_on_are_read_and_not_predicted(rows: list[dict[str, Any]]) -> None:
    marked = [row | {"trained": [k % 3 != 1 for k in range(len(row["answer"]))]} for row in rows]
    for collate in (Collator("shared_batch", VIEWS), Collator("batched", VIEWS, pad_token_id=1)):
        whole, batch = collate(rows), collate(marked)
        assert torch.equal(batch["input_ids"], whole["input_ids"])
        assert _answers(batch) == [[t for k, t in enumerate(row["answer"]) if k % 3 != 1] for row in rows]
        kept = [k % 3 != 1 for row in rows for k in range(len(row["answer"]))]
        assert torch.equal(batch["answer_index"], whole["answer_index"][:, torch.tensor(kept)])
