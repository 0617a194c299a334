"""`d2e data download`, against a local server."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from data_builders.raw.source import Input, RawFile
from data_builders.sources import SOURCES
from tests.command import call, refusal_of
from tests.servers import LocalServer, QuietHandler

CONTENT = b'{"row": 1}\n'


class _Files(SimpleHTTPRequestHandler, QuietHandler):
    """The files of a folder."""


@pytest.fixture
def wiqa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """WIQA with a test file and graphs from a local server, and a train file that is nowhere."""
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "published"
    folder.mkdir()
    digest = hashlib.sha256(CONTENT).hexdigest()
    train = RawFile("train.jsonl", by_hand="ask the authors")
    with LocalServer(functools.partial(_Files, directory=str(folder))) as server:
        test, graphs = (
            RawFile(name, f"{server.url}/{name}", "v1", digest, len(CONTENT))
            for name in ("test.jsonl", "graphs.jsonl")
        )
        for file in (test, graphs):
            (folder / file.name).write_bytes(CONTENT)
        inputs = (Input("train", (train,), ("train",)), Input("test", (test,), ("test",)))
        monkeypatch.setitem(SOURCES, "wiqa", dataclasses.replace(SOURCES["wiqa"], inputs=inputs, others=(graphs,)))
        yield


@pytest.mark.usefixtures("wiqa")
def test_official_files_are_saved_for_raw_and_missing_ones_are_reported(tmp_path: Path) -> None:
    called = call("data", "download", "wiqa", "boxes", "--out", tmp_path / "raw")
    assert called.status == 1
    for name in ("test.jsonl", "graphs.jsonl"):
        assert (tmp_path / "raw" / "wiqa" / name).read_bytes() == CONTENT
    assert "boxes: is generated" in called.out
    assert "1 files could not be downloaded" in called.err
    assert "ask the authors; save it as DIR/wiqa/train.jsonl" in called.err


def test_an_unknown_dataset_is_named_with_the_nearest_known() -> None:
    message = refusal_of("data", "download", "wika")
    assert "dataset 'wika': unknown" in message
    assert "Did you mean 'wiqa'?" in message
