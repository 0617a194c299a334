"""One file out of a zip or tar archive.

Only the named member is read, and it is written where the caller says: the paths inside an archive never decide
where anything lands, so an archive that was tampered with cannot write outside the target.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import most_unpacked, replacing

_CHUNK = 1 << 20
_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError)
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


class DamagedArchiveError(UserError):
    """The archive cannot be read, or does not hold what it should; another copy may."""


def extract_member(archive: Path, member: str, target: Path, *, largest: int | None = None) -> None:
    """Write the archive's file `member` to `target`, whole or not at all.

    Args:
        largest: bytes that the archive may unpack to; None is what `most_unpacked` says.

    Raises:
        DamagedArchiveError: the archive is damaged, lacks the file, or it is larger or no file.
        UserError: the target cannot be written.
    """
    try:
        with replacing(target) as partial, partial.open("wb") as out:
            for chunk in _chunks(archive, member, most_unpacked(archive) if largest is None else largest):
                out.write(chunk)
    except OSError as error:  # of the target: what is wrong with the archive is a DamagedArchiveError
        raise UserError(
            f"{target}: cannot be written ({error.strerror})", remedy="make room, or set D2E_CACHE to another folder"
        ) from None


def _chunks(archive: Path, member: str, largest: int) -> Iterator[bytes]:
    try:
        _check_packed(archive, largest)
        with _opened(archive, member) as source:
            read = 0
            while chunk := source.read(_CHUNK):
                read += len(chunk)
                if read > largest:
                    raise _too_large(archive, member, largest)
                yield chunk
    except _DAMAGE as error:
        raise DamagedArchiveError(
            f"{archive}: cannot be unpacked ({type(error).__name__}: {error})", remedy="get it again"
        ) from None


def _check_packed(archive: Path, largest: int) -> None:
    """Read a packed tar to its end, where its checksum is: a tar reader stops before that, and knows no limit."""
    with archive.open("rb") as source:
        begun = source.read(5)
    opener = next((one for magic, one in _OPENERS.items() if begun.startswith(magic)), None)
    if opener is None:
        return
    read = 0
    with opener(archive) as whole:
        while chunk := whole.read(_CHUNK):
            read += len(chunk)
            if read > largest:
                raise _too_large(archive, "it", largest)


def _too_large(archive: Path, what: str, largest: int) -> DamagedArchiveError:
    return DamagedArchiveError(
        f"{archive}: {what} unpacks to more than {largest:,} bytes; expected a raw file", remedy="get it again"
    )


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
            raise DamagedArchiveError(
                f"{archive}: {member} is no regular file (a link or a folder); expected a raw file"
            )
        with opened as source:
            yield source


def _absent(archive: Path, member: str, names: list[str]) -> DamagedArchiveError:
    shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
    return DamagedArchiveError(f"{archive}: holds no file {member}; it holds {shown}.{did_you_mean(member, names)}")
