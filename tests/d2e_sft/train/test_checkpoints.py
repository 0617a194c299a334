"""Checkpoints on the disk: sealed, verified, and removed in the right order."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from torch import nn
from transformers import Trainer, TrainingArguments

from d2e_sft.model.storage.folder import resolve_name
from d2e_sft.model.storage.seal import damage
from d2e_sft.train import checkpoints
from d2e_sft.train.checkpoints import WholeCheckpoints, explaining_full_disk, save_model_whole, seal_checkpoint
from d2e_sft.train.run_folder import checkpoints_of, last_checkpoint
from d2e_sft.util.errors import ProcessError, UserError
from tests.tiny import tiny_model


def make_checkpoint(run: Path, step: int) -> Path:
    """A sealed folder with files at two depths, as DeepSpeed's checkpoints have them."""
    folder = run / f"checkpoint-{step}"
    (folder / f"global_step{step}").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(range(200)))
    (folder / f"global_step{step}" / "rank_0.pt").write_bytes(b"moments" * step)
    seal_checkpoint(folder, {})
    return folder


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_sealed_checkpoint_is_whole_and_stays_so_when_files_are_added(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, 2)
    assert damage(folder, cached=False) is None
    (folder / "eval").mkdir()
    (folder / "eval" / "scores.json").write_text("{}")
    assert damage(folder, cached=False) is None


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda f: _flip(f / "global_step2" / "rank_0.pt"), "global_step2/rank_0.pt has SHA-256 "),
        (lambda f: (f / "global_step2" / "rank_0.pt").unlink(), "global_step2/rank_0.pt is missing"),
        (lambda f: os.truncate(f / "checksums.json", 40), "checksums.json is not readable"),
        (lambda f: (f / "checksums.json").write_text("[]"), "checksums.json is not readable"),
        (lambda f: (f / "more.safetensors").write_bytes(b"1"), "more.safetensors is not listed"),
    ],
    ids=["altered below", "removed", "checksums cut", "checksums of another form", "weights added"],
)
def test_damage_is_described_with_the_file(tmp_path: Path, harm: Callable[[Path], Any], said: str) -> None:
    folder = make_checkpoint(tmp_path, 2)
    harm(folder)
    assert (damage(folder, cached=False) or "").startswith(said)


class _Quick(Trainer):
    """A trainer of one weight, whose gradient is always one."""

    guard = SimpleNamespace(check_weights=lambda: None)
    depends_on: ClassVar[dict[str, Any]] = {}

    def compute_loss(self, model: nn.Module, inputs: Any, *_: Any, **__: Any) -> Any:
        return sum(parameter.sum() for parameter in model.parameters())


def quick_trainer(run: Path, model: Any = None, keep: int | None = None) -> _Quick:
    args = TrainingArguments(
        output_dir=str(run), max_steps=4, save_steps=1, report_to="none", use_cpu=True, disable_tqdm=True,
        remove_unused_columns=False, per_device_train_batch_size=1,
    )  # fmt: skip
    trainer = _Quick(model or nn.Linear(1, 1), args, train_dataset=[{"x": 1.0}] * 4)
    trainer.add_callback(WholeCheckpoints(trainer, keep))
    return trainer


def save_model(trainer: Trainer, folder: Path) -> None:
    save_model_whole(trainer, folder, lambda aside: trainer.save_model(aside, _internal_call=True))


@pytest.mark.parametrize("keep", [1, 2, None])
def test_old_checkpoints_go_when_new_are_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int | None
) -> None:
    seen: list[list[str]] = []
    original = checkpoints.seal_checkpoint

    def sealing(folder: Path, depends_on: Any) -> None:
        assert last_checkpoint(tmp_path) is not None or folder.name == "checkpoint-1"
        seen.append([path.name for path in checkpoints_of(tmp_path)])
        original(folder, depends_on)

    monkeypatch.setattr(checkpoints, "seal_checkpoint", sealing)
    quick_trainer(tmp_path, keep=keep).train()
    names = [f"checkpoint-{step}" for step in (4, 3, 2, 1)]
    assert [path.name for path in checkpoints_of(tmp_path)] == names[:keep]
    assert seen == [names[4 - step :][:keep] for step in range(4)], (
        "while a new one is written, the old ones are there"
    )
    for folder in checkpoints_of(tmp_path):
        assert damage(folder, cached=False) is None
        listed = set(json.loads((folder / "checksums.json").read_text())["files"])
        assert listed == {path.name for path in folder.iterdir()} - {"checksums.json"}
        assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"} <= listed


def test_damaged_checkpoints_of_later_steps_do_not_outlive_the_next_save(tmp_path: Path) -> None:
    quick_trainer(tmp_path).train()
    for step in (3, 4):
        _flip(tmp_path / f"checkpoint-{step}" / "model.safetensors")
    found = last_checkpoint(tmp_path)
    assert found == tmp_path / "checkpoint-2"
    # One checkpoint of its own, at step 3: were 4 left, the next resumption would have to pass over it again.
    trainer = quick_trainer(tmp_path, keep=2)
    trainer.args.max_steps = 3
    trainer.train(resume_from_checkpoint=str(found))
    assert [path.name for path in checkpoints_of(tmp_path)] == ["checkpoint-3", "checkpoint-2"]
    assert damage(tmp_path / "checkpoint-3", cached=False) is None


@pytest.mark.parametrize(
    ("keep", "left"), [(None, [6, 5, 4, 3, 2, 1]), (4, [6, 5, 4, 3]), (3, [6, 4, 3]), (2, [4, 3]), (1, [4])]
)
def test_checkpoints_of_later_steps_count_as_older(tmp_path: Path, keep: int | None, left: list[int]) -> None:
    for step in (1, 5, 6):
        make_checkpoint(tmp_path, step)
    quick_trainer(tmp_path / "other").train()
    (tmp_path / "other" / "checkpoint-2").rename(tmp_path / "checkpoint-2")
    quick_trainer(tmp_path, keep=keep).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [path.name for path in checkpoints_of(tmp_path)] == [f"checkpoint-{step}" for step in left]


def test_an_interrupted_save_leaves_no_checkpoint_and_the_next_one_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save_rng_state", lambda *_: (_ for _ in ()).throw(OSError("broken")))
        with pytest.raises(OSError, match="broken"):
            quick_trainer(tmp_path).train()
    assert not checkpoints_of(tmp_path)
    assert last_checkpoint(tmp_path) is None
    assert "checkpoint-1: checksums.json is missing, so its save was interrupted" in capsys.readouterr().err
    (tmp_path / "checkpoint-1" / "stale").touch()
    quick_trainer(tmp_path).train()
    assert not (tmp_path / "checkpoint-1" / "stale").exists()
    assert len(checkpoints_of(tmp_path)) == 4


def test_a_model_that_was_moved_in_half_is_not_taken_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = quick_trainer(tmp_path, model=tiny_model())
    save_model(trainer, tmp_path)
    moved = sorted(path.name for path in tmp_path.iterdir())
    assert {"config.json", "model.safetensors"} <= set(moved)
    assert resolve_name(str(tmp_path)) == str(tmp_path)
    replace, half = os.replace, tmp_path / "half"
    for count in range(len(moved)):
        half = tmp_path / f"half-{count}"
        left = count

        def stopping(source: Any, target: Any) -> None:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            replace(source, target)

        trainer = quick_trainer(half, model=tiny_model())
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", stopping)
            with pytest.raises(KeyboardInterrupt):
                save_model(trainer, half)
        with pytest.raises(UserError, match="contains no model"):
            resolve_name(str(half))


def test_a_full_disk_is_explained_and_another_error_is_left_as_it_is(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 2)
    (tmp_path / "checkpoint-4").mkdir()  # not sealed yet
    trainer = SimpleNamespace(state=SimpleNamespace(global_step=4))
    with pytest.raises(OSError, match="Permission"), explaining_full_disk(trainer, tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied")
    assert (tmp_path / "checkpoint-4").exists()
    expected = "the disk is full, so step 4 could not be saved.*the last checkpoint, checkpoint-2, is whole"
    with pytest.raises(ProcessError, match=expected), explaining_full_disk(trainer, tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]
