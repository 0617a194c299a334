"""Download official files to the cache: resumable, checked against the published checksum, complete or absent.

A file is written to `<name>.partial`, which a later run resumes with an HTTP Range request. It gets its name after its
checksum was verified, and the checksum is verified again whenever the cached file is used. A file without a published
checksum is resumed only if the server confirms by its ETag that it is still the same.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import httpx

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of
from d2e_sft.util.paths import cache_dir
from d2e_sft.util.progress import Progress
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
        UserError: it has no address, or the host cannot be reached, lacks the file or sends something else.
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
        _Download(folder, file, delivered).run()
    if file.member:
        try:
            extract_member(delivered, file.member, target)
            _check(folder, file, target)
        except (DamagedArchiveError, WrongChecksumError):
            delivered.unlink()  # so that the next run downloads it again
            raise
    return target


def cached_path(folder: str, file: RawFile) -> Path:
    """Return the path where `fetch` puts a file; it may not exist yet."""
    return _home(folder, file) / file.name


def _home(folder: str, file: RawFile) -> Path:
    return cache_dir() / "raw" / folder / (file.commit[:12] or "unversioned")


def how_to_get(folder: str, file: RawFile) -> str:
    """Return the steps to get a file by hand."""
    inside = f" (it is {file.member} in that archive)" if file.member else ""
    steps = file.by_hand or f"download it from {file.url}{inside} on a machine that can"
    return f"{steps}; save it as DIR/{folder}/{file.name}, and pass --raw DIR"


class WrongChecksumError(UserError):
    """A file differs from the published one."""


def _check(folder: str, file: RawFile, path: Path) -> None:
    """Remove the file and raise an error if it has another checksum than the published one."""
    if not file.sha256 or (found := sha256_of(path)) == file.sha256:
        return
    size = path.stat().st_size
    path.unlink()
    what = f"{file.member} in {file.url}" if file.member else file.url
    raise WrongChecksumError(
        f"{what}: got {size:,} bytes with SHA-256 {found}; expected {file.bytes:,} bytes with {file.sha256}",
        remedy="run again; if it recurs, a proxy alters the download, or the publisher changed the file. By hand: "
        + how_to_get(folder, file),
    )


class _Download:
    """Downloads a file, or the archive with it, to a target."""

    def __init__(self, folder: str, file: RawFile, target: Path) -> None:
        self._folder, self._file, self._target = folder, file, target
        self._size = file.bytes if file.sha256 and not file.member else 0  # known only together with the checksum
        self._partial = target.with_name(target.name + ".partial")
        self._etag = target.with_name(target.name + ".etag")

    def run(self) -> None:
        """Complete the `.partial` file, check it and rename it; a broken connection is resumed."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                self._continue()
                break
            except httpx.HTTPError as error:
                answer = error.response if isinstance(error, httpx.HTTPStatusError) else None
                if left and (answer is None or answer.status_code >= 500):
                    continue
                why = f"cannot be downloaded ({type(error).__name__}: {error}) after {_ATTEMPTS} attempts; "
                why += f"{self._have():,} bytes are here and the next run resumes there"
                if answer is not None:
                    why = f"the server answered {answer.status_code} {answer.reason_phrase}"
                by_hand = f"by hand: {how_to_get(self._folder, self._file)}"
                raise UserError(f"{self._file.url}: {why}", remedy=by_hand) from None
        if not self._file.member:
            try:
                check_is_data(self._partial)
            except UserError:
                self._partial.unlink()  # a web page, or nothing: do not resume it
                raise
            _check(self._folder, self._file, self._partial)
        self._partial.replace(self._target)
        self._etag.unlink(missing_ok=True)

    def _have(self) -> int:
        return self._partial.stat().st_size if self._partial.exists() else 0

    def _continue(self) -> None:
        have = self._have()
        if self._size and have == self._size:
            return
        etag = self._etag.read_text(encoding="utf-8") if self._etag.is_file() else ""
        resumable = have < self._size if self._size else etag
        if not resumable:
            self._partial.unlink(missing_ok=True)
            have = 0
        # Identity, since a compressed body cannot be resumed at a byte of the file.
        headers = {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
            if not self._size:
                headers["If-Range"] = etag
        with httpx.stream("GET", self._file.url, headers=headers, timeout=_TIMEOUT, follow_redirects=True) as answer:
            if have and answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                return  # it was complete when the last run ended
            answer.raise_for_status()
            # A server that ignores the range, or has another file now, sends the whole file with 200.
            resumed = answer.status_code == httpx.codes.PARTIAL_CONTENT
            self._etag.unlink(missing_ok=True)
            if not (etag := answer.headers.get("ETag", "W/")).startswith("W/"):  # a weak tag is that of similar bytes
                self._etag.write_text(etag, encoding="utf-8")
            with (
                self._partial.open("ab" if resumed else "wb") as out,
                Progress(
                    total=self._size or None,
                    initial=have if resumed else 0,
                    desc=f"{self._folder}/{self._target.name}",
                    unit="B",
                    unit_scale=True,
                ) as progress,
            ):
                for chunk in answer.iter_bytes(_CHUNK):
                    out.write(chunk)
                    progress.update(len(chunk))
