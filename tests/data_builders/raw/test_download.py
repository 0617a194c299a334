"""Downloads against a small local server: whole, resumed, broken, wrong and missing."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from data_builders.raw.download import cache_dir, fetch
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
        """A file of which neither version nor checksum is known."""
        return RawFile(name, f"{self.url}/file", member=member)

    def file(self, name: str = "file", sha256: str | None = None) -> RawFile:
        digest = sha256 or hashlib.sha256(CONTENT).hexdigest()
        return RawFile("sub/data.bin", f"{self.url}/{name}", COMMIT, digest, len(CONTENT))


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


def _target() -> Path:
    return cache_dir() / "raw" / "set" / COMMIT[:12] / "sub" / "data.bin"


def _partial() -> Path:
    return _target().with_name("data.bin.partial")


def _start_partial(content: bytes) -> None:
    _partial().parent.mkdir(parents=True)
    _partial().write_bytes(content)


def test_a_file_is_downloaded_once_and_then_read_from_the_cache(server: _Server) -> None:
    first, second = fetch("set", server.file()), fetch("set", server.file())
    assert first == second == _target()
    assert first.read_bytes() == CONTENT
    assert server.ranges == [None]
    assert not _partial().exists()


def test_a_partial_file_is_continued_where_it_ended(server: _Server) -> None:
    _start_partial(CONTENT[:1000])
    assert fetch("set", server.file()).read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000-"]


def test_a_server_without_ranges_sends_everything_anew(server: _Server) -> None:
    server.ignore_range = True
    _start_partial(CONTENT[:1000])
    assert fetch("set", server.file()).read_bytes() == CONTENT


def test_a_complete_partial_file_needs_no_request(server: _Server) -> None:
    _start_partial(CONTENT)
    assert fetch("set", server.file()).read_bytes() == CONTENT
    assert server.ranges == []


def test_a_dropped_connection_is_taken_up_again(server: _Server) -> None:
    server.drop_after = [100_000]
    assert fetch("set", server.file()).read_bytes() == CONTENT
    assert len(server.ranges) == 2
    assert server.ranges[1] is not None


def test_a_connection_that_drops_every_time_leaves_a_partial_file_to_continue(server: _Server) -> None:
    server.drop_after = [70_000, 10, 10]
    with pytest.raises(UserError, match=r"after 3 attempts; .* and the next run resumes there"):
        fetch("set", server.file())
    assert not _target().exists()
    assert 0 < _partial().stat().st_size < len(CONTENT)
    assert fetch("set", server.file()).read_bytes() == CONTENT


def test_a_wrong_checksum_is_an_error_and_leaves_nothing(server: _Server) -> None:
    with pytest.raises(UserError, match=r"got 204,800 bytes with SHA-256 .*; expected 204,800 bytes with 0000"):
        fetch("set", server.file(sha256="0" * 64))
    assert not _target().exists()
    assert not _partial().exists()


def test_a_missing_file_names_the_address_and_the_steps_by_hand(server: _Server) -> None:
    with pytest.raises(UserError, match=r"/gone: the server answered 404") as caught:
        fetch("set", server.file("gone"))
    assert "save it as DIR/set/sub/data.bin, and pass --raw DIR" in str(caught.value)
    assert len(server.ranges) == 1


def test_a_server_error_is_tried_again(server: _Server) -> None:
    server.fail_with = [503]
    assert fetch("set", server.file()).read_bytes() == CONTENT


def test_an_unreachable_host_names_the_steps_by_hand(server: _Server) -> None:
    file = server.file()
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=r"cannot be downloaded .*ConnectError") as caught:
        fetch("set", file)
    assert "pass --raw DIR" in str(caught.value)


def test_a_damaged_cached_file_is_downloaded_again(server: _Server) -> None:
    fetch("set", server.file()).write_bytes(b"damaged")
    assert fetch("set", server.file()).read_bytes() == CONTENT


def test_the_cache_is_in_the_home_folder_unless_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("D2E_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "d2e-sft"


def _unchecked() -> Path:
    return cache_dir() / "raw" / "set" / "unversioned"


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_file_without_a_published_checksum_is_downloaded_once(server: _Server) -> None:
    for _ in range(2):
        assert fetch("set", server.unchecked()).read_bytes() == CONTENT
    assert server.ranges == [None]
    assert _files(_unchecked()) == ["data.bin"]


def test_it_is_continued_only_while_the_server_says_it_is_the_same_file(server: _Server) -> None:
    server.etag, server.drop_after = '"one"', [70_000, 10, 10]
    with pytest.raises(UserError, match=r"; 65,536 bytes are here and the next run resumes"):
        fetch("set", server.unchecked())
    assert fetch("set", server.unchecked()).read_bytes() == CONTENT
    assert server.ranges[-1] == "bytes=65536-"
    assert _files(_unchecked()) == ["data.bin"]


def test_a_file_that_changed_meanwhile_is_downloaded_anew(server: _Server) -> None:
    server.etag, server.drop_after = '"one"', [70_000, 10, 10]
    with pytest.raises(UserError):
        fetch("set", server.unchecked())
    server.etag, server.content = '"two"', CONTENT[::-1]
    assert fetch("set", server.unchecked()).read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_strong_tag_nothing_is_continued(server: _Server, etag: str | None) -> None:
    server.etag, server.drop_after = etag, [70_000]
    assert fetch("set", server.unchecked()).read_bytes() == CONTENT
    assert server.ranges == [None, None]


def test_all_had_arrived_when_the_last_run_ended(server: _Server) -> None:
    server.etag = '"one"'
    _unchecked().mkdir(parents=True)
    (_unchecked() / "data.bin.partial").write_bytes(CONTENT)
    (_unchecked() / "data.bin.etag").write_text('"one"')
    assert fetch("set", server.unchecked()).read_bytes() == CONTENT
    assert _files(_unchecked()) == ["data.bin"]


def test_a_web_page_is_not_taken_for_data(server: _Server) -> None:
    server.content = b"<!DOCTYPE html><html>Sign in first</html>"
    with pytest.raises(UserError, match=r"holds a web page \(HTML\), not data"):
        fetch("set", server.unchecked())
    assert _files(_unchecked()) == []


def _zipped(**members: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def test_members_of_one_archive_are_one_download(server: _Server) -> None:
    server.content = _zipped(**{"in/a.txt": b"A", "../b.txt": b"B"})
    assert fetch("set", server.unchecked("a.txt", member="in/a.txt")).read_bytes() == b"A"
    assert fetch("set", server.unchecked("b.txt", member="../b.txt")).read_bytes() == b"B"
    assert len(server.ranges) == 1
    assert _files(_unchecked()) == ["a.txt", "archives/file", "b.txt"]


def test_a_member_is_checked_where_its_checksum_is_published(server: _Server) -> None:
    server.content = _zipped(**{"a.txt": b"A"})
    right = dataclasses.replace(server.unchecked("a.txt", member="a.txt"), sha256=hashlib.sha256(b"A").hexdigest())
    assert fetch("set", right).read_bytes() == b"A"
    late = dataclasses.replace(right, name="late.txt", sha256=hashlib.sha256(b"B").hexdigest())
    with pytest.raises(UserError, match=r"a\.txt in http://.*: got 1 bytes with SHA-256"):
        fetch("set", late)
    assert _files(_unchecked()) == ["a.txt"]  # the archive is gone too, so that the next run gets it anew
    server.content = _zipped(**{"a.txt": b"B"})
    assert fetch("set", late).read_bytes() == b"B"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_not_taken_for_a_damaged_archive(server: _Server) -> None:
    server.content = _zipped(**{"a.txt": b"A"})
    file = server.unchecked("a.txt", member="a.txt")
    _unchecked().mkdir(parents=True)
    (_unchecked() / "a.txt.partial").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"a\.txt: cannot be written \(No space left on device\)"):
        fetch("set", file)
    assert fetch("set", file).read_bytes() == b"A"
    assert len(server.ranges) == 1


def test_an_archive_that_is_none_is_downloaded_again_next_time(server: _Server) -> None:
    server.content = b"<html>Busy, try again</html>"
    file = server.unchecked("a.txt", member="a.txt")
    with pytest.raises(UserError, match="cannot be unpacked"):
        fetch("set", file)
    server.content = _zipped(**{"a.txt": b"A"})
    assert fetch("set", file).read_bytes() == b"A"
