"""DDP, ZeRO-2 and ZeRO-3: two processes under `accelerate launch` train as one process does, in float32."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from d2e_sft.model.loading import load_model
from tests.d2e_sft.distributed.trainings import (
    LORA,
    TERMS,
    WEIGHT_ATOL,
    Trained,
    assert_same_weights,
    assert_trained_alike,
    one_process,
    others,
    two_processes,
)

# ZeRO-3 leaves parameters of up to 100,000 numbers (DeepSpeed's default) whole on every process once it has gathered
# them: the model needs some that are larger, here embedding and head, whose size costs no time.
KEPT_WHOLE = 100_000
UNDER_ZERO3 = ("refined-only", "prefer-orpo")
RAN_UNDER = ("distributed_type", "engine", "zero_stage")


@pytest.fixture(scope="module")
def ddp(world: Path) -> dict[str, Trained]:
    names = ("teacher", "prefer", "balanced")
    return two_processes(world, "ddp", {"ddp": []} | {f"ddp-{name}": others(world, name) for name in names})


@pytest.fixture(scope="module")
def zero3(world: Path) -> dict[str, Trained]:
    """With a checkpoint of the first after step 3, from which the second continues; the last has DeepSpeed's file."""
    stage = {"stage": 3, "stage3_gather_16bit_weights_on_model_save": False}
    sizes = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu"), "auto")
    (world / "deepspeed.json").write_text(json.dumps({"zero_optimization": stage, **sizes}))
    trainings = {
        "zero3": ["train.save_steps=3"],
        "zero3-resumed": ["train.save_steps=3", f"--resume={world / 'zero3' / 'checkpoint-3'}"],
        "zero3-by-tokens": ["train.micro_batch_tokens=700"],
        **{f"zero3-{name}": others(world, name) for name in UNDER_ZERO3},
        "zero3-lora": LORA,
        "zero3-script": [f"--deepspeed={world / 'deepspeed.json'}"],
    }
    return two_processes(world, "zero3", trainings)


def test_ddp_trains_as_one_process(ddp: dict[str, Trained], one: Path) -> None:
    run, records = ddp["ddp"]
    for record in records:
        assert (record["distributed_type"], record["engine"]) == ("MULTI_CPU", "DistributedDataParallel")
    assert_trained_alike(records, run, one)


def test_micro_batches_by_tokens_train_as_one_process_by_samples(zero3: dict[str, Trained], one: Path) -> None:
    # Shuffled as ever, so steps have the samples that they have without; ZeRO-3 hangs where forwards differ in number.
    run, records = zero3["zero3-by-tokens"]
    assert_trained_alike(records, run, one)


@pytest.mark.parametrize(
    ("launcher", "objective"),
    [
        *(("ddp", name) for name in ("teacher", "prefer", "balanced")),
        *(("zero3", name) for name in UNDER_ZERO3),
    ],
)
def test_other_objectives_train_as_on_one_process(
    request: pytest.FixtureRequest, world: Path, launcher: str, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("D2E_CACHE", str(world / "cache-of-one"))
    alone = one_process(world, world / f"{objective}-alone", *others(world, objective))
    run, records = request.getfixturevalue(launcher)[f"{launcher}-{objective}"]
    assert_trained_alike(records, run, alone, TERMS[objective])


def test_zero2_trains_as_one_process_and_parts_the_optimizer(world: Path, one: Path) -> None:
    run, records = two_processes(world, "zero2", {"zero2": []})["zero2"]
    for record in records:
        assert [record[name] for name in RAN_UNDER] == ["DEEPSPEED", "DeepSpeedEngine", 2]
        # Shares are padded to whole alignment units, by a few numbers.
        assert record["trained"] / 2 <= record["optimizer_share"] <= record["trained"] / 2 + 64
    assert_trained_alike(records, run, one)


def test_zero3_trains_as_one_process_and_parts_the_parameters(one: Path, zero3: dict[str, Trained]) -> None:
    run, records = zero3["zero3"]
    for record in records:
        assert [record[name] for name in RAN_UNDER] == ["DEEPSPEED", "DeepSpeedEngine", 3]
        assert record["optimizer_share"] == sum(p["share"] for p in record["parameters"].values())
        assert sum(p["whole"] for p in record["parameters"].values()) == record["trained"]
        large = [name for name, p in record["parameters"].items() if p["whole"] > KEPT_WHOLE]
        assert len(large) == 2, "the embedding and the head"
        for name, p in record["parameters"].items():
            assert p["share"] == -(-p["whole"] // 2), name
            if name in large:
                assert p["held"] == 0, f"{name} lies whole on a process between steps"
    assert_trained_alike(records, run, one)


def test_a_script_with_deepspeeds_own_file_trains_as_one_process(one: Path, zero3: dict[str, Trained]) -> None:
    run, records = zero3["zero3-script"]
    for record in records:
        assert [record[name] for name in RAN_UNDER] == ["DEEPSPEED", "DeepSpeedEngine", 3]
    assert_trained_alike(records, run, one)


def test_a_model_saved_under_zero3_is_whole_and_loads(zero3: dict[str, Trained], one: Path) -> None:
    run = zero3["zero3"][0]
    for folder in (run, run / "checkpoint-6"):
        loaded = dict(load_model(str(folder)).model.named_parameters())
        for name, parameter in load_model(str(one)).model.named_parameters():
            torch.testing.assert_close(loaded[name], parameter, rtol=0, atol=WEIGHT_ATOL)


def test_resuming_under_zero3_ends_as_the_whole_training(one: Path, zero3: dict[str, Trained]) -> None:
    run, records = zero3["zero3-resumed"]
    assert_trained_alike(records, run, one)


def test_an_adapter_saved_under_zero3_is_whole(world: Path, zero3: dict[str, Trained]) -> None:
    one = one_process(world, world / "one-lora", *LORA)
    run, records = zero3["zero3-lora"]
    for record in records:
        assert record["zero_stage"] == 3
        assert record["trained"] == sum(t.numel() for t in load_file(one / "adapter_model.safetensors").values())
    assert_same_weights(run / "adapter_model.safetensors", one / "adapter_model.safetensors")
    assert any(t.abs().max() > 0 for n, t in load_file(run / "adapter_model.safetensors").items() if "lora_B" in n)
    assert not (run / "model.safetensors").exists()
    load_model(str(run))
