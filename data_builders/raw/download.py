"""Download official files to the cache: resumable, checked against the published checksum, complete or absent.

A file is written to `<name>.partial`, which a later run resumes with an HTTP Range request. It gets its name after its
checksum was verified, and the checksum is verified again whenever the cached file is used. A file without a published
checksum is resumed only if the server confirms by its ETag that it is still the same.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import httpx
from tqdm import tqdm

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of
from d2e_sft.util.paths import cache_dir
from data_builders.raw.archives import DamagedArchiveError, extract_member
from data_builders.raw.decoding import check_is_data
from data_builders.raw.source import RawFile

_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
_ATTEMPTS = 3
_CHUNK = 1 << 16


def fetch(folder: str, file: RawFile) -> Path:
    """Return the path of an official file in the cache; download and unpack it if needed.

    Args:
        folder: the dataset's folder in the cache and in `--raw`.

    Raises:
        UserError: the host cannot be reached, does not have the file, or sends something else.
    """
    home, target = _home(folder, file), cached_path(folder, file)
    if target.is_file():
        if not file.sha256 or sha256_of(target) == file.sha256:
            return target
        target.unlink()  # damaged after the download
    delivered = home / "archives" / PurePosixPath(urlsplit(file.url).path).name if file.member else target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        delivered.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{target.parent}: cannot be made ({error.strerror}); expected a folder for downloads",
            remedy="set D2E_CACHE to a folder that can be written",
        ) from None
    if not file.member:
        return _fetch_file(folder, file, target)
    if not delivered.is_file():
        download = _Download(file, delivered, folder)
        download.fill()
        download.finish()
    try:
        extract_member(delivered, file.member, target)
        if file.sha256:
            _check(file, target, folder)
    except (DamagedArchiveError, WrongChecksumError):
        delivered.unlink()  # so that the next run downloads it again
        raise
    return target


def cached_path(folder: str, file: RawFile) -> Path:
    """Return the path where `fetch` puts a file; it may not exist yet."""
    return _home(folder, file) / file.name


def _home(folder: str, file: RawFile) -> Path:
    return cache_dir() / "raw" / folder / (file.commit[:12] or "unversioned")


def _fetch_file(folder: str, file: RawFile, target: Path) -> Path:
    download = _Download(file, target, folder, size=file.bytes if file.sha256 else 0)
    partial = download.fill()
    try:
        check_is_data(partial)
    except UserError:
        partial.unlink()  # a web page, or nothing: do not resume it
        raise
    if file.sha256:
        _check(file, partial, folder)
    download.finish()
    return target


class WrongChecksumError(UserError):
    """A file differs from the published one."""


def _check(file: RawFile, path: Path, folder: str) -> None:
    """Remove the file and raise an error unless it has the published checksum."""
    if (found := sha256_of(path)) != file.sha256:
        size = path.stat().st_size
        path.unlink()
        what = f"{file.member} in {file.url}" if file.member else file.url
        raise WrongChecksumError(
            f"{what}: got {size:,} bytes with SHA-256 {found}; expected {file.bytes:,} bytes with {file.sha256}",
            remedy="run again; if it recurs, a proxy alters the download, or the publisher changed the file. "
            + _by_hand(folder, file),
        )


class _Download:
    """Downloads the address of a file to a target.

    Args:
        size: bytes of the whole file, if that and its checksum are known; else 0.
    """

    def __init__(self, file: RawFile, target: Path, folder: str, size: int = 0) -> None:
        self._url, self._target, self._size = file.url, target, size
        self._title, self._by_hand = f"{folder}/{target.name}", _by_hand(folder, file)
        self._partial = target.with_name(target.name + ".partial")
        self._etag = target.with_name(target.name + ".etag")

    def finish(self) -> None:
        """Rename the complete file to its target."""
        self._partial.replace(self._target)
        self._etag.unlink(missing_ok=True)

    def fill(self) -> Path:
        """Complete the `.partial` file and return it; a broken connection is resumed."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._continue()
                break
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                if status < 500 or attempt == _ATTEMPTS:
                    raise UserError(
                        f"{self._url}: the server answered {status} {error.response.reason_phrase}",
                        remedy=self._by_hand,
                    ) from None
            except httpx.HTTPError as error:
                if attempt == _ATTEMPTS:
                    whole = f" of {self._size:,}" if self._size else ""
                    raise UserError(
                        f"{self._url}: cannot be downloaded ({type(error).__name__}: {error}) after {_ATTEMPTS} "
                        f"attempts; {self._have():,}{whole} bytes are here and the next run resumes there",
                        remedy=self._by_hand,
                    ) from None
        return self._partial

    def _have(self) -> int:
        return self._partial.stat().st_size if self._partial.exists() else 0

    def _continue(self) -> None:
        have = self._have()
        if self._size and have == self._size:
            return
        etag = self._etag.read_text(encoding="utf-8") if self._etag.is_file() else ""
        if (self._size and have > self._size) or (not self._size and not etag):
            self._partial.unlink(missing_ok=True)
            have = 0
        # Identity, since a compressed body cannot be resumed at a byte of the file.
        headers = {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
            if not self._size:
                headers["If-Range"] = etag
        with httpx.stream("GET", self._url, headers=headers, timeout=_TIMEOUT, follow_redirects=True) as answer:
            if have and answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                return  # it was complete when the last run ended
            answer.raise_for_status()
            # A server that ignores the range, or has another file now, sends the whole file with 200.
            resumed = answer.status_code == httpx.codes.PARTIAL_CONTENT
            self._remember(answer.headers.get("ETag", ""))
            with (
                self._partial.open("ab" if resumed else "wb") as out,
                tqdm(
                    total=self._size or None,
                    initial=have if resumed else 0,
                    desc=self._title,
                    unit="B",
                    unit_scale=True,
                    disable=None,
                    leave=False,
                ) as progress,
            ):
                for chunk in answer.iter_bytes(_CHUNK):
                    out.write(chunk)
                    progress.update(len(chunk))

    def _remember(self, etag: str) -> None:
        """Keep a strong ETag; a weak one (`W/`) does not guarantee the same bytes."""
        if etag and not etag.startswith("W/") and not self._size:
            self._etag.write_text(etag, encoding="utf-8")
        else:
            self._etag.unlink(missing_ok=True)


def _by_hand(folder: str, file: RawFile) -> str:
    what = f"take {file.member} out of it, " if file.member else ""
    return (
        f"to do it by hand, download {file.url} on a machine that can, {what}save it as DIR/{folder}/{file.name}, "
        "and pass --raw DIR"
    )
