"""Whole checkpoints: written aside, sealed with checksums, renamed when complete, verified before they are used.

Unusual here: a `checkpoint-N` folder comes into being by one rename, after every process has written its part and
every file is on the disk, so a run that is killed at any moment leaves the checkpoints it had. What a disk does to
them later is found by the checksums.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import EarlyStoppingCallback, Trainer

from d2e_sft.util.errors import ProcessError
from d2e_sft.util.files import is_disk_full, sha256_of, sync, write_whole

# Not `checkpoint-…`: neither we nor transformers' own search may take it for one.
ASIDE = ".saving"
CHECKSUMS_FILE = "checksums.json"
# A folder without these is no model to anything that loads one, so they are moved in last.
_MODEL_MARKS = ("config.json", "adapter_config.json")
_NAME = re.compile(r"checkpoint-[0-9]+")
_HASHING_THREADS = 8


def checkpoints_of(run: Path) -> list[Path]:
    """The run's `checkpoint-N` folders, newest first, whole or not."""
    folders = [path for path in run.glob("checkpoint-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=_step, reverse=True)


def seal(checkpoint: Path) -> None:
    """Put every file of a finished checkpoint on the disk, and size and SHA-256 of each into `checksums.json`."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != CHECKSUMS_FILE)
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:  # hashing leaves the interpreter lock to the other threads
        digests = list(pool.map(_sync_and_hash, files))
    sums = {
        path.relative_to(checkpoint).as_posix(): {"bytes": path.stat().st_size, "sha256": digest}
        for path, digest in zip(files, digests, strict=True)
    }
    write_whole(checkpoint / CHECKSUMS_FILE, json.dumps(sums, indent=1) + "\n")
    # A file's entry in its folder is the folder's content: without it a power cut leaves the file nowhere.
    for folder in sorted((path for path in checkpoint.rglob("*") if path.is_dir()), reverse=True):
        sync(folder)
    sync(checkpoint)


def verify_checkpoint(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, in one line that names the file; None where it is whole.

    Without `checksums.json` nothing can be said for it, so it counts as cut off. Files that were added later (an
    evaluation's) are no damage.
    """
    try:
        sums: dict[str, dict[str, Any]] = json.loads((checkpoint / CHECKSUMS_FILE).read_text(encoding="utf-8"))
        expected = {checkpoint / name: (int(entry["bytes"]), str(entry["sha256"])) for name, entry in sums.items()}
    except FileNotFoundError:
        return f"{CHECKSUMS_FILE} is missing"
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        return f"{CHECKSUMS_FILE} is not readable ({error})"
    # All sizes before the first hash: most damage is a file cut short, and that is found at once.
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
    """Remove what an interrupted save left aside."""
    shutil.rmtree(run / ASIDE, ignore_errors=True)


class AtomicCheckpoints(Trainer):
    """A Trainer whose checkpoints are whole or absent, and whose resumed steps equal the uninterrupted run's.

    Several machines must share the run folder: the main process moves what all of them wrote.
    """

    _aside: Path | None = None

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write model and tokenizer aside and move them in, the file that makes the folder a model last."""
        if _internal_call:  # a part of a checkpoint, which is written aside as a whole
            super().save_model(output_dir, _internal_call=True)
            return
        target = Path(output_dir or self.args.output_dir)
        with self._written_aside(target) as aside:
            model = aside / "model"
            super().save_model(str(model), _internal_call=True)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                _move_model(model, target)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        run = Path(self._get_output_dir(trial))
        name = f"checkpoint-{self.state.global_step}"
        with self._written_aside(run) as aside:
            self._aside = aside
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._aside = None
            self.accelerator.wait_for_everyone()  # each process writes its own part: random state, shards
            best = self._best_after_saving(run, name)
            if self.args.should_save:
                if best is not None:  # the folder aside is what was known of it
                    self.state.save_to_json(str(aside / name / "trainer_state.json"))
                seal(aside / name)
                _move_checkpoint(aside / name, run / name)
                _rotate(run, newest=run / name, keep=self.args.save_total_limit, best=best)

    def _best_after_saving(self, run: Path, name: str) -> Path | None:
        """The checkpoint of the best evaluation, where there is one, with the one under way in its later place."""
        if self.state.best_global_step:
            best = run / f"checkpoint-{self.state.best_global_step}"
            if best.name == name or best.is_dir():
                self.state.best_model_checkpoint = str(best)
        return Path(self.state.best_model_checkpoint) if self.state.best_model_checkpoint else None

    def _get_output_dir(self, trial: Any) -> str:
        # Read by the Trainer's own saving and rotation: while saving, both see the folder aside and nothing else.
        return str(self._aside) if self._aside else str(super()._get_output_dir(trial))

    @contextmanager
    def _written_aside(self, folder: Path) -> Iterator[Path]:
        if self.args.should_save:
            remove_leftovers(folder)
        self.accelerator.wait_for_everyone()
        try:
            yield folder / ASIDE
        except Exception as error:
            if not is_disk_full(error, folder):
                raise
            remove_leftovers(folder)  # some of what filled the disk
            raise _no_room(folder, self.state.global_step, error) from error
        if self.args.should_save:
            remove_leftovers(folder)
        self.accelerator.wait_for_everyone()

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # The Trainer looks at max_steps only after a step: a run that had taken its last one would take one more.
        if self.state.global_step >= self.state.max_steps or self._stopped_early():
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def _stopped_early(self) -> bool:
        """Whether a resumed run had stopped for want of progress."""
        return any(
            isinstance(callback, EarlyStoppingCallback)
            and callback.early_stopping_patience_counter >= callback.early_stopping_patience
            for callback in self.callback_handler.callbacks
        )


def _no_room(run: Path, step: int, error: Exception) -> ProcessError:
    disk, said = shutil.disk_usage(run), str(error).strip().split("\n")[0][:120]
    kept = checkpoints_of(run)
    return ProcessError(
        f"{run}: the disk is full, so what was trained up to step {step} could not be saved ({said}); "
        f"{disk.free / 2**20:,.0f} of {disk.total / 2**20:,.0f} MiB are free now, and the last checkpoint, "
        f"{kept[0].name if kept else 'none yet'}, is whole",
        remedy="make room, then go on with --resume; train.save_total_limit keeps fewer checkpoints",
    )


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _sync_and_hash(path: Path) -> str:
    sync(path)
    return sha256_of(path)


def _move_checkpoint(source: Path, target: Path) -> None:
    sync(source)
    if target.exists():  # a damaged one, which the run was resumed before
        os.replace(target, source.with_name("replaced"))
    os.replace(source, target)
    sync(target.parent)


def _move_model(source: Path, target: Path) -> None:
    files = sorted(source.iterdir(), key=lambda path: (path.name in _MODEL_MARKS, path.name))
    for path in files:
        place = target / path.name
        if place.is_dir():
            shutil.rmtree(place)
        sync(path)
        os.replace(path, place)
    sync(target)


def _rotate(run: Path, *, newest: Path, keep: int | None, best: Path | None = None) -> None:
    """Keep the newest checkpoints, the best one among them whatever its age.

    Those of later steps were found damaged when the run was resumed.
    """
    folders = checkpoints_of(run)
    place = folders.index(newest)
    earlier = folders[place + 1 :]
    if keep and best in earlier:
        earlier, keep = [folder for folder in earlier if folder != best], max(keep - 1, 1)
    surplus = earlier[keep - 1 :] if keep else []
    for path in [*folders[:place], *surplus]:
        # Moved before it is removed, so that a kill in between leaves no half of it.
        aside = run / ASIDE / f"old-{path.name}"
        os.replace(path, aside)
        shutil.rmtree(aside)
