"""Extract one file from a zip or tar archive.

A member without a folder in its name is found in any folder of the archive. Only the named member is read, and the
caller names the target. Paths inside the archive decide nothing, so an archive that was tampered with cannot write
anywhere else.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import most_unpacked, replacing

_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError)
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


class DamagedArchiveError(UserError):
    """The archive cannot be read, or lacks what it should hold; another copy may have it."""


def extract_member(archive: Path, member: str, target: Path, *, largest: int | None = None) -> None:
    """Write the archive's file `member` to `target`, all of it or nothing.

    Args:
        largest: bytes that the archive may unpack to; None for the limit of `most_unpacked`.

    Raises:
        DamagedArchiveError: the archive is damaged, lacks the file, or the file is too large, a link or a folder.
        UserError: the target cannot be written.
    """
    try:
        with replacing(target) as partial, partial.open("wb") as out:
            for chunk in _unpacked(archive, member, most_unpacked(archive) if largest is None else largest):
                out.write(chunk)
    except OSError as error:  # from the target; the archive's errors are DamagedArchiveError
        remedy = "make room, or set D2E_CACHE to another folder"
        raise UserError(f"{target}: cannot be written ({error.strerror})", remedy) from None


def _unpacked(archive: Path, member: str, largest: int) -> Iterator[bytes]:
    try:
        with archive.open("rb") as source:
            start = source.read(5)
        for opener in (opener for magic, opener in _OPENERS.items() if start.startswith(magic)):
            # To the end, where the checksum is: a tar reader stops before it.
            with opener(archive) as whole:
                for _ in _limited(whole, archive, largest):
                    pass
        with _opened(archive, member) as source:
            yield from _limited(source, archive, largest)
    except _DAMAGE as error:
        why = f"{type(error).__name__}: {error}"
        raise DamagedArchiveError(f"{archive}: cannot be unpacked ({why})", "download it again") from None


def _limited(source: IO[bytes], archive: Path, largest: int) -> Iterator[bytes]:
    read = 0
    while chunk := source.read(1 << 20):
        read += len(chunk)
        if read > largest:
            raise DamagedArchiveError(
                f"{archive}: unpacks to more than {largest:,} bytes; expected a raw file", remedy="download it again"
            )
        yield chunk


@contextmanager
def _opened(archive: Path, member: str) -> Iterator[IO[bytes]]:
    with ExitStack() as stack:
        if zipfile.is_zipfile(archive):
            zipped = stack.enter_context(zipfile.ZipFile(archive))
            names = zipped.namelist()
            member = _place(member, names)
            source = zipped.open(member) if member in names else None
        else:
            tarred = stack.enter_context(tarfile.open(archive))
            names = tarred.getnames()
            member = _place(member, names)
            source = tarred.extractfile(member) if member in names and tarred.getmember(member).isreg() else None
        if member not in names:
            shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
            hint = did_you_mean(member, names)
            raise DamagedArchiveError(f"{archive}: has no file {member}; it has {shown}.{hint}")
        if source is None:
            raise DamagedArchiveError(f"{archive}: {member} is a link or a folder; expected a regular file")
        yield stack.enter_context(source)


def _place(member: str, names: Sequence[str]) -> str:
    """Return the member's name in the archive: with its folder if only the file is named and one folder has it."""
    inside = [name for name in names if name.endswith(f"/{member}")]
    return inside[0] if len(inside) == 1 and "/" not in member and member not in names else member
