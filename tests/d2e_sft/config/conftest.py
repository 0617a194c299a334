"""A recipe with nothing but the keys that have no default."""

from pathlib import Path

import pytest


@pytest.fixture
def recipe_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """`recipe.yaml`; a test's `more` is added to it."""
    path = tmp_path / "recipe.yaml"
    more = request.getfixturevalue("more") if "more" in request.fixturenames else ""
    path.write_text(f"data: {{train: rows.parquet}}\ntrain: {{output_dir: runs/x}}\n{more}\n", encoding="utf-8")
    return path
