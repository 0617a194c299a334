"""What the manifest says of a build."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from data_builders.sources import SOURCES

NAMES = ("tracie", "ecare", "mctaco", "cider")


def test_the_manifest_says_where_every_row_came_from(raw: Path, tmp_path: Path) -> None:
    build(BuildOptions(NAMES, tmp_path / "out", raw, seed=5))
    text = (tmp_path / "out" / "manifest.json").read_text(encoding="utf-8")
    manifest = json.loads(text)
    assert manifest["seed"] == 5
    assert str(tmp_path) not in text
    for name, entry in manifest["datasets"].items():
        assert entry["licence"] == SOURCES[name].licence
        for file in entry["files"]:
            content = (raw / name / file["name"]).read_bytes()
            assert (file["bytes"], file["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
            assert file["commit"] in file["url"]
        for split in entry["splits"].values():
            for step in split["filters"]:
                assert step["reason"]
                assert step["rows_out"] <= step["rows_in"]
            assert (
                split["rows_written"] == split["filters"][-1]["rows_out"] if split["filters"] else split["rows_read"]
            )
    for name, output in manifest["outputs"].items():
        assert output["sha256"] == hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest()


def test_an_own_raw_file_is_noted_and_warned_about(raw: Path, tmp_path: Path) -> None:
    result = build(BuildOptions(["cider"], tmp_path / "out", raw))
    assert len(result.warnings) == 1
    assert "cider/cider_main.json: differs from the published file" in result.warnings[0]
    assert '"checksum": "differs from the published file"' in (tmp_path / "out/manifest.json").read_text("utf-8")
