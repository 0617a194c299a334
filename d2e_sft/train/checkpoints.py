"""Whole checkpoints: sealed with checksums once complete, and verified before they are used.

Unusual here: a `checkpoint-N` folder counts only with `checksums.json`, which is written last, when every process has
written its part and every file is on the disk. Older checkpoints are removed after that, so a run that is killed at
any moment keeps the checkpoints it had. The checksums also reveal later damage by the disk.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from d2e_sft.util.errors import ProcessError, UserError
from d2e_sft.util.files import is_disk_full, sha256_of, sync, write_whole

ASIDE = ".saving"  # folder in which a model is written before it is moved into its place
CHECKSUMS_FILE = "checksums.json"
# Loaders recognise a model by these files, so they are moved in last.
_MODEL_MARKS = ("config.json", "adapter_config.json")
_NAME = re.compile(r"checkpoint-[0-9]+")
_HASHING_THREADS = 8


def checkpoints_of(run: Path, *, sealed: bool = True) -> list[Path]:
    """The run's `checkpoint-N` folders, newest first: the sealed ones, damaged or not, or those never sealed."""
    return [path for path in _folders(run) if (path / CHECKSUMS_FILE).is_file() is sealed]


def seal(checkpoint: Path) -> None:
    """Sync every file of a complete checkpoint to disk, and write size and SHA-256 of each to `checksums.json`."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != CHECKSUMS_FILE)
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:  # hashing leaves the interpreter lock to the other threads
        list(pool.map(sync, files))
        digests = list(pool.map(sha256_of, files))
    sums = {
        path.relative_to(checkpoint).as_posix(): {"bytes": path.stat().st_size, "sha256": digest}
        for path, digest in zip(files, digests, strict=True)
    }
    write_whole(checkpoint / CHECKSUMS_FILE, json.dumps(sums, indent=1) + "\n")
    # A folder lists its files: unless it is synced too, a power cut can lose them.
    for folder in sorted((path for path in checkpoint.rglob("*") if path.is_dir()), reverse=True):
        sync(folder)
    sync(checkpoint)


def verify_checkpoint(checkpoint: Path) -> str | None:
    """Describe the damage to a checkpoint in one line that names the file; None if it is whole.

    Files that were added after sealing, such as an evaluation's, are ignored.
    """
    try:
        sums: dict[str, dict[str, Any]] = json.loads((checkpoint / CHECKSUMS_FILE).read_text(encoding="utf-8"))
        expected = {checkpoint / name: (int(entry["bytes"]), str(entry["sha256"])) for name, entry in sums.items()}
    except FileNotFoundError:
        return f"{CHECKSUMS_FILE} is missing"
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        return f"{CHECKSUMS_FILE} is not readable ({error})"
    # Sizes first: most damage is a truncated file, and comparing sizes takes no time.
    for path, (size, _) in expected.items():
        name = path.relative_to(checkpoint)
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} bytes; expected {size:,}"
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        for (path, (_, digest)), found in zip(expected.items(), pool.map(sha256_of, expected), strict=True):
            if found != digest:
                return f"{path.relative_to(checkpoint)} has SHA-256 {found[:16]}…; expected {digest[:16]}…"
    return None


def remove_leftovers(run: Path) -> None:
    """Remove what an interrupted save of the model left."""
    shutil.rmtree(run / ASIDE, ignore_errors=True)


class WholeCheckpoints(TrainerCallback):
    """Seals each checkpoint that the Trainer wrote, then removes surplus ones.

    The Trainer's own rotation must be off, since it removes old checkpoints before the new one is sealed. Several
    machines must share the run folder: the main process seals what all of them wrote.

    Args:
        trainer: its `guard` checks the weights before they are sealed.
        keep: how many of the newest are kept, the best one among them; None keeps all.
    """

    def __init__(self, trainer: Any, keep: int | None) -> None:
        self.trainer, self.keep = trainer, keep

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Clear the place of the checkpoint to come of a damaged or interrupted one."""
        if control.should_save:
            if args.should_save:
                _remove(_place(args, state))
            self.trainer.accelerator.wait_for_everyone()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Seal the new checkpoint, unless its weights are NaN or infinite.

        Raises:
            UserError: they are; nothing is left of the checkpoint.
        """
        checkpoint = _place(args, state)
        self.trainer.accelerator.wait_for_everyone()  # each process writes its own part: random state, shards
        try:
            self.trainer.guard.check_weights()
        except UserError:
            if args.should_save:
                _remove(checkpoint)
            raise
        if args.should_save:
            seal(checkpoint)
            sync(checkpoint.parent)
            best = Path(state.best_model_checkpoint) if state.best_model_checkpoint else None
            _rotate(checkpoint, self.keep, best)
        self.trainer.accelerator.wait_for_everyone()


@contextmanager
def explaining_full_disk(trainer: Any, run: Path) -> Iterator[None]:
    """Turn an error of a full disk into a message about what is kept, after freeing what the failed save took.

    Raises:
        ProcessError: the disk is full.
    """
    try:
        yield
    except Exception as error:
        if not is_disk_full(error, run):
            raise
        remove_leftovers(run)
        for checkpoint in checkpoints_of(run, sealed=False):
            _remove(checkpoint)
        disk, reason = shutil.disk_usage(run), str(error).strip().split("\n")[0][:120]
        last = next((path.name for path in checkpoints_of(run)), "none yet")
        raise ProcessError(
            f"{run}: the disk is full, so step {trainer.state.global_step} could not be saved ({reason}); "
            f"{disk.free / 2**20:,.0f} of {disk.total / 2**20:,.0f} MiB are free now; the last checkpoint, {last}, "
            "is whole",
            remedy="make room, then continue with --resume; train.save_total_limit keeps fewer checkpoints",
        ) from error


def save_model_whole(trainer: Any, target: Path, write: Callable[[str], None]) -> None:
    """Write model and tokenizer aside and move them in; the file that makes the folder a model comes last.

    Args:
        write: writes into a folder, as `Trainer.save_model` does; all processes call it.
    """
    if trainer.args.should_save:
        remove_leftovers(target)
    trainer.accelerator.wait_for_everyone()
    write(str(target / ASIDE / "model"))
    trainer.accelerator.wait_for_everyone()
    if trainer.args.should_save:
        _move_model(target / ASIDE / "model", target)
        remove_leftovers(target)
    trainer.accelerator.wait_for_everyone()


def _place(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _folders(run: Path) -> list[Path]:
    folders = [path for path in run.glob("checkpoint-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)


def _move_model(source: Path, target: Path) -> None:
    files = sorted(source.iterdir(), key=lambda path: (path.name in _MODEL_MARKS, path.name))
    for path in files:
        place = target / path.name
        if place.is_dir():
            shutil.rmtree(place)
        sync(path)
        os.replace(path, place)
    sync(target)


def _rotate(newest: Path, keep: int | None, best: Path | None) -> None:
    """Keep the newest checkpoints, and the best one whatever its age.

    Those of later steps were found damaged, or not whole, when the run was resumed.
    """
    folders = _folders(newest.parent)
    place = folders.index(newest)
    earlier = folders[place + 1 :]
    if keep and best in earlier:
        earlier, keep = [folder for folder in earlier if folder != best], max(keep - 1, 1)
    for path in [*folders[:place], *(earlier[keep - 1 :] if keep else [])]:
        _remove(path)


def _remove(checkpoint: Path) -> None:
    """Remove the seal first, so that a kill in between leaves nothing that counts as a checkpoint."""
    (checkpoint / CHECKSUMS_FILE).unlink(missing_ok=True)
    shutil.rmtree(checkpoint, ignore_errors=True)
