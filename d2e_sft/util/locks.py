"""Locks on folders that end with the process that holds them."""

import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError

LOCK_FILE = ".lock"


@contextmanager
def file_lock(
    folder: Path,
    owner: str,
    remedy: str,
    in_main: Callable[[Callable[[], Any]], Any] | None = None,
    patience: float = 0.0,
) -> Iterator[int]:
    """Hold the folder's lock and yield its descriptor. The folder is made, and removed if it stays empty.

    The operating system releases the lock when the process ends, and all processes that inherited the descriptor. So a
    crash leaves at most the file. On a file system without locks nothing is locked. Raises UserError if another
    process holds the lock.

    Args:
        owner: The work that holds the lock.
        remedy: What a second process should do.
        in_main: Calls a function in the main process, which holds the lock for all processes.
        patience: Seconds to wait for the lock.
    """
    with ExitStack() as stack:

        def enter() -> int:
            return stack.enter_context(_lock(folder, owner, remedy, patience))

        yield enter() if in_main is None else in_main(enter)


@contextmanager
def _lock(folder: Path, owner: str, remedy: str, patience: float) -> Iterator[int]:
    created = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    descriptor = _acquire(path, owner, remedy, time.monotonic() + patience)
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode())
        yield descriptor
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)
        with suppress(OSError):  # a folder with content stays
            for place in created:
                place.rmdir()


def _acquire(path: Path, owner: str, remedy: str, deadline: float) -> int:
    while True:
        if path.is_symlink():
            path.unlink(missing_ok=True)  # no lock of ours, and its target would be emptied
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode(errors="replace").strip() or "unknown process"
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise UserError(f"{path.parent}: {owner} is at work there ({holder})", remedy) from None
            time.sleep(0.1)
            continue
        except OSError:
            pass  # a file system without locks
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)  # its holder ended and removed the file before we locked it


@contextmanager
def turn_in(folder: Path) -> Iterator[None]:
    """Wait until no other process or thread is in such a block for the folder, and hold it. It is made."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def temporary_folder(parent: Path, prefix: str, is_leftover: Callable[[Path], bool] = Path.is_dir) -> Iterator[Path]:
    """Yield a new folder in `parent` that is locked while it is in use, and removed at the end.

    Those that killed processes left are removed first: their locks are free. `parent` is made. `is_leftover` says
    whether a folder with such a name may be removed.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"{glob.escape(prefix)}*"):
        with suppress(OSError), _folder_lock(left):  # OSError: in use, or a file system without locks
            if is_leftover(left):
                shutil.rmtree(left, ignore_errors=True)
    with ExitStack() as stack:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            try:
                stack.enter_context(_folder_lock(folder))
            except (BlockingIOError, FileNotFoundError):
                continue  # another process took it for a leftover, since it was not locked yet
            except OSError:
                pass  # a file system without locks
            break
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Lock the folder itself; raises OSError if that is impossible, another process has the lock or it is gone."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.stat()
        yield
    finally:
        os.close(descriptor)
