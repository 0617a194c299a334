"""`d2e table --published` of a related system: which values a run is compared with."""

from __future__ import annotations

import json
from pathlib import Path

from tests.eval.compare.measures.results import accuracy, save_result
from tests.eval.paper_runs import cells, printed


def test_the_measures_of_a_system_stand_beside_the_values_of_their_options(tmp_path: Path) -> None:
    for name, right, options in (("a", [1] * 16, {}), ("b", [1] * 10 + [0] * 6, {"paragraph": "no"})):
        save_result(tmp_path / name, accuracy(right), options=options)
    text = printed(tmp_path / "a", tmp_path / "b", "--published")
    line = next(row for row in cells(text) if row[1] == "BERT")
    assert line[2:] == ["Total", "73.80", "100.0 (+26.2‡)", "62.5 (-11.3)"]
    assert "WIQA, published values" in text
    save_result(tmp_path / "c", accuracy([1, 0], name="macro-F1"), "crepe", options={"split": "dev", "prompt": "code"})
    named = [row[1] for row in cells(printed(tmp_path / "c", "--published")) if row[-1].endswith((")", "‡)"))]
    assert "Chance" in named
    assert "Codex soft" not in named
    content = json.loads(printed(tmp_path / "c", "--published", "--format", "json"))
    assert content["published"]["columns"][:3] == ["row", "measure", "value"]
