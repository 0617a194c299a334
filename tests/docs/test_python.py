"""The Python of the docs runs as it is typed, on rows and a model of a few bytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.sample import write_samples
from tests.d2e_sft.train.test_messages import ROWS
from tests.docs.commands import ROOT, fences, text_of
from tests.tiny import make_samples

_MODELS = re.compile("Qwen/Qwen3-0.6B|builtin:smollm2-135m-instruct|runs/d2e-mini")


@pytest.mark.parametrize(
    "page", ["README.md", "docs/how-to/python.md", "docs/how-to/from-trl.md", "docs/reference/decoding.md"]
)
def test_the_python_of_a_page_runs(page: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_samples(make_samples(2), Path("data/mini/test.parquet"))
    names: dict[str, Any] = {"rows": ROWS} if page.endswith("from-trl.md") else {}  # the user's own
    blocks = [block for language, block in fences(text_of(ROOT / page)) if language == "python"]
    assert blocks
    for block in blocks:
        exec(_MODELS.sub(str(world / "model"), block), names)
