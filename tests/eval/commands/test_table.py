"""`d2e table` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import refusal_of
from tests.eval.compare.rows import accuracy, save_result
from tests.eval.compare.test_paper import balanced
from tests.eval.paper_runs import PAPER, printed, run


def test_out_takes_the_table(tmp_path: Path) -> None:
    out = tmp_path / "new" / "piper.tex"
    assert printed(run(tmp_path / "run"), "--format", "latex", "--out", out) == f"wrote {out}\n"
    assert balanced(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["other"], "scored on none of the datasets of the layout 'piper'"),
        (["run", "--bench", "pipr"], "Did you mean 'piper'?"),
        (["run", "--layout", "ood"], "scored on none of the datasets of the layout 'ood'"),
        (["run", "moved"], "were scored on different samples"),
        (["run", "subset"], "were scored on different samples"),
        (["run", "run"], "given twice"),
        (["nowhere"], "no such run folder"),
    ],
)
def test_what_cannot_be_laid_out_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    no_cider = {key: value for key, value in PAPER.items() if key[0] != "cider"}
    run(Path("run"), no_cider)
    run(Path("moved"), sha256="cd" * 32)
    run(Path("subset"), subset={"per_group": 2, "seed": 0, "of": 30})
    run(Path("other"), {("boxes", "temporal"): 10.0}, bench="boxes")
    assert said in refusal_of("table", *arguments)


def test_a_system_has_a_table_of_its_measures(tmp_path: Path) -> None:
    for name, right in (("sft", [1, 0, 0, 0]), ("d2e", [1, 1, 1, 0])):
        save_result(tmp_path / name, accuracy(right))
    runs = (tmp_path / "sft", tmp_path / "d2e")
    assert "| accuracy (4) | d2e " in printed(*runs, "--format", "markdown")
    assert balanced(printed(*runs, "--format", "latex"))
    printed(*runs, "--out", tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["labels"] == ["sft", "d2e"]
    assert "d2e against sft: accuracy +50.0" in printed(*runs, "--format", "text")
    folder = save_result(run(tmp_path / "run"), accuracy([1, 0]))  # rows are shown unless the system is named
    assert "PIPER" not in printed(folder, "--bench", "wiqa")
    assert "accuracy" in printed(folder, "--bench", "wiqa")
    assert "accuracy (2)" not in printed(folder)
