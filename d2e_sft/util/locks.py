"""A lock on a folder that ends with the process that holds it, however that ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from d2e_sft.util.errors import UserError

LOCK_FILE = ".lock"


@contextmanager
def only_one(folder: Path, what: str, remedy: str) -> Iterator[None]:
    """Hold the folder's lock, a file in it that goes at the end; the folder is made, and goes if it stays empty.

    The operating system lets go of it when the process ends, so a crash leaves none behind: at most its file, which is
    no lock. On a file system without locks there is none.

    Args:
        what: is going on there, for the message.
        remedy: for whoever comes second.

    Raises:
        UserError: another process holds it; says which.
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode(errors="replace").strip()
            os.close(descriptor)
            raise UserError(f"{folder}: {what} is at work there ({holder or 'unknown process'})", remedy) from None
        except OSError:
            pass  # a file system without locks
        if _is_at(path, descriptor):
            break
        os.close(descriptor)  # its holder ended and removed the file before it was ours
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)
        with suppress(OSError):  # a folder that something was put into stays
            for place in made:
                place.rmdir()


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
