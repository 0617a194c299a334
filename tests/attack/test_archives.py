"""Archives and packed files that would write or read elsewhere, or unpack to far more than their size."""

import bz2
import gzip
import io
import lzma
import tarfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import pyzipper
import yaml

from d2e_sft.util.encrypted_zip import PASSWORD, read_encrypted
from d2e_sft.util.errors import UserError
from data_builders.raw.files import extract_member
from data_builders.raw.reader import BadRows, RawInput
from tests.attack.frame import Attempt, attack
from tests.command import d2e

REFUSED = "rejected with one message; nothing is written elsewhere"

_BOMB = 300 << 20  # bytes; the packed file has a thousandth
_SECRET = "a file of this machine"
_OUTSIDE = ("../../outside", "/tmp/d2e-attack-outside", "a/../../../outside", "..\\..\\outside", "outside/../../x")
_ODD = (
    tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE,
    tarfile.GNUTYPE_SPARSE,
)  # fmt: skip
_PACKERS: tuple[Callable[[bytes], bytes], ...] = (gzip.compress, bz2.compress, lambda c: lzma.compress(c, preset=0))


def _tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@attack("paths, links and devices in archives", "archives", REFUSED, tries=20)
def test_misplaced(given: Attempt) -> None:
    """Members whose names lead out of the folder, and links and devices instead of a file."""
    home, numbers = given.folder / "home" / "deep", given.random
    home.mkdir(parents=True)
    (given.folder / "private").write_text(_SECRET)
    count = 0
    for name in _OUTSIDE:
        with zipfile.ZipFile(given.folder / "a.zip", "w") as zipped:
            zipped.writestr(name, "row\n")
        for archive in (given.folder / "a.zip", _tar(given.folder / "a.tar", (_member(name), b"row\n"))):
            extract_member(archive, name, home / "rows.txt")  # only the caller decides where it is written
            assert [path.name for path in home.iterdir()] == ["rows.txt"]
            count += 1
    (home / "rows.txt").unlink()
    for kind in _ODD:
        target = numbers.choice([str(given.folder / "private"), "../../private", "/dev/zero"])
        archive = _tar(given.folder / "a.tar", (_member("rows.txt", kind, target), b""))
        archive.write_bytes(numbers.choice(_PACKERS)(archive.read_bytes()))
        with suppress(UserError):
            extract_member(archive, "rows.txt", home / "rows.txt")
        assert not (home / "rows.txt").exists() or (home / "rows.txt").read_bytes() == b"", kind
        (home / "rows.txt").unlink(missing_ok=True)
        count += 1
    assert not list(home.iterdir())
    assert not Path("/tmp/d2e-attack-outside").exists()
    assert sorted(path.name for path in given.folder.iterdir()) == ["a.tar", "a.zip", "home", "private"]
    given.things = count


def _refused(what: Callable[[], object], said: str) -> None:
    """Assert that it fails with one message, within 20 seconds of processor time."""
    started = time.process_time()
    with pytest.raises(UserError) as caught:
        what()
    assert said in str(caught.value), str(caught.value)
    assert len(str(caught.value)) < 1_000
    assert time.process_time() - started < 20


@attack("archives and packed files that unpack to a thousand times", "archives", REFUSED, tries=6)
def test_bombs(given: Attempt) -> None:
    """300 MB in 300 kB, in each supported form of a packed file."""
    folder, zeros = (
        given.folder,
        b"\0" * _BOMB if given.random.random() < 0.5 else (b"a row " * 999 + b"\n") * (_BOMB // 5995),
    )
    packed = gzip.compress(zeros, 6)
    (folder / "rows.jsonl.gz").write_bytes(packed)

    def lines() -> object:
        return sum(1 for _ in RawInput("any", "test", "rows", folder / "rows.jsonl.gz", BadRows()).lines())

    _refused(lines, "it unpacks to more than 268,435,456 bytes" if zeros[0] else "UTF-16 text or binary data")
    columns = {"context": "c", "question": "q", "answer": "a"}
    (folder / "own.yaml").write_text(yaml.safe_dump({"train": "rows.jsonl.gz", **columns}))
    assert d2e("data", "build", "--datasets", folder / "own.yaml", "--out", folder / "out") == 1
    (folder / "twice.gz").write_bytes(gzip.compress(packed))
    twice = RawInput("any", "test", "rows", folder / "twice.gz", BadRows())
    _refused(lambda: list(twice.lines()), "a gzip file within a gzip file")
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=6) as zipped:
        zipped.writestr("rows.txt", zeros)
    (folder / "a.tgz").write_bytes(packed)
    (folder / "a.xz").write_bytes(lzma.compress(zeros, preset=0))
    for archive in ("a.zip", "a.tgz", "a.xz"):
        _refused(
            lambda name=archive: extract_member(folder / name, "rows.txt", folder / "rows.txt"), "unpacks to more"
        )
        assert not (folder / "rows.txt").exists()
    with pyzipper.AESZipFile(
        folder / "b.zip", "w", compression=pyzipper.ZIP_DEFLATED, encryption=pyzipper.WZ_AES
    ) as encrypted:
        encrypted.setpassword(PASSWORD.encode())
        encrypted.writestr("rows.jsonl", zeros)
    _refused(lambda: read_encrypted(folder / "b.zip", "rows.jsonl"), f"rows.jsonl unpacks to {len(zeros):,} bytes")
    given.things = 7
