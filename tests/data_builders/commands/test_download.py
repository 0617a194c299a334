"""`d2e data download`, against a local server."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from data_builders.raw.source import Input, RawFile
from data_builders.sources import SOURCES
from tests.command import call, refusal_of
from tests.factories import ScriptedServer

CONTENT = b'{"row": 1}'


def test_official_files_are_saved_for_raw_and_missing_ones_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    digest, names = hashlib.sha256(CONTENT).hexdigest(), ("test.jsonl", "graphs.jsonl")
    train = RawFile("train.jsonl", by_hand="ask the authors")
    with ScriptedServer(lambda path, request: json.loads(CONTENT)) as server:
        test, graphs = (RawFile(name, f"{server.url}/{name}", "v1", digest, len(CONTENT)) for name in names)
        inputs = (Input("train", (train,), ("train",)), Input("test", (test,), ("test",)))
        monkeypatch.setitem(SOURCES, "wiqa", dataclasses.replace(SOURCES["wiqa"], inputs=inputs, others=(graphs,)))
        called = call("data", "download", "wiqa", "boxes", "--out", tmp_path / "raw")
    assert called.status == 1
    for name in names:
        assert (tmp_path / "raw" / "wiqa" / name).read_bytes() == CONTENT
    assert "boxes: is generated" in called.out
    assert "1 files could not be downloaded" in called.err
    assert "ask the authors; save it as DIR/wiqa/train.jsonl" in called.err


def test_an_unknown_dataset_is_named_with_the_nearest_known() -> None:
    message = refusal_of("data", "download", "wika")
    assert "dataset 'wika': unknown" in message
    assert "Did you mean 'wiqa'?" in message
