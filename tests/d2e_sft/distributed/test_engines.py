"""DDP, FSDP2, ZeRO-2 and ZeRO-3: two processes under `accelerate launch` train as one process does.

Equal numbers alone would hide a wrong set-up (two runs of one process, DDP in place of DeepSpeed), so what each
process ran under is asserted as well. Everything is float32 on the CPU, over gloo.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from d2e_sft.config.recipe import load_recipe
from d2e_sft.data.sample import write_samples
from d2e_sft.model.loading import load_model
from d2e_sft.train.run import train_recipe
from d2e_sft.util.paths import bundled
from tests.command import launch
from tests.factories import log_history, write_recipe
from tests.tiny import VOCAB_SIZE, make_sample, tiny_model, tiny_tokenizer

# ZeRO-3 leaves parameters of up to 100,000 numbers (DeepSpeed's default) whole on every process once it has gathered
# them: the model needs some that are larger, here embedding and head, whose size costs no time.
KEPT_WHOLE = 100_000
# 20 samples: a process's five micro-batches make optimiser steps of two, two and one. Five held-out ones: three
# batches, of which one process has one only.
KEYS = ("max_steps=6", "batch_size=8", "learning_rate=1e-3", "sample_predictions=2")
STEPS = 6
Trained = tuple[Path, list[dict[str, Any]]]
"""A run folder, and what each process recorded."""
# `frozen` keeps states of each row before training, `product` is told which tokens the response form fixes. `reweight`
# weighs answers by a run on questions only; `reweight-self` is that run, whose own imagined view knows the answers.
OTHERS = {
    "reweight": ["d2e.objective=reweight", "d2e.bias_model={world}/expert"],
    "reweight-self": ["d2e.objective=reweight", "model.name={world}/expert", "train.micro_batch_tokens=700"],
    "frozen": ["d2e.bias_model=base"],
    "product": ["d2e.objective=product", "d2e.imagined_weight=0.5"],
    "product-plain": ["d2e.objective=product"],
    # The refined view of every third sample is the original one, so that some micro-batches have no other view.
    "refined-only": [
        *("d2e.debias=false", "d2e.view_gradients=original", "train.packing=batched"),
        "train.per_device_train_batch_size=1",
    ],
    # The reference's log-probabilities are shared among the processes, and steps differ in their pairs.
    "prefer": ["d2e.objective=prefer", "d2e.sft_weight=0.5"],
    "prefer-orpo": ["d2e.objective=prefer", "d2e.prefer_form=orpo", "train.micro_batch_tokens=700"],
    # The other views run in a forward of their own, without gradient, through the same final norm.
    "original-gradient": ["d2e.view_gradients=original"],
    "tied": ["model.name={world}/tied"],
}
UNDER_FSDP2 = ("original-gradient", "prefer-orpo", "tied")
UNDER_ZERO3 = ("product-plain", "refined-only", "prefer-orpo", "reweight-self")
TERMS = {
    "prefer": ("ce", "preference"),
    "prefer-orpo": ("ce", "preference"),
    "reweight": ("ce",),
    "reweight-self": ("ce",),
    "frozen": ("ce", "kl"),
    "product": ("ce", "imagined_ce"),
    "product-plain": ("ce",),
    "refined-only": ("ce", "kl"),
    "original-gradient": ("ce", "kl"),
    "tied": ("ce", "kl"),
}
LORA = ["model.lora.r=4", "model.lora.target_modules=[q_proj, down_proj]"]
# Seen: 2e-7 of a loss, 1e-7 of a weight (2e-6 of an adapter's): the order of a sum decides its rounding. A wrong
# divisor or a lost sample would show as a percent of the loss. Adam's step is the learning rate (1e-3) whatever the
# gradient's size, so where a gradient is almost zero, rounding moves a weight by a part of it: a hundredth is allowed.
LOSS_RTOL = 1e-5
RAN_UNDER = ("distributed_type", "engine", "zero_stage")
WEIGHT_ATOL = 1e-5


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, 20 samples and a recipe."""
    folder = tmp_path_factory.mktemp("world")
    config = tiny_model().config.to_dict()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**config, "vocab_size": 3200}))
    with torch.no_grad():  # as in tiny_model: an almost uniform model has no divergence between its views to speak of
        for parameter in model.parameters():
            parameter.mul_(8 if parameter.dim() > 1 else 1)
        model.lm_head.weight[VOCAB_SIZE:] = 0  # so that answers are of the tokenizer's words
    model.save_pretrained(folder / "model")
    tiny_model("qwen2").save_pretrained(folder / "tied")
    for name in ("model", "tied"):
        tiny_tokenizer().save_pretrained(folder / name)
    rejected = {number: ["a fish" + " or two" * (number % 3)] for number in range(25) if number % 3}
    samples = [make_sample(number, rejected=rejected.get(number, [])) for number in range(25)]
    write_samples(samples[:20], folder / "train.jsonl")
    write_samples([sample.model_copy(update={"split": "dev"}) for sample in samples[20:]], folder / "dev.jsonl")
    rows = f"data.dev={folder}/dev.jsonl"
    write_recipe(folder, folder / "recipe", rows, "eval.max_new_tokens=4", *(f"train.{key}" for key in KEYS))
    questions_only = ("d2e.objective=sft", "data.without_context=true", "data.dev=null", "train.max_steps=40")
    one_process(folder, folder / "expert", *questions_only, "train.learning_rate=1e-2")
    return folder


def others(world: Path, objective: str) -> list[str]:
    """The overrides of one of `OTHERS`."""
    return [override.format(world=world) for override in OTHERS[objective]]


def one_process(world: Path, run: Path, *overrides: str) -> Path:
    """The run folder of a training on one process, which is this one."""
    train_recipe(load_recipe(str(world / "recipe.yaml"), [f"train.output_dir={run}", *overrides]))
    return run


def two_processes(
    world: Path, launcher: str, trainings: dict[str, list[str]], *, gpus: bool = False
) -> dict[str, Trained]:
    """Train on two processes, one training after the other.

    Args:
        trainings: folder in `world` → overrides, and `--resume=CHECKPOINT`.
    """
    results = world / f"{launcher}-{next(iter(trainings))}-results"
    results.mkdir()
    runs = {name: world / name for name in trainings}
    arguments = (
        "--config_file", bundled("launch") / "accelerate" / f"{launcher}.yaml",
        "--num_processes", "2", "--main_process_port", "0",
        Path(__file__).with_name("worker.py"), results,
        world / "recipe.yaml",
        *(json.dumps([f"train.output_dir={runs[name]}", *overrides]) for name, overrides in trainings.items()),
    )  # fmt: skip
    if gpus:  # accelerate looks at them, and what has looked at them cannot be forked
        subprocess.run([sys.executable, "-m", "accelerate.commands.launch", *map(str, arguments)], check=True)
    else:
        ended = launch(results, "accelerate.commands.launch:main", *arguments)
        assert ended.status == 0, ended.printed[-3000:]
    files = sorted(results.glob("rank-*.json"))
    assert [file.name for file in files] == ["rank-0.json", "rank-1.json"]
    by_rank = [json.loads(file.read_text()) for file in files]
    return {name: (run, [records[i] for records in by_rank]) for i, (name, run) in enumerate(runs.items())}


def logs(run: Path, of: str = "loss") -> list[dict[str, Any]]:
    return [entry for entry in log_history(run) if of in entry]


@pytest.fixture(scope="module")
def one(world: Path) -> Path:
    """The run folder of one process."""
    return one_process(world, world / "one")


@pytest.fixture(scope="module", autouse=True)
def _own_cache(world: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("D2E_CACHE", str(world / "cache"))
        yield


@pytest.fixture(scope="module")
def ddp(world: Path) -> dict[str, Trained]:
    names = ("frozen", "product", "prefer", "reweight")
    return two_processes(world, "ddp", {"ddp": []} | {f"ddp-{name}": others(world, name) for name in names})


@pytest.fixture(scope="module")
def zero3(world: Path) -> dict[str, Trained]:
    """With a checkpoint of the first after step 3, from which the second continues."""
    trainings = {
        "zero3": ["train.save_steps=3"],
        "zero3-resumed": ["train.save_steps=3", f"--resume={world / 'zero3' / 'checkpoint-3'}"],
        "zero3-by-tokens": ["train.micro_batch_tokens=700"],
        **{f"zero3-{name}": others(world, name) for name in UNDER_ZERO3},
        "zero3-lora": LORA,
    }
    return two_processes(world, "zero3", trainings)


@pytest.fixture(scope="module")
def fsdp2(world: Path) -> dict[str, Trained]:
    """With a checkpoint of the first after step 3, from which the second continues."""
    trainings = {
        "fsdp2": ["train.save_steps=3"],
        "fsdp2-resumed": ["train.save_steps=3", f"--resume={world / 'fsdp2' / 'checkpoint-3'}"],
        **{f"fsdp2-{name}": others(world, name) for name in UNDER_FSDP2},
    }
    return two_processes(world, "fsdp2", trainings)


def assert_trained_alike(
    records: list[dict[str, Any]], run: Path, one: Path, terms: tuple[str, ...] = ("ce", "kl")
) -> None:
    """Each step, the weights, and after each epoch: each held-out row counted once, and the same text decoded."""
    assert len(logs(one)) == STEPS
    for record in records:
        assert (record["world_size"], record["backend"]) == (2, "gloo")
        shares = tuple({"kl_rows", "sample_weight"} & logs(one)[0].keys())
        assert_same_values(record["logs"], logs(one), ("grad_norm", "debiased_accuracy", *shares), terms)
    assert_same_weights(run / "model.safetensors", one / "model.safetensors")
    assert [entry["step"] for entry in logs(one, "eval_loss")] == [3, 6]
    shares = ("eval_debiased_accuracy", "eval_plain_accuracy")
    shares += tuple({"eval_bias_share", "eval_kl_rows"} & logs(one, "eval_loss")[0].keys())
    evaluated = tuple(f"eval_{term}" for term in terms)
    assert_same_values(logs(run, "eval_loss"), logs(one, "eval_loss"), shares, evaluated, "eval_loss")
    texts = [(folder / "held_out_predictions.jsonl").read_text() for folder in (run, one)]
    assert len(texts[0].splitlines()) == 4
    assert texts[0] == texts[1]


def assert_same_values(
    ours: list[dict[str, Any]],
    theirs: list[dict[str, Any]],
    values: tuple[str, ...],
    terms: tuple[str, ...],
    loss: str = "loss",
) -> None:
    """Values relative to themselves, terms of the loss, which may be small, relative to it too."""
    for one, other in zip(ours, theirs, strict=True):
        for key in (loss, *values, *terms):
            rounding = LOSS_RTOL * other[loss] if key in terms else 0
            assert one[key] == pytest.approx(other[key], rel=LOSS_RTOL, abs=rounding), (one["step"], key)
            assert key not in terms or other[key] > 1e-4, "each term must be there to be compared"


def assert_same_weights(ours: Path, theirs: Path) -> None:
    found, expected = load_file(ours), load_file(theirs)
    if "lm_head.weight" not in expected and "lm_head.weight" in found:  # FSDP2 gathers a tied head once more
        assert torch.equal(found.pop("lm_head.weight"), found["model.embed_tokens.weight"])
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].shape == tensor.shape, name
        assert found[name].numel() > 0, name
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=WEIGHT_ATOL, msg=lambda m, n=name: f"{n}: {m}")


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
        *(("ddp", name) for name in ("frozen", "product", "prefer", "reweight")),
        *(("zero3", name) for name in UNDER_ZERO3),
    ],
)
def test_other_objectives_train_as_on_one_process(
    request: pytest.FixtureRequest, world: Path, launcher: str, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("D2E_CACHE", str(world / "cache-of-one"))
    alone = one_process(world, world / f"{objective}-alone", *others(world, objective))
    run, records = request.getfixturevalue(launcher)[f"{launcher}-{objective}"]
    if objective.startswith("reweight"):
        assert 0.05 < logs(alone)[0]["sample_weight"] < 0.95, "all answers count about equally"
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


def test_fsdp2_trains_as_one_process_and_parts_every_parameter(one: Path, fsdp2: dict[str, Trained]) -> None:
    run, records = fsdp2["fsdp2"]
    first, second = (record["parameters"] for record in records)
    assert len(first) == len(load_file(one / "model.safetensors"))
    for record in records:
        assert record["distributed_type"] == "FSDP"
        assert record["engine"].startswith("FSDP")
    for name, p in first.items():
        assert p["share"] < p["whole"], name
        assert p["share"] + second[name]["share"] == p["whole"], name
    assert_trained_alike(records, run, one)


@pytest.mark.parametrize("kept", ["", "checkpoint-6"])
def test_a_model_saved_under_fsdp2_is_whole_and_loads(one: Path, fsdp2: dict[str, Trained], kept: str) -> None:
    loaded = dict(load_model(str(fsdp2["fsdp2"][0] / kept)).model.named_parameters())
    for name, parameter in load_model(str(one)).model.named_parameters():
        torch.testing.assert_close(loaded[name], parameter, rtol=0, atol=WEIGHT_ATOL)


def test_resuming_under_fsdp2_ends_as_the_whole_training(one: Path, fsdp2: dict[str, Trained]) -> None:
    run, records = fsdp2["fsdp2-resumed"]
    assert_trained_alike(records, run, one)


@pytest.mark.parametrize("objective", UNDER_FSDP2)
def test_other_steps_train_under_fsdp2_as_on_one_process(
    world: Path, fsdp2: dict[str, Trained], objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("D2E_CACHE", str(world / "cache-of-one"))
    alone = one_process(world, world / f"{objective}-beside-fsdp2", *others(world, objective))
    run, records = fsdp2[f"fsdp2-{objective}"]
    assert_trained_alike(records, run, alone, TERMS[objective])
    load_model(str(run))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_fsdp2_on_two_gpus_shards_and_saves_the_whole_model(world: Path, one: Path) -> None:
    run, records = two_processes(world, "fsdp2", {"fsdp2-gpus": []}, gpus=True)["fsdp2-gpus"]
    for record in records:
        assert record["world_size"] == 2
        assert record["distributed_type"] == "FSDP"
        assert record["engine"].startswith("FSDP")
        for ours, theirs in zip(record["logs"], logs(one), strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3), "GPUs round otherwise than the CPU"
    found, expected = (load_file(folder / "model.safetensors") for folder in (run, one))
    assert {name: t.shape for name, t in found.items()} == {name: t.shape for name, t in expected.items()}
