"""`d2e train --dry-run` on a tiny model: what it shows, and that it leaves nothing behind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.config.recipe import load_recipe
from d2e_sft.data.sample import write_samples
from d2e_sft.data.views import EncodedSample
from d2e_sft.train.dry_run.plan import Plan
from d2e_sft.train.dry_run.report import Where, dry_run, length_table, render_example
from d2e_sft.train.trainer import D2ETrainer
from d2e_sft.util.errors import UserError
from tests.command import output_of, refusal_of
from tests.tiny import make_sample, make_samples, tiny_tokenizer


def shown(recipe_file: Path, *overrides: str, where: Where = Where(), **options: Any) -> str:  # noqa: B008
    lines: list[str] = []
    dry_run(load_recipe(recipe_file, overrides), lines.append, where, **options)
    return "\n".join(lines)


def section(text: str, title: str) -> str:
    return next(part for part in text.split("== ") if part.startswith(title))


@pytest.fixture(scope="module")
def whole(recipe_file: Path) -> str:
    return shown(recipe_file)


def test_the_command_shows_every_section_and_writes_nothing(recipe_file: Path) -> None:
    before = sorted(recipe_file.parent.rglob("*"))
    printed = output_of("train", recipe_file, "train.num_train_epochs=2", "--dry-run")
    for title in ("recipe", "run folder", "samples", "lengths", "layout", "steps", "memory per device", "time"):
        assert f"== {title}" in printed, title
    assert "num_train_epochs: 2" in section(printed, "recipe")
    assert max(map(len, section(printed, "memory").splitlines())) <= 100
    assert sorted(recipe_file.parent.rglob("*")) == before


def test_steps_are_those_of_the_trainer(recipe_file: Path, whole: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from d2e_sft.train import run as train

    seen: dict[str, int] = {}

    def only_count(self: D2ETrainer, **options: Any) -> Any:
        values = self.set_initial_training_values(self.args, self.get_train_dataloader())
        seen.update(per_epoch=values[1], total=values[-1], warmup=self.args.get_warmup_steps(values[-1]))
        raise KeyboardInterrupt

    monkeypatch.setattr(D2ETrainer, "train", only_count)
    out = recipe_file.parent / "counted"
    with pytest.raises(KeyboardInterrupt):
        train.train_recipe(load_recipe(recipe_file, [f"train.output_dir={out}"]))
    steps = section(whole, "steps")
    assert f"= {seen['per_epoch']} optimiser steps per epoch" in steps
    assert f"{seen['total']} optimiser steps in all (3 epochs), {seen['warmup']} of them warm-up" in steps


def test_first_middle_and_longest_are_shown(whole: str) -> None:
    text = section(whole, "samples")
    assert "first: s0 " in text
    assert "longest: s" in text
    lengths = {which: text.split(f"{which}: s")[1].split("original: prompt ")[1].split(" ")[0] for which in
               ("first", "of middle length", "longest")}  # fmt: skip
    assert int(lengths["of middle length"]) < int(lengths["longest"])


def test_overlong_samples_are_counted_and_the_rest_is_shown(recipe_file: Path, whole: str) -> None:
    lengths = section(whole, "lengths")
    longest = int(lengths.split("longest view + answer")[1].split("\n")[0].split()[-1])
    text = shown(recipe_file, f"data.max_length={longest - 1}")
    found = re.search(rf"(\d+) longer than {longest - 1} tokens\n  training would stop: data.overlong=error", text)
    assert found is not None
    assert 0 < int(found.group(1)) < 18
    assert f"raise it to {longest}, or set data.overlong=drop or truncate_context" in text
    assert "== time" in text
    text = shown(recipe_file, "data.max_length=239", "data.overlong=truncate_context")
    assert "training would stop: data.overlong=truncate_context" in text, "prompts without contexts are too long"


def test_rows_that_are_not_about_events_are_said_to_be_worded_neutrally(recipe_file: Path, tmp_path: Path) -> None:
    relations = ("none", "none", "factual", "causal")
    samples = [one.model_copy(update={"relation": relations[i % 4]}) for i, one in enumerate(make_samples(16))]
    write_samples(samples, tmp_path / "train.jsonl")
    text = section(shown(recipe_file, f"data.train={tmp_path / 'train.jsonl'}"), "samples")
    assert "the prompt set neutral instead of default in 12 of 16 rows" in text
    own = section(shown(recipe_file, f"data.train={tmp_path / 'train.jsonl'}", "data.prompt_set=neutral"), "samples")
    assert "instead of" not in own


def test_a_folder_that_does_not_exist_is_new_and_only_a_run_is_started_over(recipe_file: Path, tmp_path: Path) -> None:
    def said(folder: Path, **options: Any) -> str:
        return section(shown(recipe_file, f"train.output_dir={folder}", **options), "run folder")

    assert f"{tmp_path / 'new'}: training would start in this new folder" in said(tmp_path / "new")
    assert f"{tmp_path / 'new'}: training would start in this new folder" in said(tmp_path / "new", overwrite=True)
    assert f"{tmp_path}: training would start\n" in said(tmp_path)
    for name in ("trainer_state.json", "recipe.yaml"):
        (tmp_path / name).write_text("{}")
    assert "would start over and remove the run in it" in said(tmp_path, overwrite=True)


@pytest.mark.parametrize(("model", "shape"), [("Qwen/Qwen3-0.6B-Base", "qwen3-0.6b"), ("someone/name", "qwen3-4b")])
def test_without_the_hub_a_card_is_told_of_with_a_published_shape(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch, model: str, shape: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    asked = ("train", recipe_file, "--dry-run", f"model.name={model}")
    assert f"which needs neither network nor model: --like {shape}" in refusal_of(*asked, "--gpu", "a100-40")
    assert "--like" not in refusal_of(*asked)


def test_a_run_in_the_folder_is_said_and_left_alone(recipe_file: Path, tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(json.dumps({}))
    out = f"train.output_dir={tmp_path}"
    text = section(shown(recipe_file, out), "run folder")
    assert "training would stop" in text
    assert "already contains a run" in text
    assert "--overwrite" in text
    assert "is finished, and contains no checkpoint" in section(shown(recipe_file, out, resume=True), "run folder")
    assert [path.name for path in tmp_path.iterdir()] == ["trainer_state.json"]


def test_a_launcher_divides_memory_and_time(recipe_file: Path) -> None:
    # 18 samples on 2 processes: 3 micro-batches each instead of 5.
    text, whole = (shown(recipe_file, where=Where(name, 2)) for name in ("zero2", "ddp"))
    assert "== memory per device (--launch zero2 on 2 processes)" in text
    assert "a step: 1 micro-batches of 4 on 2 processes" in text
    assert "divided by 2 processes (linear scaling)" in text

    def mebibytes(part: str, name: str) -> float:
        return float(section(part, "memory").split(name)[1].split()[0])

    for name, part in (("gradients", 4), ("optimiser state", 2)):  # DDP holds gradients twice
        assert mebibytes(text, name) == pytest.approx(mebibytes(whole, name) / part, abs=0.1)
    assert mebibytes(text, "weights") == mebibytes(whole, "weights")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["model.name=./nowhere"], "no such folder"),
        (["data.train=none.parquet"], "none.parquet: no such file"),
        (["data.max_length=20"], "all 18 samples exceed data.max_length=20"),
        (["d2e.objective=prefer"], "no training row has a rejected answer"),
        (["--launch", "ddp", "--processes", "3"], "cannot be split over 3 processes in micro-batches"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_training_refuses_is_refused(recipe_file: Path, arguments: list[str], said: str) -> None:
    assert said in refusal_of("train", recipe_file, "--dry-run", *arguments)
    assert not (recipe_file.parent / "run").exists()


@pytest.mark.parametrize("overrides", [["model.lora.r=2"], ["train.packing=batched"], ["d2e.view_gradients=original"]])
def test_every_kind_of_run_gets_memory_and_time(recipe_file: Path, overrides: list[str]) -> None:
    text = shown(recipe_file, *overrides)
    assert re.search(r"at the peak .* measured: growth of this process", section(text, "memory per device"))
    assert "in all, without loading" in section(text, "time")


def test_other_moments_than_those_measured_are_said(recipe_file: Path) -> None:
    text = section(shown(recipe_file, "train.optim=sgd"), "memory per device")
    assert "; with AdamW's moments, not those of sgd" in text


def test_memory_that_cannot_be_measured_is_estimated(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def untold() -> None:
        raise UserError("memory cannot be measured")

    monkeypatch.setattr("d2e_sft.train.dry_run.plan.PeakMemory", untold)
    assert re.search(r"at the peak .* estimated", section(shown(recipe_file), "memory per device"))


def test_a_device_that_is_too_small_is_said(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(*arguments: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("d2e_sft.train.dry_run.plan.forward_backward", too_much)
    text = shown(recipe_file)
    assert "not measured: a micro-batch does not fit cpu" in section(text, "time")
    assert "activations" in section(text, "memory per device")


def test_micro_batches_are_those_of_a_processs_share(recipe_file: Path) -> None:
    text = shown(recipe_file, "train.per_device_train_batch_size=8", where=Where("ddp", 4))
    assert "a step: 1 micro-batches of 2 on 4 processes" in text
    assert "for the heaviest micro-batch, the 2 longest samples" in text


def test_micro_batches_by_tokens_are_told_as_the_run_will_cut_them(recipe_file: Path) -> None:
    text = shown(recipe_file, "train.micro_batch_tokens=1000")
    assert re.search(r"a step: [\d.]+ micro-batches of at most 1000 tokens \([\d.]+ samples on average\)", text)
    found = re.search(r"for the heaviest micro-batch, \d+ samples: (\d+) tokens laid out", text)
    assert found is not None
    assert 476 < int(found.group(1)) <= 1000


def test_rows_per_context_are_told_and_what_they_save(recipe_file: Path) -> None:
    text = shown(recipe_file, "train.rows_per_context=3")
    assert re.search(r"batch \d+, up to 3 with the same context together = ", text)
    assert re.search(r"a step: [\d.]+ micro-batches of at most 4 samples \([\d.]+ samples on average\)", text)
    assert "warning: train.rows_per_context=3 saves no tokens: no two rows have the same context" in text
    assert "tokens per row" not in text


def test_what_rows_with_the_same_context_save_is_told(recipe_file: Path, tmp_path: Path) -> None:
    contexts = [f"Word {number} came, and then more words of the same long text came. " * 9 for number in (1, 2)]
    samples = [sample.model_copy(update={"context": contexts[i % 2]}) for i, sample in enumerate(make_samples(16))]
    write_samples(samples, tmp_path / "train.jsonl")
    text = shown(
        recipe_file, f"data.train={tmp_path / 'train.jsonl'}", "data.max_length=2048", "train.rows_per_context=4"
    )
    found = re.search(r"tokens per row: (\d+), ([\d.]+) × those of rows drawn singly \((\d+)\)", text)
    assert found is not None
    ours, theirs = int(found[1]), int(found[3])
    assert ours / theirs == pytest.approx(float(found[2]), abs=0.02)
    assert ours < 0.95 * theirs, "micro-batches of four samples hold one context instead of two"


@pytest.mark.parametrize("overrides", [[], ["model.lora={init_lora_weights: pissa}"], ["train.packing=batched"]])
def test_without_weights_memory_is_that_of_a_model_with_weights(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str]
) -> None:
    text = shown(recipe_file, *overrides, where=Where(weights=False))
    assert "not measured: no weights are read" in section(text, "time")
    monkeypatch.setattr(Plan, "measure_speed", lambda plan: None)
    assert section(text, "memory") == section(shown(recipe_file, *overrides), "memory")
    assert "estimated" in section(text, "memory")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--without-weights: training needs the weights"),
        (["--dry-run", "model.quantization=4bit", "model.lora={}"], "the memory of model.quantization=4bit cannot be"),
    ],
)
def test_without_weights_is_refused_where_it_has_no_meaning(
    recipe_file: Path, arguments: list[str], said: str
) -> None:
    assert said in refusal_of("train", recipe_file, "--without-weights", *arguments)


def test_samples_are_shown_as_the_model_sees_them() -> None:
    tokenizer = tiny_tokenizer()
    prompts = {
        "original": tokenizer("<|user|>rain, then what?<|end|><|assistant|>")["input_ids"],
        "imagined": tokenizer("<|user|>then what?<|end|><|assistant|>")["input_ids"],
    }
    encoded = EncodedSample(prompts=prompts, answer=tokenizer("flood\nno<|end|>")["input_ids"])  # type: ignore[arg-type]
    lines = [*render_example("first", make_sample(3), encoded, tokenizer)]
    assert lines[0] == "first: s3 (made-up, qa)"
    # <|user|> alone is common: r and t differ. 18 + 9 and 12 + 9 tokens, all kept: one token is not worth sharing.
    assert lines[1] == f"  the views begin with 1 tokens in common; {19 + 13 + 18} tokens apart, 50 in a packed row"
    again = EncodedSample(prompts | {"refined": prompts["original"]}, encoded.answer)  # type: ignore[arg-type]
    text = [*render_example("first", make_sample(3), again, tokenizer)][1]
    assert text.endswith(f"; {19 + 13 + 19 + 27} tokens apart, 50 in a packed row"), "an equal view is computed once"
    assert lines[2:6] == [
        "  original: prompt 19 + answer 9 tokens",
        "    | <|user|>rain, then what?<|end|><|assistant|>",
        "    > flood",
        "    > no<|end|>",
    ]


def test_percentiles_are_nearest_ranks() -> None:
    whole = [EncodedSample({"original": [0] * (n - 1)}, [0]) for n in (3, 1, 2, 4, 10, 9, 8, 7, 6, 5)]
    head, longest, *_ = length_table(whole)
    assert head.split() == ["tokens", "p50", "p90", "p95", "p99", "max"]
    assert longest.split()[-5:] == ["5", "9", "10", "10", "10"]


def test_a_long_line_of_a_sample_continues_below_its_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    tokenizer = tiny_tokenizer()
    ids = tokenizer("<|user|>" + "the rain fell, the river rose " * 6)["input_ids"]
    encoded = EncodedSample(prompts={"original": ids}, answer=tokenizer("flood<|end|>")["input_ids"])
    (shown,) = (line for line in render_example("first", make_sample(3), encoded, tokenizer) if "rain" in line)
    lines = shown.split("\n")
    assert len(lines) == 2
    assert max(map(len, lines)) <= 100
    assert lines[1].startswith("      ")
