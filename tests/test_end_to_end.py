"""From data to a verdict: a causal model, an encoder-decoder, and the one ratio everywhere."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from pydantic import ValidationError

from d2e_sft import cli
from d2e_sft.config.decoding import MAX_ALPHA, DecodingConfig
from d2e_sft.config.recipe import D2ESection, Recipe
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding.decoders import named_decoder
from d2e_sft.hub.custom_generate import generate as pushed
from d2e_sft.model.loading import load_model
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.pairing import PairedRow, read_row
from tests.command import call, d2e, output_of, refusal_of
from tests.factories import losses, make_world, scores_of, write_recipe
from tests.tiny import make_sample, make_samples, tiny_t5_tokenizer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, 16 training and 6 test samples, and a recipe of two steps."""
    folder = make_world(tmp_path_factory.mktemp("world"), train=16, bench=6)
    sizes = ("train.batch_size=8", "train.per_device_train_batch_size=4", "train.max_steps=2")
    write_recipe(folder, folder / "run", *sizes, "eval.max_new_tokens=4", "eval.batch_size=4")
    return folder


@pytest.fixture(scope="module")
def trained(world: Path) -> Path:
    assert d2e("train", world / "run.yaml") == 0
    return world / "run"


def test_evaluate_compare_and_report(world: Path, trained: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    assert d2e("eval", trained, "--bench", world / "bench") == 0
    assert d2e("eval", world / "model", "--bench", world / "bench", "--out", base, "--max-new-tokens", 4) == 0
    scores = scores_of(trained)
    assert scores["alpha"] == 0.5, "a D²E run is decoded debiased by default"
    assert scores_of(base)["alpha"] == 0
    assert scores["overall"]["n"] == 6
    printed = output_of("compare", base, trained)
    assert "run against base is not decided: mean " in printed
    assert "made-up" in printed
    printed = output_of("compare", base, trained, "--wide")
    assert "with 95 % intervals" in " ".join(printed.split())
    assert "|" not in printed, "Markdown is for files"
    assert d2e("compare", base, trained, "--out", tmp_path / "c.md") == 0
    assert "| base " in (tmp_path / "c.md").read_text(encoding="utf-8")
    assert d2e("report", base, trained, "--out", tmp_path / "report.html") == 0
    further = shutil.copytree(trained, tmp_path / "further", ignore=shutil.ignore_patterns("eval"))
    assert d2e("eval", further, "--bench", world / "bench") == 0
    assert "other weights" not in call("compare", base, further).err
    record = next((further / "eval").rglob("*.decoding.json"))
    scored = re.sub(r'"sha256:\w{8}', '"sha256:00000000', record.read_text(encoding="utf-8"))
    record.write_text(scored, encoding="utf-8")
    outward = (["compare", base, further], ["export", further, tmp_path / "sent"])
    for command in (*outward, ["push", further, "me/further", "--dry-run"]):
        assert "scores of other weights than" in " ".join(call(*command).err.split()), command[0]
    assert "<svg" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_overwriting_leaves_nothing_of_the_earlier_run(world: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    common = ["train", world / "run.yaml", f"train.output_dir={run}", "train.max_steps=1"]
    assert d2e(*common, "model.lora.r=2", "train.save_steps=1") == 0
    assert d2e("eval", run, "--bench", world / "bench") == 0
    (run / "notes.txt").write_text("mine")
    assert d2e(*common, "--overwrite") == 0
    assert (run / "model.safetensors").is_file()
    assert not list(run.glob("adapter_*")), "an old adapter would be loaded in place of the new weights"
    assert not list(run.glob("checkpoint-*"))
    assert not (run / "eval").exists()
    assert (run / "notes.txt").is_file()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.output_dir={mine}", "is not a run folder"),
        ("model.name={run}", "is inside train.output_dir"),
        ("train.seed=-1", "greater than or equal to 0"),
        ("model.lora.target_modules=nope", "model.lora: does not fit"),
        ("d2e.alpha=.inf", "finite number"),
        ("train.learning_rate=1e30", "the loss became"),
    ],
)
def test_overwriting_costs_only_the_run(world: Path, trained: Path, tmp_path: Path, override: str, said: str) -> None:
    run, mine = tmp_path / "run", tmp_path / "mine"
    shutil.copytree(trained, run)
    (mine / "eval").mkdir(parents=True)
    (mine / "eval" / "metrics.py").write_text("mine")
    arguments = [f"train.output_dir={run}", "train.max_steps=5", override.format(mine=mine, run=run)]
    assert said in refusal_of("train", world / "run.yaml", *arguments, "--overwrite")
    assert (mine / "eval" / "metrics.py").is_file()
    if "the loss became" not in said:
        assert (run / "model.safetensors").is_file(), "a mistake in the call must not cost the earlier run"


def test_debug_shows_the_traceback(world: Path) -> None:
    with pytest.raises(UserError, match="no such recipe"):
        cli.main(["train", "--debug", "nowhere.yaml"])


def test_skipped_bad_rows_are_kept_and_counted(world: Path, tmp_path: Path) -> None:
    rows = [sample.model_dump() for sample in make_samples(9)]
    rows[3]["answers"] = [""]
    data, run = tmp_path / "rows.jsonl", tmp_path / "run"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    words = [f"data.train={data}", "data.skip_bad=true", f"train.output_dir={run}", "train.max_steps=1"]
    assert "1 bad rows skipped, kept in" in output_of("train", world / "run.yaml", *words)
    assert json.loads((run / "_bad_rows.jsonl").read_text())["line"] == 4


VIEWS = ("original", "imagined", "refined")


@pytest.fixture(scope="module")
def world_encoder_decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny T5, training and test samples, and a recipe."""
    folder = make_world(tmp_path_factory.mktemp("t5"), train=16, bench=4, kinds={"model": "t5"})
    write_recipe(folder, folder / "run", "train.batch_size=8", "eval.max_new_tokens=4")
    return folder


def test_prompts_without_a_template_are_plain_text_that_ends_as_the_tokenizer_ends_it() -> None:
    tokenizer, prompts, sample = tiny_t5_tokenizer(), load_prompt_set("default"), make_sample(2)
    encoded = ViewEncoder(tokenizer, prompts, VIEWS, encoder_decoder=True).encode(sample)
    system, user = (message["content"] for message in prompts.messages(sample, "original"))
    assert tokenizer.decode(encoded.prompts["original"]) == f"{system}\n\n{user}<|end|>"
    assert tokenizer.decode(encoded.answer) == f"{prompts.response(sample)}<|end|>"
    assert sample.context not in tokenizer.decode(encoded.prompts["imagined"])


def test_a_context_that_is_cut_leaves_the_prompts_end() -> None:
    encoder = ViewEncoder(tiny_t5_tokenizer(), load_prompt_set("default"), VIEWS, encoder_decoder=True)
    sample = make_sample(2)
    whole = encoder.prompt_ids(sample, "original")
    cut = encoder.prompt_ids(sample, "original", len(whole) - 10)
    assert len(cut) <= len(whole) - 10
    assert cut[-1] == 1
    assert cut[-30:] == whole[-30:]


def test_a_run_lowers_the_loss_and_is_evaluated_debiased(world_encoder_decoder: Path) -> None:
    assert "packing: encoder_decoder" in output_of(
        "train", world_encoder_decoder / "run.yaml", "train.learning_rate=1e-2"
    )
    history = losses(world_encoder_decoder / "run")
    assert history[-1] < 0.95 * history[0]
    assert type(load_model(str(world_encoder_decoder / "run")).model).__name__ == "T5ForConditionalGeneration"
    assert d2e("eval", world_encoder_decoder / "run", "--bench", world_encoder_decoder / "bench") == 0
    scores = scores_of(world_encoder_decoder / "run")
    assert scores["alpha"] == 0.5
    assert scores["overall"]["n"] == 4


def test_boxes_are_asked_with_a_mask_and_decoded_with_beams(world_encoder_decoder: Path, tmp_path: Path) -> None:
    small = ("boxes.boxes=2", "boxes.operations=1", "boxes.train_samples=8", "boxes.test_samples=1")
    assert d2e("data", "build", "--datasets", "boxes", "--out", tmp_path / "rows", "boxes.form=t5", *small) == 0
    rows, run = tmp_path / "rows" / "train.parquet", tmp_path / "run"
    assert (
        d2e(
            "train",
            world_encoder_decoder / "run.yaml",
            "d2e.objective=sft",
            f"data.train={rows}",
            f"train.output_dir={run}",
        )
        == 0
    )
    files = tmp_path / "files"
    assert d2e("data", "boxes", files, "--format", "t5", "--plain", "--scenarios", 3) == 0
    asked = ("--data", files, "--set", "prompt=masked", "--num-beams", 3, "--max-samples", 1)
    assert "accuracy" in output_of("eval", run, "--bench", "boxes", *asked)
    scores = json.loads((run / "eval" / "boxes-prompt=masked" / "scores.json").read_text())
    assert (scores["num_beams"], scores["questions"]) == (3, 7)
    refused = refusal_of("eval", run, "--bench", "boxes", *asked[:-4], "--num-beams", 2, "--max-samples", 1)
    assert "--num-beams: 3 → 2" in refused


@pytest.mark.parametrize("options", [[], ["train.gradient_checkpointing=true"]], ids=["plain", "checkpointed"])
def test_an_adapter_is_trained_and_merged(world_encoder_decoder: Path, tmp_path: Path, options: list[str]) -> None:
    run = tmp_path / "run"
    lora = ["model.lora.r=4", "model.lora.target_modules=[q, v]", f"train.output_dir={run}"]
    assert d2e("train", world_encoder_decoder / "run.yaml", *lora, *options) == 0
    assert json.loads((run / "adapter_config.json").read_text())["task_type"] == "SEQ_2_SEQ_LM"
    before, after = (_weights(folder) for folder in (world_encoder_decoder / "model", run))
    changed = {name for name, weights in before.items() if not torch.equal(after[name], weights)}
    assert changed == {name for name in before if name.endswith((".q.weight", ".v.weight"))}


def _weights(folder: Path) -> dict[str, Any]:
    return dict(load_model(str(folder)).model.named_parameters())


def _eval_section(alpha: float) -> Any:
    sections = {"model": {"name": "x"}, "data": {"train": "x"}, "train": {"output_dir": "x"}}
    return Recipe.model_validate({**sections, "eval": {"alpha": alpha}})


def _row(alpha: float) -> Any:
    row = PairedRow(pair="p", view="original", alpha=alpha, sentinel=0, done=0, min_tokens=0, stops=())
    return read_row(row.as_extra_args())


DOORS: dict[str, Callable[[float], Any]] = {
    "training": lambda alpha: D2ESection(alpha=alpha),
    "a recipe's eval.alpha": _eval_section,
    "decoding in process": lambda alpha: DecodingConfig(alpha=alpha),
    "--decoder": lambda alpha: named_decoder(f"d2e:alpha={alpha}"),
    "a row in vLLM": _row,
}


@pytest.mark.parametrize("door", DOORS)
def test_ratios_from_0_to_10_are_taken_and_any_other_is_refused(door: str) -> None:
    for alpha in (0.0, 0.5, MAX_ALPHA):
        DOORS[door](alpha)
    for alpha in (-0.01, 10.01, math.nan, math.inf):
        with pytest.raises((UserError, ValidationError, ValueError)):
            DOORS[door](alpha)


@pytest.mark.parametrize(
    ("line", "alpha"),
    [
        ("eval x --bench y", "-0.01"),
        ("predict x y --out z", "10.01"),
        ("chat x", "nan"),
        ("serve x", "inf"),
        ("inspect x", "nan"),
        ("demo x", "10.01"),
    ],
)
def test_the_command_line_refuses_it(line: str, alpha: str) -> None:
    verb, *words = line.split()
    done = CliRunner().invoke(cli.d2e, [verb, "--alpha", alpha, *words])
    assert done.exit_code != 0
    assert "alpha" in done.output
    assert "range" in done.output


def test_a_pushed_model_has_the_same_bound() -> None:
    assert pushed._MAX_ALPHA == MAX_ALPHA
