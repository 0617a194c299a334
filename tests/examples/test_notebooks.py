"""The notebooks of examples/ run from the first cell to the last, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.config.recipe import load_recipe
from tests.tiny import save_tiny_model

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("notebook", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_cell_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_EXAMPLE_MODEL", str(save_tiny_model(tmp_path / "model")))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    content = json.loads(notebook.read_text(encoding="utf-8"))
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"{notebook.name}, code cell {number + 1}", "exec"), names)
    assert names["trainer"].state.global_step == 5
    assert len(names["debiased"]) == 4
    assert load_recipe("runs/notebook-lora/recipe.yaml").model.lora.use_rslora  # type: ignore[union-attr]
