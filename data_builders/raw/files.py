"""Find the raw files of a source in the user's folder, or download the official ones to the cache.

A download is complete or absent. It goes to `<name>.partial`, which a later run resumes with an HTTP Range request. It
is renamed after its checksum was verified, and verified again whenever the cached file is used. A file without a
checksum is resumed only if its ETag is still the same. `pooch` cannot resume, and `huggingface_hub` only downloads
from the Hub.

Paths inside an archive decide nothing, so an archive that was tampered with cannot write anywhere else.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import urlsplit

import httpx

from d2e_sft.data.sample import Split
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import most_unpacked, replacing, sha256_of
from d2e_sft.util.paths import cache_dir
from d2e_sft.util.progress import Progress
from data_builders.raw.reader import check_is_data
from data_builders.raw.source import FoundFile, Input, RawFile, Source

_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
_ATTEMPTS = 3
_CHUNK = 1 << 16
_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError)
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


class MissingRawFileError(UserError):
    """Raw files are neither in the user's folder nor downloadable."""

    @classmethod
    def of(cls, errors: Sequence[UserError]) -> MissingRawFileError:
        """Return one error that names all files."""
        return cls(errors[0].message, errors[0].remedy) if len(errors) == 1 else cls("\n".join(map(str, errors)))


@dataclass(frozen=True)
class Located:
    """The files that a source needs for some splits, and errors for missing ones, both by the input's key."""

    source: Source
    files: dict[str, FoundFile] = field(default_factory=dict)
    missing: dict[str, MissingRawFileError] = field(default_factory=dict)

    def of(self, splits: Collection[Split]) -> dict[str, FoundFile]:
        """Return the files of the inputs that the splits need; MissingRawFileError names all that are missing."""
        keys = [item.key for item in self.source.inputs if set(item.splits) & set(splits)]
        if errors := [self.missing[key] for key in keys if key in self.missing]:
            raise MissingRawFileError.of(errors)
        return {key: self.files[key] for key in keys}

    def substitutes(self, split: Split) -> list[str]:
        """Return a line for each file that replaces official ones of the split, with how it differs."""
        replaced: dict[RawFile, list[str]] = {}
        for item in self.source.inputs:
            used = self.files.get(item.key)
            if split in item.splits and used is not None and used.file.substitute:
                official = item.candidates[0]
                replaced.setdefault(used.file, []).extend([official.name] if official is not used.file else [])
        lines = []
        for file, names in replaced.items():
            more = f"{names[0]} and {len(names) - 1} more are not here; " if len(names) > 1 else ""
            absent = more or "".join(f"{name} is not here; " for name in names)
            lines.append(f"{absent}{file.name} is read: {file.substitute}")
        return lines


def locate_files(
    source: Source, splits: Collection[Split], raw: Path | None, chosen: Mapping[str, str] | None = None
) -> Located:
    """Find or download the files of the inputs that the splits need.

    Args:
        raw: folder with `<dataset>/<file>`; None downloads.
        chosen: the user's choices among the candidates of an input, by input key.
    """
    if raw is not None and source.own is None and not raw.is_dir():
        raise UserError(f"--raw {raw}: no such folder; expected a folder with raw files as DATASET/FILE")
    located = Located(source)
    for item in source.inputs:
        if set(item.splits) & set(splits):
            try:
                located.files[item.key] = _find(source, item, raw, (chosen or {}).get(item.key))
            except MissingRawFileError as error:
                located.missing[item.key] = error
    return located


def _find(source: Source, item: Input, raw: Path | None, name: str | None) -> FoundFile:
    candidates = item.candidates
    if name is not None:
        names = [file.name for file in candidates]
        if name not in names:
            raise UserError(
                f"{source.name}.{item.key}_file={name}: no such file of {source.name}; "
                f"expected one of {', '.join(names)}.{did_you_mean(name, names)}"
            )
        candidates = (candidates[names.index(name)],)
    if candidates[0].own is not None:
        return FoundFile(candidates[0], candidates[0].own)
    if raw is None:
        file = next((file for file in candidates if file.url), candidates[0])
        try:
            return FoundFile(file, fetch(source.raw_folder, file))
        except UserError as error:
            files = (f for f in item.candidates if f.url and f.substitute and f is not file)
            hints = [f". Or add {source.name}.{item.key}_file={f.name}, which reads {f.substitute}" for f in files]
            raise MissingRawFileError(error.message, remedy="".join([str(error.remedy), *hints])) from None
    for file in candidates:
        path = raw / source.raw_folder / file.name
        if path.is_file():
            return FoundFile(file, path)
    raise MissingRawFileError(
        f"{raw / source.raw_folder / candidates[0].name}: no such file; expected a raw file of {source.name} "
        f"({' or '.join(file.name for file in candidates)}), which its {' and '.join(item.splits)} rows need",
        remedy=how_to_get(source.raw_folder, candidates[0])
        + (", or drop --raw and let the builder download it" if candidates[0].url else ""),
    )


# Downloads


class DamagedFileError(UserError):
    """A download cannot be read, lacks what it should hold, or is not the published one; another copy may be right."""


def fetch(folder: str, file: RawFile) -> Path:
    """Return the path of an official file in the cache; download and unpack it if needed. UserError if this fails.

    `folder` is the dataset's folder in the cache and in `--raw`.
    """
    if not file.url:
        raise UserError(f"{folder}/{file.name}: has no address to download it from", remedy=how_to_get(folder, file))
    target = cached_path(folder, file)
    if target.is_file():
        if not file.sha256 or sha256_of(target) == file.sha256:
            return target
        target.unlink()  # damaged after the download
    address = PurePosixPath(urlsplit(file.url).path)
    delivered = _home(folder, file) / "archives" / address.name if file.member else target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        delivered.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{target.parent}: cannot be made ({error.strerror}); expected a folder for downloads",
            remedy="set D2E_CACHE to a folder that can be written",
        ) from None
    if not delivered.is_file():
        _download(folder, file, delivered)
    if file.member:
        try:
            extract_member(delivered, file.member, target)
            _check(folder, file, target)
        except DamagedFileError:
            delivered.unlink()  # so that the next run downloads it again
            raise
    return target


def cached_path(folder: str, file: RawFile) -> Path:
    """Return the path where `fetch` puts a file; it may not exist yet."""
    return _home(folder, file) / file.name


def _home(folder: str, file: RawFile) -> Path:
    return cache_dir() / "raw" / folder / (file.commit[:12] or "unversioned")


def how_to_get(folder: str, file: RawFile) -> str:
    inside = f" (it is {file.member} in that archive)" if file.member else ""
    steps = file.by_hand or f"download it from {file.url}{inside} on a machine that can"
    return f"{steps}; save it as DIR/{folder}/{file.name}, and pass --raw DIR"


def _check(folder: str, file: RawFile, path: Path) -> None:
    """Remove the file and raise DamagedFileError if it has another checksum than the published one."""
    if not file.sha256 or (digest := sha256_of(path)) == file.sha256:
        return
    size = path.stat().st_size
    path.unlink()
    origin = f"{file.member} in {file.url}" if file.member else file.url
    raise DamagedFileError(
        f"{origin}: got {size:,} bytes with SHA-256 {digest}; expected {file.bytes:,} bytes with {file.sha256}",
        remedy="run again; if it recurs, a proxy alters the download, or the publisher changed the file. By hand: "
        + how_to_get(folder, file),
    )


def _download(folder: str, file: RawFile, target: Path) -> None:
    """Complete the `.partial` file, check it and rename it; a broken connection is resumed."""
    partial = target.with_name(target.name + ".partial")
    etag = target.with_name(target.name + ".etag")
    for left in reversed(range(_ATTEMPTS)):
        try:
            _resume(file, partial, etag, title=f"{folder}/{target.name}")
            break
        except httpx.HTTPError as error:
            answer = error.response if isinstance(error, httpx.HTTPStatusError) else None
            if left and (answer is None or answer.status_code >= 500):
                continue
            why = f"cannot be downloaded ({type(error).__name__}: {error}) after {_ATTEMPTS} attempts; "
            why += f"{_size_of(partial):,} bytes are here and the next run resumes there"
            if answer is not None:
                why = f"the server answered {answer.status_code} {answer.reason_phrase}"
            raise UserError(f"{file.url}: {why}", remedy=f"by hand: {how_to_get(folder, file)}") from None
    if not file.member:
        with partial.open("rb") as source:
            start = source.read(512)
        try:
            if not start.strip():
                raise UserError(f"{file.url}: the file is empty; expected data", remedy=how_to_get(folder, file))
            check_is_data(partial, start)
        except UserError:
            partial.unlink()  # a web page, or nothing: do not resume it
            raise
        _check(folder, file, partial)
    partial.replace(target)
    etag.unlink(missing_ok=True)


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _resume(file: RawFile, partial: Path, tag: Path, title: str) -> None:
    """Append what `partial` lacks, or write it again if the server cannot continue or has another file now."""
    size = file.bytes if file.sha256 and not file.member else 0  # known only together with the checksum
    have, etag = _size_of(partial), tag.read_text(encoding="utf-8") if tag.is_file() else ""
    if size and have == size:
        return
    if not (have < size if size else etag):
        partial.unlink(missing_ok=True)
        have = 0
    headers = {"Accept-Encoding": "identity"}  # a compressed body cannot be resumed at a byte of the file
    if have:
        headers |= {"Range": f"bytes={have}-"} | ({} if size else {"If-Range": etag})
    with httpx.stream("GET", file.url, headers=headers, timeout=_TIMEOUT, follow_redirects=True) as answer:
        if have and answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # it was complete when the last run ended
        answer.raise_for_status()
        # A server that ignores the range, or has another file now, sends the whole file with 200.
        resumed = answer.status_code == httpx.codes.PARTIAL_CONTENT
        tag.unlink(missing_ok=True)
        if not (etag := answer.headers.get("ETag", "W/")).startswith("W/"):  # a weak tag is that of similar bytes
            tag.write_text(etag, encoding="utf-8")
        bar = Progress(total=size or None, initial=have if resumed else 0, desc=title, unit="B", unit_scale=True)
        with partial.open("ab" if resumed else "wb") as out, bar:
            for chunk in answer.iter_bytes(_CHUNK):
                out.write(chunk)
                bar.update(len(chunk))


def extract_member(archive: Path, member: str, target: Path) -> None:
    """Write the file `member` of a zip or tar archive to `target`, all of it or nothing.

    A member without a folder in its name is found in any folder of the archive. DamagedFileError if the archive is
    damaged or lacks it, or if it is too large, a link or a folder.
    """
    try:
        with replacing(target) as partial, partial.open("wb") as out:
            for chunk in _unpacked(archive, member):
                out.write(chunk)
    except OSError as error:  # from the target; the archive's errors are DamagedFileError
        remedy = "make room, or set D2E_CACHE to another folder"
        raise UserError(f"{target}: cannot be written ({error.strerror})", remedy) from None


def _unpacked(archive: Path, member: str) -> Iterator[bytes]:
    try:
        with archive.open("rb") as source:
            start = source.read(5)
        for opener in (opener for magic, opener in _OPENERS.items() if start.startswith(magic)):
            # To the end, where the checksum is: a tar reader stops before it.
            with opener(archive) as whole:
                for _ in _limited(whole, archive):
                    pass
        with _opened(archive, member) as source:
            yield from _limited(source, archive)
    except _DAMAGE as error:
        why = f"{type(error).__name__}: {error}"
        raise DamagedFileError(f"{archive}: cannot be unpacked ({why})", "download it again") from None


def _limited(source: IO[bytes], archive: Path) -> Iterator[bytes]:
    """Yield the content in chunks; DamagedFileError if it is far larger than the archive (`most_unpacked`)."""
    read, most = 0, most_unpacked(archive)
    while chunk := source.read(1 << 20):
        read += len(chunk)
        if read > most:
            problem = f"{archive}: unpacks to more than {most:,} bytes; expected a raw file"
            raise DamagedFileError(problem, remedy="download it again")
        yield chunk


@contextmanager
def _opened(archive: Path, member: str) -> Iterator[IO[bytes]]:
    with ExitStack() as stack:
        kind = zipfile.ZipFile if zipfile.is_zipfile(archive) else tarfile.open
        opened: Any = stack.enter_context(kind(archive))
        names = opened.namelist() if isinstance(opened, zipfile.ZipFile) else opened.getnames()
        inside = [name for name in names if name.endswith(f"/{member}")]
        if len(inside) == 1 and "/" not in member and member not in names:
            member = inside[0]
        if member not in names:
            shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
            raise DamagedFileError(f"{archive}: has no file {member}; it has {shown}.{did_you_mean(member, names)}")
        if isinstance(opened, zipfile.ZipFile):
            source: Any = opened.open(member)
        else:
            source = opened.extractfile(member) if opened.getmember(member).isreg() else None
        if source is None:
            raise DamagedFileError(f"{archive}: {member} is a link or a folder; expected a regular file")
        yield stack.enter_context(source)
