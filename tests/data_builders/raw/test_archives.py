"""One member of an archive lands where the caller says, whole, or there is a clear error."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from data_builders.raw.download import DamagedFileError, extract_member

CONTENT = b"row\n" * 1_000


def _zip(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def _tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_one_member_of_a_zip_or_a_compressed_tar_is_written(tmp_path: Path) -> None:
    for archive in (
        _zip(tmp_path / "a.zip", **{"in/rows.txt": CONTENT, "other": b"x"}),
        _tar(tmp_path / "a.tar.gz", (tarfile.TarInfo("in/rows.txt"), CONTENT)),
    ):
        out = tmp_path / archive.suffix
        extract_member(archive, "in/rows.txt", out / "rows.txt")
        assert {path.name: path.read_bytes() for path in out.iterdir()} == {"rows.txt": CONTENT}


def test_a_member_without_a_folder_is_found_in_the_only_folder_that_has_it(tmp_path: Path) -> None:
    one = _zip(tmp_path / "a.zip", **{"in/qa/rows.txt": CONTENT, "__MACOSX/in/qa/._rows.txt": b"x", "in/other": b"x"})
    extract_member(one, "rows.txt", tmp_path / "rows.txt")
    assert (tmp_path / "rows.txt").read_bytes() == CONTENT
    two = _zip(tmp_path / "b.zip", **{"in/rows.txt": CONTENT, "out/rows.txt": b"x"})
    with pytest.raises(UserError, match=r"has no file rows\.txt; it has in/rows\.txt, out/rows\.txt"):
        extract_member(two, "rows.txt", tmp_path / "other.txt")


def test_a_link_in_a_tar_is_refused(tmp_path: Path) -> None:
    link = tarfile.TarInfo("rows.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
    archive = _tar(tmp_path / "a.tar.gz", (link, b""))
    with pytest.raises(UserError, match=r"rows\.txt is a link or a folder"):
        extract_member(archive, "rows.txt", tmp_path / "out.txt")
    assert not (tmp_path / "out.txt").exists()


def test_a_member_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    archive = _zip(tmp_path / "a.zip", **{"rows.txt": CONTENT})
    with pytest.raises(UserError, match=r"has no file row\.txt; it has rows\.txt\. Did you mean 'rows\.txt'"):
        extract_member(archive, "row.txt", tmp_path / "out.txt")


@pytest.mark.parametrize("kind", ["zip", "tar", "checksum", "page"])
def test_a_damaged_archive_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    archive = tmp_path / "a"
    if kind == "zip":
        _zip(archive, **{"rows.txt": CONTENT})
    else:
        _tar(archive, (tarfile.TarInfo("rows.txt"), CONTENT))
    data = bytearray(archive.read_bytes())
    if kind == "checksum":
        data[-8] ^= 1  # the first byte of gzip's checksum
    else:
        data[len(data) // 3 : len(data) // 3 + 8] = b"\0" * 8
    archive.write_bytes(b"<!doctype html><html>Sign in</html>" if kind == "page" else data)
    with pytest.raises(DamagedFileError, match="cannot be unpacked"):
        extract_member(archive, "rows.txt", tmp_path / "out.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
