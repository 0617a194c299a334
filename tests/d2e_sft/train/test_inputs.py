"""A training from Python and its adapters are the run of the recipe, and load as they were trained."""

import shutil
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from huggingface_hub import HfApi
from peft import AdaLoraConfig, AutoPeftModelForCausalLM, LoraConfig
from safetensors.torch import load_file
from transformers import modeling_utils

from d2e_sft import D2EConfig, D2ETrainer
from d2e_sft.config.recipe import D2ESection, Recipe, load_recipe
from d2e_sft.data.sample import write_samples
from d2e_sft.model.loading import load_model
from d2e_sft.model.storage.folder import BUILTIN, base_of_adapter
from d2e_sft.model.storage.seal import read_seal
from d2e_sft.train.inputs import refined_by_rule
from d2e_sft.train.prepare import adapter_config, wrapped_in_adapter
from d2e_sft.train.run import train_recipe
from d2e_sft.train.samples import PROBED
from d2e_sft.util.errors import UserError
from tests.d2e_sft.train.test_messages import ROWS, SHORT
from tests.factories import log_history, write_recipe
from tests.hub_server import HubServer, hub  # noqa: F401
from tests.naive import assert_equal_to_naive
from tests.tiny import make_sample, make_samples, save_tiny_model, tiny_model, with_lora


def values(run: Path, name: str) -> list[float]:
    return [entry[name] for entry in log_history(run) if name in entry]


def losses(run: Path) -> list[tuple[float, float, float]]:
    return [(entry["loss"], entry["kl"], entry["grad_norm"]) for entry in log_history(run) if "loss" in entry]


@pytest.mark.parametrize("adapter", [False, True])
def test_a_recipe_and_the_call_from_python_are_the_same_run(world: Path, tmp_path: Path, adapter: bool) -> None:
    lora = {"r": 4, "lora_dropout": 0.1, "use_dora": True} if adapter else None
    given = ["d2e.alpha=0.3", "train.max_steps=2", f"model.lora={lora or 'null'}"]
    recipe = load_recipe(write_recipe(world, tmp_path / "recipe", *given))
    train_recipe(recipe)
    config = LoraConfig(r=4, lora_alpha=32, lora_dropout=0.1, target_modules="all-linear", use_dora=True)
    trainer = D2ETrainer(
        str(world / "model"),
        D2EConfig(str(tmp_path / "python"), alpha=0.3, **SHORT),
        train_dataset=datasets.Dataset.from_list([sample.model_dump() for sample in make_samples(8)]),
        peft_config=config if adapter else None,
    )
    trainer.train()
    trainer.save_model()
    # What Python's run left says the same run once more.
    again = Recipe.model_validate(
        load_recipe(tmp_path / "python" / "recipe.yaml").model_dump()
        | {"train": recipe.train.model_dump() | {"output_dir": str(tmp_path / "again")}}
    )
    train_recipe(again)
    file = "adapter_model.safetensors" if adapter else "model.safetensors"
    expected = load_file(tmp_path / "recipe" / file)
    for run in ("python", "again"):
        assert losses(tmp_path / run) == losses(tmp_path / "recipe")
        found = load_file(tmp_path / run / file)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], weights) for name, weights in expected.items())
    assert again.d2e.alpha == 0.3
    ids = torch.arange(5, 20)[None]
    assert load_model(str(tmp_path / "python")).model(ids).logits.isfinite().all()


def test_a_recipes_adapter_and_choice_of_rows_hold_for_rows_from_python(world: Path, tmp_path: Path) -> None:
    chosen = ("data.max_samples=3", "data.without_context=true", "data.max_dev_samples=2", "data.max_probe_samples=2")
    of_files = (*chosen, f"data.dev={world}/train.jsonl", f"data.probe={tmp_path}/probe.jsonl")
    probe = [make_sample(i, id=f"{i}{subset}", subset=subset) for i in range(4) for subset in PROBED]
    write_samples(probe, tmp_path / "probe.jsonl")
    file = write_recipe(world, tmp_path / "recipe", *of_files, "d2e.objective=sft", "model.lora={r: 4}")
    train_recipe(load_recipe(file))
    trainer = D2ETrainer(
        str(world / "model"),
        D2EConfig.from_recipe(file, [f"train.output_dir={tmp_path}/python"]),
        train_dataset=[sample.model_dump() for sample in make_samples(8)],
        eval_dataset=make_samples(8),
        probe_dataset=probe,
    )
    trainer.train()
    trainer.save_model()
    train_recipe(load_recipe(tmp_path / "python" / "recipe.yaml", [f"train.output_dir={tmp_path}/again"]))
    expected = load_file(tmp_path / "recipe" / "adapter_model.safetensors")
    for run in ("python", "again"):
        found = load_file(tmp_path / run / "adapter_model.safetensors")
        assert all(torch.equal(found[name], weights) for name, weights in expected.items())
        for value in ("eval_loss", "eval_em", "eval_habit_gap", "eval_n"):
            assert values(tmp_path / run, value) == values(tmp_path / "recipe", value)
    assert len(trainer.predict(make_samples(5)).predictions) == 5, "only the trainer's own rows are limited"


def test_five_lines_on_rows_of_three_columns(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = D2EConfig(str(tmp_path), eval_strategy="steps", eval_steps=2, sample_predictions=1, adam_beta1=0.8, **SHORT)
    trainer = D2ETrainer(str(world / "model"), args, train_dataset=ROWS, eval_dataset=ROWS[:3])
    trainer.train()
    assert trainer.evaluate().keys() >= {"eval_loss", "eval_ce", "eval_kl", "eval_mean_token_accuracy"}
    assert trainer.evaluate(ROWS[3:5])["eval_loss"] > 0
    evaluated = [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert evaluated[:1] == [2]
    told = capsys.readouterr().out
    assert f"training samples: 6 of 6 in {tmp_path / '_train_rows.parquet'}" in told
    assert "recipe.yaml leaves out: adam_beta1, which a run" in told
    assert {"recipe.yaml", "data.json", "_dev_rows.parquet", "trainer_state.json"} <= {
        file.name for file in tmp_path.iterdir()
    }


def test_shares_of_all_steps_are_when_to_log_evaluate_and_save(world: Path, tmp_path: Path) -> None:
    shares = {"logging_steps": 0.5, "eval_steps": 0.5, "save_steps": 0.75, "logging_first_step": False}
    args = D2EConfig(str(tmp_path), sample_predictions=0, **{**SHORT, "max_steps": 4, **shares})
    trainer = D2ETrainer(str(world / "model"), args, train_dataset=ROWS, eval_dataset=ROWS[:2])
    trainer.train()
    steps = {
        name: [entry["step"] for entry in trainer.state.log_history if name in entry] for name in ("loss", "eval_loss")
    }
    assert steps == {"loss": [2, 3, 4], "eval_loss": [2, 4]}, "a checkpoint logs, too"
    assert {folder.name for folder in tmp_path.glob("checkpoint-*")} == {"checkpoint-3", "checkpoint-4"}


@pytest.mark.parametrize(
    "given", [{}, {"eval_strategy": "epoch"}, {"eval_strategy": "epoch", "save_strategy": "epoch"}]
)
def test_the_best_model_is_saved_loaded_and_in_the_recipe(
    given: dict[str, Any], world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**SHORT, "max_steps": -1, "num_train_epochs": 3, "learning_rate": 0.5, "sample_predictions": 0, **given}
    args = D2EConfig(str(tmp_path), load_best_model_at_end=True, **options)
    trainer = D2ETrainer(str(world / "model"), args, train_dataset=ROWS, eval_dataset=ROWS[:3])
    trainer.train()
    found = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(found) == 3
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{2 * (1 + found.index(min(found)))}")
    assert trainer.evaluate()["eval_loss"] == pytest.approx(min(found))
    train = load_recipe(tmp_path / "recipe.yaml").train
    assert (train.eval_steps, train.save_steps, train.load_best_model_at_end) == (2, 2, True)
    assert "leaves out" not in capsys.readouterr().out


def test_a_push_of_transformers_sends_the_model_and_no_row(world: Path, tmp_path: Path, hub: HubServer) -> None:  # noqa: F811
    places = {"push_to_hub": True, "hub_model_id": "tester/mine", "save_steps": 2, "eval_steps": 2}
    rows = [row | {"question": f"{row['question']} A secret?"} for row in ROWS]
    args = D2EConfig(str(tmp_path / "run"), sample_predictions=1, **places, **SHORT)
    trainer = D2ETrainer(str(world / "model"), args, train_dataset=rows, eval_dataset=rows[:3])
    trainer.train()
    trainer.push_to_hub()
    sent = hub.files["tester/mine"]
    assert sent.keys() >= {"model.safetensors", "tokenizer.json", "recipe.yaml"}
    assert not any(name.endswith(".parquet") or b"A secret?" in content for name, content in sent.items())


def test_a_pushed_adapter_has_our_card_and_a_saved_one_no_draft(world: Path, tmp_path: Path, hub: HubServer) -> None:  # noqa: F811
    args = D2EConfig(str(tmp_path / "run"), hub_model_id="tester/mine", **SHORT)
    lora = LoraConfig(r=2, target_modules="all-linear")
    trainer = D2ETrainer(str(world / "model"), args, train_dataset=ROWS, peft_config=lora)
    trainer.train()
    trainer.save_model()
    assert not (tmp_path / "run/README.md").exists()
    trainer.push_to_hub()
    card = hub.files["tester/mine"]["README.md"].decode()
    assert "d2e-sft" in card
    assert "tester/mine" in card
    assert "More Information Needed" not in card


def test_a_push_without_the_hub_says_what_to_do(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    args = D2EConfig(str(tmp_path / "run"), push_to_hub=True, hub_model_id="tester/mine", **SHORT)
    with pytest.raises(UserError, match=r"tester/mine.*HF_HUB_OFFLINE"):
        D2ETrainer(str(world / "model"), args, train_dataset=ROWS)


def test_a_hub_that_is_lost_before_the_upload_is_named(
    world: Path,
    tmp_path: Path,
    hub: HubServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args = D2EConfig(str(tmp_path / "run"), hub_model_id="tester/mine", **SHORT)
    trainer = D2ETrainer(str(world / "model"), args, train_dataset=ROWS)
    trainer.init_hf_repo()

    def lost(*args: Any, **kwargs: Any) -> None:
        HfApi(endpoint="http://127.0.0.1:9").whoami(token="hf_x")

    monkeypatch.setattr(HfApi, "upload_folder", lost)
    with pytest.raises(UserError, match=r"push_to_hub=tester/mine: the Hub at http.* cannot be reached"):
        trainer.push_to_hub()


def test_options_of_loading_a_model_by_name_are_those_of_transformers(world: Path, tmp_path: Path) -> None:
    def made(**options: Any) -> D2ETrainer:
        return D2ETrainer(str(world / "model"), D2EConfig(tmp_path, use_cpu=True, model_init_kwargs=options))

    for dtype in ("bfloat16", torch.bfloat16):
        assert made(dtype=dtype).model.dtype == torch.bfloat16
    for options, told in (
        ({"dtype": "auto"}, "dtype='auto': expected float32, bfloat16 or float16"),
        ({"device_map": "auto"}, "model_init_kwargs: device_map not supported; expected dtype"),
    ):
        with pytest.raises(UserError, match=told):
            made(**options)


def test_refined_contexts_are_made_by_rule_or_not_at_all(world: Path, tmp_path: Path) -> None:
    def trainer(**options: Any) -> D2ETrainer:
        return D2ETrainer(str(world / "model"), D2EConfig(str(tmp_path), **SHORT), train_dataset=ROWS, **options)

    made = trainer().train_dataset
    assert len(made[0]["refined"]) < len(made[0]["original"]), "sentences that do not matter are left out"
    kept = trainer(
        refiner=lambda samples: [one.model_copy(update={"refined_context": one.context}) for one in samples]
    )
    assert kept.train_dataset[0]["refined"] == made[0]["original"]
    assert refined_by_rule(make_samples(2)) == make_samples(2), "a refined context that is given stays"
    with pytest.raises(UserError, match="refined_context is missing"):
        trainer(refiner=None)


def test_without_bars_nothing_is_printed(world: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    args = D2EConfig(str(tmp_path), log_level="error", save_steps=1, **SHORT)
    trainer = D2ETrainer(str(world / "model"), args, train_dataset=ROWS, eval_dataset=ROWS[:2])
    trainer.train()
    trainer.save_model()
    told = capfd.readouterr()
    assert told.out + told.err == ""


ADAPTERS = {
    "all-linear": {"target_modules": "all-linear"},
    "attention": {"target_modules": ["q_proj", "v_proj"]},
    "on-the-head": {"target_modules": ["q_proj", "lm_head"]},
    "head-in-full": {"target_modules": "all-linear", "modules_to_save": ["lm_head"]},
    "dora": {"target_modules": "all-linear", "use_dora": True},
}


@pytest.mark.parametrize("view_gradients", ["all", "original"])
@pytest.mark.parametrize(
    ("kind", "adapter"),
    [
        *(("llama", name) for name in ADAPTERS),
        *((kind, "all-linear") for kind in ("gemma3", "gemma4", "granite4")),
        ("gemma3", "on-the-head"),
    ],
)
def test_a_packed_step_on_an_adapter_equals_the_naive_one(kind: str, adapter: str, view_gradients: Any) -> None:
    model = with_lora(tiny_model(kind, seed=3), **ADAPTERS[adapter])
    if kind == "gemma4":  # four layers: in float32 rounding exceeds the tolerance
        model.double()
    layout = assert_equal_to_naive(model, D2ESection(view_gradients=view_gradients), "auto")
    assert (layout.packing, layout.reason) == ("shared_batch", None)


KINDS: list[tuple[str, dict[str, Any]]] = [
    *(("llama", option) for option in ({"use_dora": True}, {"use_rslora": True}, {"modules_to_save": ["lm_head"]})),
    *(("llama", {"init_lora_weights": start}) for start in ("gaussian", "orthogonal", "pissa", "olora")),
    *((kind, {"target_modules": ["q_proj", "lm_head"]}) for kind in ("qwen2", "gemma3")),  # their heads are tied
    *((kind, {"target_modules": ["embed_tokens"]}) for kind in ("qwen2", "gemma3")),
    *((kind, {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}) for kind in ("qwen2", "gemma3")),
]


def test_an_adapter_that_asks_for_settings_of_its_own_is_trained(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = AdaLoraConfig(total_step=9, init_r=4, target_modules=["q_proj"])
    args = D2EConfig(str(tmp_path / "run"), **SHORT)
    trainer = D2ETrainer(str(world / "model"), args, train_dataset=ROWS, peft_config=adapter)
    trainer.train()
    said = " ".join("".join(capsys.readouterr()).split())
    assert "leaves out: peft_config.init_r, peft_config.total_step" in said


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_each_kind_of_adapter_loads_as_it_was_trained(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    name = str(save_tiny_model(tmp_path / "model", kind))
    recipe = load_recipe(write_recipe(tmp_path, tmp_path / "run", f"model.lora={ {'r': 4, **options} }"))
    model = wrapped_in_adapter(load_model(name).model, adapter_config(recipe), name)
    for key, value in options.items():
        assert getattr(model.peft_config["default"], key) in (value, {*value} if isinstance(value, list) else value)
    with torch.no_grad():  # as if trained
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    ids = torch.arange(5, 25)[None]
    before, base = model.eval()(ids).logits, load_model(name).model(ids).logits
    assert (before - base).norm() > 0.1 * base.norm()
    model.save_pretrained(tmp_path / "adapter")
    torch.testing.assert_close(
        load_model(str(tmp_path / "adapter")).model.eval()(ids).logits, before, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(("targets", "view_gradients"), [("all-linear", "original"), (["q_proj"], "all")])
def test_gradient_checkpointing_trains_the_same_adapter(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, targets: Any, view_gradients: str
) -> None:
    def trained(run: str, *overrides: str) -> dict[str, torch.Tensor]:
        lora = {"r": 4, "target_modules": targets}
        given = ("train.max_steps=2", f"model.lora={lora}", f"d2e.view_gradients={view_gradients}", *overrides)
        recipe = load_recipe(write_recipe(world, tmp_path / run, *given))
        return load_file(train_recipe(recipe) / "adapter_model.safetensors")

    plain = trained("plain")
    calls = []
    plain_checkpoint = modeling_utils.checkpoint

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return plain_checkpoint(*args, **options)

    monkeypatch.setattr(modeling_utils, "checkpoint", counted)
    checkpointed = trained("checkpointed", "train.gradient_checkpointing=true")
    assert calls, "nothing was checkpointed"
    assert plain.keys() == checkpointed.keys()
    for name, weights in plain.items():
        assert weights.abs().max() > 0, name  # B starts at zero: it has been trained
        torch.testing.assert_close(checkpointed[name], weights, rtol=1e-6, atol=1e-7, msg=name)


def test_peft_loads_an_adapter_of_the_builtin(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, elsewhere = tmp_path / "cache", tmp_path / "another"
    shutil.copytree(world / "model", here / "models" / "smollm2-135m-instruct-q4_1")
    monkeypatch.setenv("D2E_CACHE", str(here))
    run = train_recipe(
        load_recipe(write_recipe(world, tmp_path / "run", f"model.name={BUILTIN}", "model.lora={r: 2}"))
    )
    ids = torch.arange(5, 25)[None]
    found = AutoPeftModelForCausalLM.from_pretrained(str(run)).eval()(ids).logits
    here.rename(elsewhere)
    monkeypatch.setenv("D2E_CACHE", str(elsewhere))
    assert base_of_adapter(run) == BUILTIN
    assert list(read_seal(run).depends_on) == [BUILTIN]
    expected = load_model(str(run)).model.eval()(ids).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not torch.equal(expected, load_model(BUILTIN).model.eval()(ids).logits)
