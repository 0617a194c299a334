"""The script of a user of TRL, which is measured beside `d2e train`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.bench.table import plain_script
from tests.tiny import save_tiny_model


def test_a_users_script_trains_one_step(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    model = save_tiny_model(tmp_path / "model", seed=1)
    rows = tmp_path / "rows.jsonl"
    row = json.dumps({"story": "Bo carried the map into the car.", "ask": "Where is the map?", "place": "the car"})
    rows.write_text(f"{row}\n" * 8, encoding="utf-8")
    plain_script.train(str(model), str(rows), str(tmp_path / "out"))
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()
