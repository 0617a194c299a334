"""Which results become rows of a paper table, and what the rows are called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eval.compare.paper import write_paper_tables
from tests.eval.paper_runs import cells, printed, run, trained


def test_rows_are_runs_and_settings(tmp_path: Path) -> None:
    folder = run(tmp_path / "base", setting="zero_shot")
    run(tmp_path / "base", bench="piper-few", setting="few_shot")
    run(tmp_path / "base", {("boxes", "temporal"): 10.0}, bench="boxes")
    assert [row[0] for row in cells(printed(folder))[3:]] == ["base <sub>ZS</sub>", "base <sub>FS</sub>"]
    assert [row[0] for row in cells(printed(folder, "--bench", "piper-few"))[3:]] == ["base <sub>FS</sub>"]


OTHERS = {"teacher": 0.5, "prefer": 0.0, "sft": 0.0, "d2e": 0.5}  # objective: α that it was decoded with


def named(*arguments: object) -> list[str]:
    """What the rows of a table with two lines of header are called."""
    return [row[0].replace("<sub>ZS</sub>", "").strip() for row in cells(printed(*arguments))[3:]]


FULL = "Qwen1.5-7b (D²E-SFT)"


@pytest.mark.parametrize(
    ("trainings", "rows"),
    [
        (  # by what a recipe leaves out
            [("debias: false, distill: false", {"alpha": 0.0}), ("debias: false", {"alpha": 0.0}), ("", {}),
             ("kl_weight: 0", {})],
            [FULL, "- w/o DIE", "- w/o DEE", "- w/o BOTH"],
        ),
        (  # other objectives come after them
            [(f"objective: {name}", {"alpha": alpha}) for name, alpha in OTHERS.items()],
            [FULL, "- w/o BOTH", "- objective prefer", "- objective teacher, decoded with 0.5"],
        ),
        (  # decoded in another way than trained
            [("", {"alpha": 0.0}), ("debias: false", {"alpha": 0.5}), ("distill: false", {"plausibility": 0.1})],
            ["Qwen1.5-7b (D²E-SFT, decoded with 0)", "- w/o DIE, β=0.1", "- w/o DEE, decoded with 0.5"],
        ),
    ],
)  # fmt: skip
def test_the_ablation_names_and_orders_its_rows(
    tmp_path: Path, trainings: list[tuple[str, dict[str, float]]], rows: list[str]
) -> None:
    runs = [trained(tmp_path / str(n), f"{{{d2e}}}", **how) for n, (d2e, how) in enumerate(trainings)]
    assert named(*runs, "--layout", "ablation") == rows


def test_results_beside_a_run_are_named_by_the_recipe_of_the_model_that_was_scored(tmp_path: Path) -> None:
    d2e = trained(tmp_path / "d2e", "{}")
    sft = trained(tmp_path / "sft", "{debias: false, distill: false}", alpha=0.0)
    plain = run(tmp_path / "sft-plain", model=str(sft), alpha=0.0)
    inside = trained(tmp_path / "other", "{}", model=str(sft), alpha=0.0)
    frozen = run(tmp_path / "base", model="models/Qwen1.5-7b", alpha=0.0)
    assert named(d2e, plain, frozen, "--layout", "ablation") == ["Qwen1.5-7b (frozen)", FULL, "- w/o BOTH"]
    assert named(inside, "--layout", "ablation") == ["- w/o BOTH"]


def test_runs_of_one_variant_keep_their_names(tmp_path: Path) -> None:
    runs = [trained(tmp_path / name, "{}") for name in ("seed-0", "seed-1")]
    assert named(*runs, "--layout", "ablation") == [rf"{FULL} \[seed-{n}]" for n in (0, 1)]


def test_tables_are_written_beside_the_scores_where_a_layout_fits(tmp_path: Path) -> None:
    folder = run(tmp_path / "run")
    names = ["table.md", "table.tex", "table.json"]
    assert write_paper_tables(folder, "piper") == [folder / "eval" / "piper" / name for name in names]
    assert "70.3" in (folder / "eval" / "piper" / "table.md").read_text(encoding="utf-8")
    assert json.loads((folder / "eval" / "piper" / "table.json").read_text(encoding="utf-8"))["layout"] == "piper"
    run(folder, {("cider", "causal"): 50.0, ("socialiqa", "causal"): 70.0}, bench="ood")
    write_paper_tables(folder, "ood")
    assert "SocialIQA" in (folder / "eval" / "ood" / "table.md").read_text(encoding="utf-8")
    run(folder, {("boxes", "temporal"): 50.0}, bench="boxes")
    assert write_paper_tables(folder, "boxes") == []
