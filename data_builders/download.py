"""Official files to the cache: resumable, checked against the published checksum, never half there.

A file is written to `<name>.partial`, which a later run continues with an HTTP Range request, and gets its name
only after its checksum is right. A cached file was checked when it was written, and is checked again when read:
hashing a few megabytes costs less than a puzzling error later.
"""

from __future__ import annotations

from pathlib import Path

import httpx
from tqdm import tqdm

from d2e_sft.errors import UserError
from d2e_sft.files import sha256_of
from d2e_sft.paths import cache_dir
from data_builders.sources.source import RawFile

_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
_ATTEMPTS = 3
_CHUNK = 1 << 16


def fetch(dataset: str, file: RawFile) -> Path:
    """The path of an official file in the cache, downloaded if need be.

    Raises:
        UserError: the host cannot be reached, does not have the file, or sends something else.
    """
    target = cache_dir() / "raw" / dataset / file.commit[:12] / file.name
    if target.is_file():
        if sha256_of(target) == file.sha256:
            return target
        target.unlink()  # damaged since it was written
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{target.parent}: cannot be made ({error.strerror}); expected a folder for downloads",
            remedy="set D2E_CACHE to a folder that can be written",
        ) from None
    partial = target.with_name(target.name + ".partial")
    _download(file, partial, dataset)
    found = sha256_of(partial)
    if found != file.sha256:
        size = partial.stat().st_size
        partial.unlink()
        raise UserError(
            f"{file.url}: got {size:,} bytes with SHA-256 {found}; expected {file.bytes:,} bytes with {file.sha256}",
            remedy="run again; if it recurs, a proxy alters the download, or the publisher changed the file. "
            + _by_hand(dataset, file),
        )
    partial.replace(target)
    return target


def _download(file: RawFile, partial: Path, dataset: str) -> None:
    """Fill `partial`; a connection that breaks is taken up again where it broke."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _continue(file, partial, dataset)
            return
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status < 500 or attempt == _ATTEMPTS:
                raise UserError(
                    f"{file.url}: the server answered {status} {error.response.reason_phrase}",
                    remedy=_by_hand(dataset, file),
                ) from None
        except httpx.HTTPError as error:
            if attempt == _ATTEMPTS:
                have = partial.stat().st_size if partial.exists() else 0
                raise UserError(
                    f"{file.url}: cannot be downloaded ({type(error).__name__}: {error}) after {_ATTEMPTS} attempts; "
                    f"{have:,} of {file.bytes:,} bytes are here and the next run continues from there",
                    remedy=_by_hand(dataset, file),
                ) from None


def _continue(file: RawFile, partial: Path, dataset: str) -> None:
    have = partial.stat().st_size if partial.exists() else 0
    if have == file.bytes:
        return
    if have > file.bytes:
        partial.unlink()
        have = 0
    # Identity: a compressed body could not be continued at a byte of the file.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with httpx.stream("GET", file.url, headers=headers, timeout=_TIMEOUT, follow_redirects=True) as answer:
        answer.raise_for_status()
        # A server that ignores the range sends the whole file with 200.
        resumed = answer.status_code == httpx.codes.PARTIAL_CONTENT
        with (
            partial.open("ab" if resumed else "wb") as out,
            tqdm(
                total=file.bytes,
                initial=have if resumed else 0,
                desc=f"{dataset}/{file.name}",
                unit="B",
                unit_scale=True,
                disable=None,
                leave=False,
            ) as progress,
        ):
            for chunk in answer.iter_bytes(_CHUNK):
                out.write(chunk)
                progress.update(len(chunk))


def _by_hand(dataset: str, file: RawFile) -> str:
    return (
        f"to do it by hand, download {file.url} on a machine that can, save it as DIR/{dataset}/{file.name}, "
        "and pass --raw DIR"
    )
