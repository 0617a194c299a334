"""Downloads against a small local server, and the one member that is taken from an archive."""

import dataclasses
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from data_builders.raw.files import DamagedFileError, cache_dir, extract_member, fetch
from data_builders.raw.source import RawFile
from tests.servers import LocalServer, QuietHandler

CONTENT = bytes(range(256)) * 800
COMMIT = "0123456789abcdef"


class _Server(LocalServer):
    """Serves CONTENT at /file; `drop_after` breaks a connection after so many bytes, once for each entry."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.drop_after: list[int] = []
        self.ignore_range = False
        self.fail_with: list[int] = []
        self.ranges: list[str | None] = []
        self.content = CONTENT
        self.etag: str | None = None

    def unchecked(self, name: str = "data.bin", member: str = "") -> RawFile:
        """A file without a known version and checksum."""
        return RawFile(name, f"{self.url}/file", member=member)

    def file(self, name: str = "file") -> RawFile:
        return RawFile("sub/data.bin", f"{self.url}/{name}", COMMIT, hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


class _Handler(QuietHandler):
    server: _Server

    def answer(self) -> None:
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        if self.path != "/file":
            self.send_error(404)
            return
        if self.server.fail_with:
            self.send_error(self.server.fail_with.pop(0))
            return
        if "If-Range" in self.headers and self.headers["If-Range"] != self.server.etag:
            wanted = None
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and not self.server.ignore_range else 0
        if start >= len(self.server.content):
            self.send_error(416)
            return
        body = self.server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if self.server.etag:
            self.send_header("ETag", self.server.etag)
        self.end_headers()
        self.wfile.write(body[: self.server.drop_after.pop(0)] if self.server.drop_after else body)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with _Server() as running:
        yield running


def _cached(folder: str = COMMIT[:12]) -> Path:
    return cache_dir() / "raw" / "set" / folder


def _files(folder: str = "unversioned") -> list[str]:
    return sorted(str(path.relative_to(_cached(folder))) for path in _cached(folder).rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("partial", "server_is", "ranges"),
    [
        (None, {}, [None]),
        (CONTENT[:1000], {}, ["bytes=1000-"]),
        (CONTENT[:1000], {"ignore_range": True}, ["bytes=1000-"]),
        (CONTENT, {}, []),
        (None, {"drop_after": [65_536]}, [None, "bytes=65536-"]),
        (None, {"fail_with": [503]}, [None, None]),
    ],
    ids=["new", "partial", "without ranges", "complete", "dropped", "failed"],
)
def test_a_file_is_completed_from_what_is_there_and_then_cached(
    server: _Server, partial: bytes | None, server_is: dict[str, object], ranges: list[str | None]
) -> None:
    vars(server).update(server_is)
    target = _cached() / "sub/data.bin"
    if partial is not None:
        target.parent.mkdir(parents=True)
        target.with_name("data.bin.partial").write_bytes(partial)
    for _ in range(2):
        assert fetch("set", server.file()) == target
        assert target.read_bytes() == CONTENT
    assert server.ranges == ranges
    assert _files(COMMIT[:12]) == ["sub/data.bin"]
    target.write_bytes(b"damaged")
    assert fetch("set", server.file()).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("file", CONTENT[::-1], r"got 204,800 bytes with SHA-256 .*; expected 204,800 bytes with "),
        ("file", b"<!DOCTYPE html><html>Sign in first</html>", r"holds a web page \(HTML\), not data"),
        ("gone", CONTENT, r"/gone: the server answered 404(.|\n)*save it as DIR/set/sub/data.bin, and pass --raw DIR"),
    ],
)
def test_a_wrong_or_missing_file_leaves_nothing(server: _Server, name: str, content: bytes, message: str) -> None:
    server.content = content
    with pytest.raises(UserError, match=message):
        fetch("set", server.file(name))
    assert len(server.ranges) == 1
    assert _files(COMMIT[:12]) == []


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("changed", [True, False])
def test_only_an_unchanged_file_without_checksum_is_resumed(server: _Server, checked: bool, changed: bool) -> None:
    file = server.file() if checked else server.unchecked()
    server.etag, server.drop_after = '"one"', [70_000, 10, 10]
    with pytest.raises(UserError, match=r"after 3 attempts; 65,536 bytes are here and the next run resumes there"):
        fetch("set", file)
    if changed:
        server.etag = '"two"'
        server.content = CONTENT if checked else CONTENT[::-1]
    assert fetch("set", file).read_bytes() == server.content
    assert server.ranges[-1] == "bytes=65536-"
    assert _files(file.commit[:12] or "unversioned") == [file.name]


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_strong_tag_nothing_is_resumed(server: _Server, etag: str | None) -> None:
    server.etag, server.drop_after = etag, [70_000]
    assert fetch("set", server.unchecked()).read_bytes() == CONTENT
    assert server.ranges == [None, None]


def test_all_had_arrived_when_the_last_run_ended(server: _Server) -> None:
    server.etag = '"one"'
    _cached("unversioned").mkdir(parents=True)
    (_cached("unversioned") / "data.bin.partial").write_bytes(CONTENT)
    (_cached("unversioned") / "data.bin.etag").write_text('"one"')
    assert fetch("set", server.unchecked()).read_bytes() == CONTENT
    assert _files() == ["data.bin"]


def _zipped(**members: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def test_members_of_one_archive_are_one_download(server: _Server) -> None:
    server.content = _zipped(**{"in/a.txt": b"A", "../b.txt": b"B"})
    assert fetch("set", server.unchecked("a.txt", member="in/a.txt")).read_bytes() == b"A"
    assert fetch("set", server.unchecked("b.txt", member="../b.txt")).read_bytes() == b"B"
    assert len(server.ranges) == 1
    assert _files() == ["a.txt", "archives/file", "b.txt"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_zipped(**{"a.txt": b"A"}), r"a\.txt in http://.*: got 1 bytes with SHA-256"),
        (b"<html>Busy, try again</html>", "cannot be unpacked"),
    ],
)
def test_a_wrong_archive_is_downloaded_again_next_time(server: _Server, content: bytes, message: str) -> None:
    digest = hashlib.sha256(b"B").hexdigest()
    file = dataclasses.replace(server.unchecked("a.txt", member="a.txt"), sha256=digest)
    server.content = content
    with pytest.raises(UserError, match=message):
        fetch("set", file)
    assert _files() == []
    server.content = _zipped(**{"a.txt": b"B"})
    assert fetch("set", file).read_bytes() == b"B"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_not_taken_for_a_damaged_archive(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.content = _zipped(**{"a.txt": b"A"})
    file = server.unchecked("a.txt", member="a.txt")
    with monkeypatch.context() as disk:
        disk.setattr("data_builders.raw.files.replacing", lambda path: nullcontext(Path("/dev/full")))
        with pytest.raises(UserError, match=r"a\.txt: cannot be written \(No space left on device\)"):
            fetch("set", file)
    assert fetch("set", file).read_bytes() == b"A"
    assert len(server.ranges) == 1


def _zip(path: Path, **members: bytes) -> Path:
    path.write_bytes(_zipped(**members))
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
