"""A script that runs again: the earlier run is refused, continued or cleared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
from peft import LoraConfig

from d2e_sft import D2EConfig, D2ETrainer
from d2e_sft.config.recipe import D2ESection, load_recipe
from d2e_sft.model.storage.seal import damage
from d2e_sft.util.errors import UserError
from tests.command import call
from tests.d2e_sft.train.test_messages import ROWS, SHORT
from tests.naive import encoded_rows
from tests.tiny import tiny_model


def test_a_script_that_runs_again_keeps_the_earlier_run(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, model = tmp_path / "run", str(world / "model")
    options: dict[str, Any] = {**SHORT, "save_steps": 1, "save_total_limit": 10}

    def trainer(rows: Any = ROWS, rank: int | None = 4, **changes: Any) -> D2ETrainer:
        adapter = rank and LoraConfig(r=rank, target_modules="all-linear")
        args = D2EConfig(str(run), **{**options, **changes})
        return D2ETrainer(model, args, train_dataset=rows, peft_config=adapter)

    first = trainer()
    first.train()
    first.save_model()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as refused:
        trainer(max_steps=1).train()
    assert str(refused.value) == (
        f"{run}: already contains a run\n  remedy: continue it with --resume (resume_from_checkpoint=True), start "
        "over with --overwrite (overwrite_output_dir=True), or choose another train.output_dir"
    )
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"objective": "sft"}, "\n  d2e.objective: 'd2e' → 'sft'"),
        ({"rank": 8}, "model.lora.r: 4 → 8"),
        ({"rows": ROWS[:5]}, "give other tokens now\n  samples: 6 → 5"),
    ]
    for changes, told in refusals:
        for given in (True, str(run / "checkpoint-1")):
            with pytest.raises(UserError, match=r"was started with another recipe|give other tokens now") as refused:
                trainer(**changes).train(resume_from_checkpoint=given)
            assert told in str(refused.value)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    capsys.readouterr()
    trainer(save_total_limit=5).train(resume_from_checkpoint=True)
    assert "resumed after step 2 of 2" in capsys.readouterr().out
    assert damage(run, cached=False) is None, "the recipe changed, and the model that was saved is still readable"
    assert len(list(run.glob("checkpoint-*"))) == 2
    with pytest.raises(UserError, match="no such folder; expected a checkpoint-N"):
        trainer().train(resume_from_checkpoint=str(run / "checkpoint-9"))
    trainer(max_steps=1, overwrite_output_dir=True).train()
    assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-1"]
    assert not (run / "adapter_model.safetensors").exists()


def test_rows_that_are_tokens_leave_a_recipe_and_are_compared_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, tokens = tmp_path / "run", encoded_rows(D2ESection(), 6)
    options: dict[str, Any] = {**SHORT, "save_steps": 1, "save_total_limit": 10}

    def trainer(rows: Any = tokens, **changes: Any) -> D2ETrainer:
        return D2ETrainer(tiny_model(), D2EConfig(str(run), **{**options, **changes}), train_dataset=rows)

    trainer(alpha=0.3).train()
    assert "training samples: 6, given as tokens" in capsys.readouterr().out
    recipe = load_recipe(run / "recipe.yaml")
    assert (recipe.d2e.alpha, recipe.train.max_steps, recipe.model.name) == (0.3, 2, "LlamaForCausalLM")
    with pytest.raises(UserError, match=r"already contains a run"):
        trainer().train()
    added = {"answer": [*tokens[0]["answer"], 7], "content": [*tokens[0]["content"], True]}
    longer = [{**tokens[0], **added}, *tokens[1:]]
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"alpha": 0.9}, "\n  d2e.alpha: 0.3 → 0.9"),
        ({"alpha": 0.3, "rows": tokens[:5]}, "give other tokens now\n  samples: 6 → 5"),
        ({"alpha": 0.3, "rows": longer}, "tokens, SHA-256"),
    ]
    for changes, told in refusals:
        for given in (True, str(run / "checkpoint-1")):
            with pytest.raises(UserError, match=told):
                trainer(**changes).train(resume_from_checkpoint=given)
    trainer(datasets.Dataset.from_list(tokens), alpha=0.3).train(resume_from_checkpoint=str(run / "checkpoint-1"))
    again = call("train", run / "recipe.yaml", f"train.output_dir={tmp_path / 'again'}")
    assert again.status == 1
    assert "the rows of this run were given as tokens" in again.err
    trainer(alpha=0.9, overwrite_output_dir=True).train()
    assert load_recipe(run / "recipe.yaml").d2e.alpha == 0.9
