"""Paper tables: what stands where, what rows are called, what is averaged, and what the formats make of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from d2e_sft.model.storage.folder import model_identity
from eval.compare.paper import write_paper_tables
from eval.compare.paper_layouts import LAYOUTS
from tests.command import call
from tests.eval.paper_runs import AVERAGES, PAPER, SFT, cells, printed, run, trained
from tests.factories import seal_run
from tests.tiny import save_tiny_model


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


def test_rows_are_runs_and_settings(tmp_path: Path) -> None:
    folder = run(tmp_path / "base", setting="zero_shot")
    run(tmp_path / "base", bench="piper-few", setting="few_shot")
    run(tmp_path / "base", {("boxes", "temporal"): 10.0}, bench="boxes")
    assert [row[0] for row in cells(printed(folder))[3:]] == ["base <sub>ZS</sub>", "base <sub>FS</sub>"]
    assert [row[0] for row in cells(printed(folder, "--bench", "piper-few"))[3:]] == ["base <sub>FS</sub>"]
    model = str(save_tiny_model(tmp_path / "model"))
    seal_run(Path(model))
    for name, scored in (("same", model_identity(model)), ("earlier", "sha256:00000000")):
        folder = run(tmp_path / name, model=model, fingerprint={"model": scored})
        warned = " ".join(call("table", folder).err.split())
        assert ("scores of other weights than" in warned) == (name == "earlier"), name


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


def test_the_best_is_bold_and_what_prints_alike_ties(tmp_path: Path) -> None:
    *_, sft, d2e = cells(printed(run(tmp_path / "sft", SFT), run(tmp_path / "d2e")))
    assert (sft[1], d2e[1]) == ("**65.6**", "**65.6**")
    assert (sft[2], d2e[2]) == ("**68.5**", "**68.5**")  # 68.54 and 68.5
    assert (sft[3], d2e[3]) == ("50.0", "**76.0**")
    assert "**" not in cells(printed(tmp_path / "sft"))[-1][3], "one row has no best"


def test_the_second_best_is_underlined_in_blocks_of_three(tmp_path: Path) -> None:
    base = {**SFT, ("tracie", "temporal"): 40.0, ("timeqa", "temporal"): 60.0}
    runs = [run(tmp_path / name, scores) for name, scores in (("base", base), ("sft", SFT), ("d2e", PAPER))]
    assert [row[3] for row in cells(printed(*runs))[3:]] == ["40.0", "<ins>50.0</ins>", "**76.0**"]
    assert [row[2] for row in cells(printed(*runs))[3:]] == ["<ins>60.0</ins>", "**68.5**", "**68.5**"]
    assert r"\underline{50.0}" in printed(*runs, "--format", "latex")
    text = printed(*runs, "--format", "text")
    assert " 50.0_ " in text
    assert "^ best, _ second best" in text
    marks = [row["second"] for row in json.loads(printed(*runs, "--format", "json"))["rows"]]
    assert "temporal/tracie" in marks[1]
    assert "temporal/tracie" not in marks[2]
    assert "<ins>" not in printed(*runs[1:]), "the worse of two is no second best"


def test_a_table_of_trained_models_has_the_marks_of_the_papers_table_4(tmp_path: Path) -> None:
    frozen = dict.fromkeys(PAPER, 60.0)
    runs = [
        run(tmp_path / "small", frozen, model="models/Qwen1.5-7b", alpha=0.0),
        run(tmp_path / "other", {**frozen, ("tracie", "temporal"): 62.0}, model="models/LLaMA2-7b", alpha=0.0),
        run(tmp_path / "large", dict.fromkeys(PAPER, 70.0), model="models/Qwen1.5-72b", alpha=0.0),
        trained(tmp_path / "sft", "{debias: false, distill: false}", SFT, alpha=0.0),
        trained(tmp_path / "d2e", "{}", alpha=0.5),
    ]
    rows = {row[0].split(" <")[0]: row for row in cells(printed(*runs))[3:]}
    assert list(rows) == ["small", "other", "large", "sft", "d2e"]
    assert [row[3] for row in rows.values()] == ["60.0", "**62.0**", "70.0", "50.0", r"**76.0**\*"]
    assert (rows["sft"][1], rows["d2e"][1]) == ("**65.6**", "**65.6**"), "no better than SFT, and no star"
    assert rows["d2e"][17] == "36.6", "worse than the frozen model"
    assert not any("<ins>" in cell for row in rows.values() for cell in row)
    text = printed(*runs, "--format", "text")
    assert "76.0^*" in text
    assert r"\textbf{76.0}{*}" in printed(*runs, "--format", "latex")
    [last] = [row for row in json.loads(printed(*runs, "--format", "json"))["rows"] if row["label"] == "d2e"]
    assert last["above_sft"] == ["temporal/tracie", "temporal/cider", "temporal/average"]


def test_the_best_of_table_2_is_that_of_a_size_and_setting(tmp_path: Path) -> None:
    scores = {"a-7B": 50.0, "b-8b": 40.0, "c-13b": 60.0, "d-14b": 55.0, "gpt-4o": 70.0, "e-72b": 65.0}
    runs = [run(tmp_path / name, dict.fromkeys(PAPER, value), model=name) for name, value in scores.items()]
    runs.append(run(tmp_path / "cot", dict.fromkeys(PAPER, 45.0), model="f-7b", setting="cot"))
    shown = {row[0].split(" <")[0]: row[1] for row in cells(printed(*runs))[3:]}
    assert [name for name, value in shown.items() if "**" in value] == ["a-7B", "c-13b", "gpt-4o"]


def test_zeros_are_not_the_best(tmp_path: Path) -> None:
    zeros = dict.fromkeys(PAPER, 0.0)
    latex = printed(run(tmp_path / "one", zeros), run(tmp_path / "two", zeros), "--format", "latex")
    assert "0.0 & 0.0" in latex
    assert "textbf{0.0}" not in latex
    some = {**zeros, ("tracie", "temporal"): 50.0}
    runs = [run(tmp_path / name, scores) for name, scores in (("a", some), ("b", zeros), ("c", zeros))]
    assert [row[3] for row in cells(printed(*runs))[3:]] == ["**50.0**", "0.0", "0.0"]


def test_costs_are_minutes_of_training_and_milliseconds_by_relation(tmp_path: Path) -> None:
    timed = {"temporal": {"samples": 4, "seconds": 0.6}, "causal": {"samples": 1, "seconds": 0.11}}
    history = [{"step": 1, "loss": 2.0}, {"step": 2, "train_runtime": 5160.0}]
    runs = [trained(tmp_path / "d2e", "{}", timed=timed, history=history), run(tmp_path / "vllm")]
    resumed = [*history, {"step": 4, "train_runtime": 30.0, "train_seconds": 60.0}]
    runs.append(trained(tmp_path / "resumed", "{}", history=resumed))
    header, _, *body = cells(printed(*runs, "--layout", "cost"))
    assert header == ["Methods", "Train, min", "T, ms", "Ca, ms", "Co, ms", "S&C, ms"]
    assert body == [
        ["d2e <sub>ZS</sub>", "86.0", "150.0", "110.0", "–", "–"],
        ["vllm <sub>ZS</sub>", "–", "–", "–", "–", "–"],
        ["resumed <sub>ZS</sub>", "1.0", "–", "–", "–", "–"],
    ]


def test_json_has_the_numbers_unrounded_with_where_they_come_from(tmp_path: Path) -> None:
    content = json.loads(printed(run(tmp_path / "run", SFT), "--format", "json"))
    assert content["columns"] == [column.key for column in LAYOUTS["piper"]]
    (row,) = content["rows"]
    assert row["values"]["temporal/timeqa"] == pytest.approx(68.54)
    assert row["values"]["causal/average"] == pytest.approx((79.2 + 79.3 + 83.7 + 73.5) / 4)
    assert (row["run"], row["bench"], row["setting"]) == (str(tmp_path / "run"), "piper", "zero_shot")


def balanced(latex: str) -> bool:
    """Whether braces close, environments close in order, and each row of a tabular has its number of columns."""
    plain = re.sub(r"\\[{}\\&%$#_]", lambda match: "\n" if match[0] == r"\\" else "", latex)
    assert plain.count("{") == plain.count("}")
    open_environments: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{([^}]*)\}", latex):
        if kind == "begin":
            open_environments.append(name)
        elif open_environments.pop() != name:
            return False
    specification = re.search(r"\\begin\{tabular\}\{([lcr ]*)\}", latex)
    width = len(specification[1].replace(" ", ""))
    body = latex.partition(r"\toprule")[2].partition(r"\bottomrule")[0]
    for line in (line for line in body.splitlines() if line.endswith(r"\\")):
        spans = sum(int(span) - 1 for span in re.findall(r"\\multicolumn\{(\d+)\}", line))
        if len(re.findall(r"(?<!\\)&", line)) + 1 + spans != width:
            return False
    return not open_environments


@pytest.mark.parametrize("layout", ["piper", "ablation", "sensitivity"])
def test_latex_is_balanced_and_every_row_fills_its_columns(tmp_path: Path, layout: str) -> None:
    part = {key: value for key, value in PAPER.items() if key[0] != "tracie"}
    runs = [trained(tmp_path / "a_&_b%$#{}^~\\", "{}"), trained(tmp_path / "part", "{debias: false}", part)]
    latex = printed(*runs, "--layout", layout, "--format", "latex")
    assert balanced(latex)
    assert r"\usepackage{booktabs,multirow}" in latex
    assert not re.search(r"[^\x00-\x7f]", latex), "pdflatex reads it whatever its input encoding"
    assert latex.count(r"\midrule") == 1
