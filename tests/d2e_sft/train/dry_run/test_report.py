"""`d2e train --dry-run` on a tiny model: what it shows is in `test_report.yaml`, and it leaves nothing behind."""

import re
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.config.recipe import load_recipe
from d2e_sft.data.sample import EventSample
from d2e_sft.train.dry_run.plan import Plan
from d2e_sft.train.dry_run.report import Where, dry_run
from d2e_sft.train.run import train_recipe
from d2e_sft.train.trainer import D2ETrainer
from d2e_sft.util.errors import UserError
from tests.command import output_of, refusal_of
from tests.factories import make_world, write_recipe
from tests.messages import messages_of
from tests.tiny import make_sample

KEYS = ("max_steps=-1", "num_train_epochs=3", "batch_size=8", "per_device_train_batch_size=4", "warmup_steps=0.25")
UNREAD = Where(weights=False)


def recipe_in(folder: Path, rows: int | Sequence[EventSample] = 18, **world: Any) -> Path:
    make_world(folder, train=rows, bench=0, **world)
    return write_recipe(folder, folder / "run", *(f"train.{key}" for key in KEYS))


def shown(recipe: Path, *overrides: str, where: Where = UNREAD, **options: Any) -> str:
    lines: list[str] = []
    dry_run(load_recipe(recipe, overrides), lines.append, where, **options)
    return "\n".join(lines)


def section(text: str, *titles: str) -> str:
    return "".join(part for part in text.split("== ") if part.startswith(titles))


def part(
    titles: str,
    *overrides: str,
    where: Where = UNREAD,
    rows: Any = 18,
    files: str = "",
    lines: int | None = None,
    **options: Any,
) -> Any:
    """A call that shows some sections, or their first lines; `files` are made in the run folder before."""

    def call(tmp: Path) -> str:
        recipe = recipe_in(tmp, rows, dev=[make_sample(32, split="dev")])
        for file in files.split():
            (tmp / "run").mkdir(exist_ok=True)
            (tmp / "run" / file).write_text("{}")
        given = (override.replace("TMP", str(tmp)) for override in overrides)
        text = section(shown(recipe, *given, where=where, **options), *titles.split(", "))
        return "\n".join(text.splitlines()[:lines])

    return call


def refused(*arguments: Any) -> Callable[[Path], str]:
    return lambda tmp: refusal_of("train", recipe_in(tmp), *arguments)


CONTEXTS = [f"Word {number} came, and then more words of the same long text came. " * 9 for number in (1, 2)]
SHARING = [make_sample(i, context=CONTEXTS[i % 2], refined_context="Word.") for i in range(16)]
NEUTRAL = [make_sample(i, relation=("none", "none", "factual", "causal")[i % 4]) for i in range(8)]
PAIRS = [make_sample(i, rejected=["a stone"] * (i % 2)) for i in range(1, 7)]
test_message = messages_of(
    __file__,
    {
        "a whole run": part("run folder, samples, lengths, layout, steps"),
        "overlong rows": part("lengths", "data.dev=TMP/dev.jsonl", "data.max_length=300"),
        "contexts that are cut": part("lengths", "data.max_length=239", "data.overlong=truncate_context"),
        "a dev file": part("lengths, steps", "data.dev=TMP/dev.jsonl", "train.eval_steps=2", "train.save_steps=4"),
        "rows not about events": part("samples", rows=NEUTRAL, lines=5),
        "a pair": part("samples", "d2e.objective=prefer", rows=PAIRS, lines=8),
        "lengths of pairs": part("lengths", "d2e.objective=prefer", rows=PAIRS),
        "a launcher": part("steps", "train.per_device_train_batch_size=8", where=Where("ddp", 4, weights=False)),
        "micro-batches by tokens": part("steps", "train.micro_batch_tokens=1000"),
        "rows per context that save nothing": part("layout, steps", "train.rows_per_context=3"),
        "rows per context, padded": part("steps", "train.rows_per_context=3", "train.packing=batched"),
        "some rows": part("lengths", "data.max_samples=5", "data.max_length=300", "data.overlong=drop"),
        "rows per context": part("layout", "train.rows_per_context=4", "data.max_length=2048", rows=SHARING),
        "views apart": part("layout", "train.packing=batched"),
        "a folder with a run": part("run folder", files="trainer_state.json recipe.yaml"),
        "a folder that is started over": part("run folder", files="trainer_state.json recipe.yaml", overwrite=True),
        "a finished run to resume": part("run folder", files="trainer_state.json", resume=True),
        "all rows too long": refused("--dry-run", "data.max_length=20"),
        "no pairs": refused("--dry-run", "d2e.objective=prefer"),
        "a card": refused("--dry-run", "--gpu", "a100"),
        "a shape": refused("--dry-run", "--like", "qwen3-4"),
        "a tokenizer without a shape": refused("--dry-run", "--tokenizer", "x"),
        "a share without a card": refused("--dry-run", "--utilisation", "0.4"),
        "a launcher that does not exist": refused("--dry-run", "--gpu", "h100", "--launch", "zero9"),
        "quantised weights": refused("--dry-run", "--gpu", "h100", "model.quantization=4bit", "model.lora={}"),
        "a shape to train": refused("--like", "qwen3-4b"),
        "a card to train on": refused("--gpu", "h100"),
        "training without weights": refused("--without-weights"),
    },
)


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recipe_in(tmp_path_factory.mktemp("dryrun"))


def test_the_command_measures_a_run_and_writes_nothing(recipe_file: Path) -> None:
    before = sorted(recipe_file.parent.rglob("*"))
    printed = output_of("train", recipe_file, "train.num_train_epochs=2", "--dry-run")
    assert "num_train_epochs: 2" in section(printed, "recipe")
    assert re.search(r"at the peak .* measured: growth of this process", section(printed, "memory per device"))
    assert "in all, without loading" in section(printed, "time")
    assert sorted(recipe_file.parent.rglob("*")) == before


def test_steps_are_those_of_the_trainer(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, int] = {}

    def only_count(self: D2ETrainer, **options: Any) -> Any:
        values = self.set_initial_training_values(self.args, self.get_train_dataloader())
        seen.update(per_epoch=values[1], total=values[-1], warmup=self.args.get_warmup_steps(values[-1]))
        raise KeyboardInterrupt

    monkeypatch.setattr(D2ETrainer, "train", only_count)
    with pytest.raises(KeyboardInterrupt):
        train_recipe(load_recipe(recipe_file, [f"train.output_dir={recipe_file.parent / 'counted'}"]))
    steps = section(shown(recipe_file), "steps")
    assert f"= {seen['per_epoch']} optimiser steps per epoch" in steps
    assert f"{seen['total']} optimiser steps in all (3 epochs), {seen['warmup']} of them warm-up" in steps


def test_a_launcher_divides_memory_and_time(recipe_file: Path) -> None:
    text, whole = (shown(recipe_file, where=Where(name, 2)) for name in ("zero2", "ddp"))
    assert "divided by 2 processes (linear scaling)" in text

    def mebibytes(text: str, name: str) -> float:
        return float(section(text, "memory").split(name)[1].split()[0])

    for name, share in (("gradients", 4), ("optimiser state", 2), ("weights", 1)):  # DDP holds gradients twice
        assert mebibytes(text, name) == pytest.approx(mebibytes(whole, name) / share, abs=0.1)


@pytest.mark.parametrize("overrides", [[], ["model.lora={init_lora_weights: pissa}"], ["train.packing=batched"]])
def test_without_weights_memory_is_that_of_a_model_with_weights(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str]
) -> None:
    text = shown(recipe_file, *overrides)
    assert "not measured: no weights are read" in section(text, "time")
    monkeypatch.setattr(Plan, "measure_speed", lambda plan: None)
    assert section(text, "memory") == section(shown(recipe_file, *overrides, where=Where()), "memory")
    assert "estimated" in section(text, "memory")


def test_what_cannot_be_measured_is_estimated(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: BaseException) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            raise error

        return call

    with monkeypatch.context() as patch:
        patch.setattr("d2e_sft.train.dry_run.plan.PeakMemory", fail(UserError("memory cannot be measured")))
        assert re.search(r"at the peak .* estimated", section(shown(recipe_file, where=Where()), "memory"))
    monkeypatch.setattr("d2e_sft.train.dry_run.plan.unslowed_seconds", fail(torch.OutOfMemoryError()))
    text = shown(recipe_file, where=Where())
    assert "not measured: a micro-batch does not fit cpu" in section(text, "time")
    assert "activations" in section(text, "memory per device")


def test_a_micro_batch_that_other_programs_slowed_is_not_extrapolated(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = chain([(1.0, 1.0), (60.0, 180.0), (2.0, 6.0)], repeat((1.0, 1.0)))  # the first is a warm-up
    monkeypatch.setattr("d2e_sft.train.dry_run.plan.unslowed_seconds", lambda act, device: next(times))
    text = section(shown(recipe_file, where=Where()), "time")
    (seconds,) = re.findall(r"a micro-batch ([\d.]+) s", text)
    assert 1 < float(seconds) < 4
    assert "over 2 micro-batches" in text
    assert "they do now (the clock's time is 3.0 ×)" in text


@pytest.mark.parametrize(("model", "shape"), [("Qwen/Qwen3-0.6B-Base", "qwen3-0.6b"), ("someone/name", "qwen3-4b")])
def test_without_the_hub_a_card_is_planned_with_a_published_shape(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch, model: str, shape: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    command = ("train", recipe_file, "--dry-run", f"model.name={model}")
    assert f"which needs neither network nor model: --like {shape}" in refusal_of(*command, "--gpu", "a100-40")
    assert "--like" not in refusal_of(*command)
