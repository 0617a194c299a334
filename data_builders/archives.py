"""One file out of a zip or tar archive.

Only the named member is read, and it is written where the caller says: the paths inside an archive never decide
where anything lands, so an archive that was tampered with cannot write outside the target.
"""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from d2e_sft.errors import UserError, did_you_mean

_CHUNK = 1 << 20
_LARGEST = 4 << 30  # bytes; far above any raw file, far below what an archive bomb unpacks to


def extract_member(archive: Path, member: str, target: Path, *, largest: int = _LARGEST) -> None:
    """Write the archive's file `member` to `target`, whole or not at all.

    Raises:
        UserError: the archive is damaged, lacks the file, or the file is larger than `largest` bytes or no file.
    """
    partial = target.with_name(target.name + ".partial")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _opened(archive, member) as source, partial.open("wb") as out:
            written = 0
            while chunk := source.read(_CHUNK):
                written += len(chunk)
                if written > largest:
                    raise UserError(f"{archive}: {member} unpacks to more than {largest:,} bytes; expected a raw file")
                out.write(chunk)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, RuntimeError) as error:
        partial.unlink(missing_ok=True)
        raise UserError(
            f"{archive}: cannot be unpacked ({type(error).__name__}: {error})",
            remedy="get it again",
        ) from None
    except UserError:
        partial.unlink(missing_ok=True)
        raise
    partial.replace(target)


@contextmanager
def _opened(archive: Path, member: str) -> Iterator[IO[bytes]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            if member not in zipped.namelist():
                raise _absent(archive, member, zipped.namelist())
            with zipped.open(member) as source:
                yield source
        return
    with tarfile.open(archive) as tarred:
        if member not in tarred.getnames():
            raise _absent(archive, member, tarred.getnames())
        info = tarred.getmember(member)
        opened = tarred.extractfile(info) if info.isreg() else None
        if opened is None:
            raise UserError(f"{archive}: {member} is no regular file (a link or a folder); expected a raw file")
        with opened as source:
            yield source


def _absent(archive: Path, member: str, names: list[str]) -> UserError:
    shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
    return UserError(f"{archive}: holds no file {member}; it holds {shown}.{did_you_mean(member, names)}")
