"""Tables in the paper's layout: what stands where, what is averaged, and what the three formats make of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.eval.paper_runs import AVERAGES, PAPER, SFT, cells, printed, run, trained


def numbers(row: list[str]) -> list[str]:
    return [cell.strip("*†") for cell in row[1:]]


def test_the_columns_and_averages_are_those_of_the_paper(tmp_path: Path) -> None:
    relations, _, datasets, row = cells(printed(run(tmp_path / "d2e")))
    assert [name for name in relations if name] == [
        "Models", "Temporal", "Causal", "Counterfactual", "Subevent&Conditional"
    ]  # fmt: skip
    short = "Tem. Tim. Tra. Mct. Cid. Avg. Cst. Cos. Eca. Cid. Avg. Cst. Cos. Ifq. Wiq. Avg. Est. Cid. Avg."
    assert [name.strip("*") for name in datasets[1:]] == short.split()
    expected = []
    for relation, average in AVERAGES.items():
        expected += [f"{value:.1f}" for (_, own), value in PAPER.items() if own == relation] + [f"{average:.1f}"]
    assert row[0] == "d2e <sub>ZS</sub>"
    assert numbers(row) == expected


def test_what_was_not_scored_is_a_gap_and_its_average_is_marked(tmp_path: Path) -> None:
    part = {key: value for key, value in PAPER.items() if key[0] not in ("tempreason", "ester", "cider")}
    text = printed(run(tmp_path / "part", part), run(tmp_path / "full", sha256="ab" * 32))
    row = cells(text)[-2]
    assert row[1] == "–"
    assert row[6] == "71.2†"  # (68.5 + 76.0 + 69.2) / 3
    assert row[-3:] == ["–", "–", "–"]
    assert "† average of fewer" in text
    assert "–" not in printed(tmp_path / "full").split("\n\n")[1]
    full = cells(text)[-1]
    assert full[6] == "70.3", "an average over other datasets is no rival, so there is no best"


def test_averages_over_the_same_part_of_the_datasets_are_compared(tmp_path: Path) -> None:
    def part(scores: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
        return {key: value for key, value in scores.items() if key[0] != "tempreason"}

    *_, sft, d2e = cells(printed(run(tmp_path / "sft", part(SFT)), run(tmp_path / "d2e", part(PAPER))))
    assert sft[6] == "59.6†"  # (68.54 + 50.0 + 69.2 + 50.7) / 4
    assert d2e[6] == "**71.5**†"  # (68.5 + 76.0 + 69.2 + 72.1) / 4 = 71.45


def test_subsets_and_rows_without_a_place_are_said(tmp_path: Path) -> None:
    subset = {"per_group": 100, "seed": 0, "of": 18_366}
    text = printed(run(tmp_path / "run", {**PAPER, ("boxes", "temporal"): 10.0}, subset=subset))
    assert "at most 100 samples of each row" in text
    assert "without a place in this table: boxes (temporal)" in text


def test_sensitivity_shows_relation_averages_by_alpha(tmp_path: Path) -> None:
    runs = [trained(tmp_path / str(a), f"{{alpha: {a}}}", scores, alpha=a) for a, scores in ((1.0, SFT), (0.5, PAPER))]
    runs.append(trained(tmp_path / "other", "{alpha: 2.0}", alpha=0.3))
    runs.append(trained(tmp_path / "plain", "{alpha: 0.5, distill: false}", alpha=0.5))
    header, _, *body = cells(printed(*runs, "--layout", "sensitivity"))
    assert header == ["Methods", "T", "Ca", "Co", "S&C"]
    assert [row[0].split(" <")[0] for row in body] == [
        "Qwen1.5-7b (α=0.5)", "Qwen1.5-7b (α=1)", "Qwen1.5-7b (α=2, decoded with 0.3)", "Qwen1.5-7b, w/o DIE (α=0.5)"
    ]  # fmt: skip
    assert numbers(body[0]) == [f"{average:.1f}" for average in AVERAGES.values()]
    assert body[0][1].startswith("**")
    assert not body[1][1].startswith("**")


def test_out_of_distribution_averages_cider_over_its_relations(tmp_path: Path) -> None:
    scores = {
        ("cider", "temporal"): 60.0, ("cider", "causal"): 70.0, ("cider", "subevent_conditional"): 50.0,
        ("socialiqa", "causal"): 74.5, ("alphanli", "causal"): 77.0,
    }  # fmt: skip
    folder = run(tmp_path / "run", scores, bench="ood")
    run(folder, bench="piper", sha256="cd" * 32)
    header, _, row = cells(printed(folder, "--layout", "ood"))
    assert header == ["Methods", "CIDER", "SCT", "SocialIQA", "αNLI"]
    assert row[1:] == ["60.0", "–", "74.5", "77.0"]
