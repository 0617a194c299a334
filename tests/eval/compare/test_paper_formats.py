"""Paper tables as Markdown, LaTeX and JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from eval.compare.paper_layouts import LAYOUTS
from tests.eval.paper_runs import PAPER, SFT, cells, printed, run, trained


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
    assert "* best, _ second best" in text
    marks = [row["second"] for row in json.loads(printed(*runs, "--format", "json"))["rows"]]
    assert "temporal/tracie" in marks[1]
    assert "temporal/tracie" not in marks[2]
    assert "<ins>" not in printed(*runs[1:]), "the worse of two is no second best"


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
    header, _, *body = cells(printed(*runs, "--layout", "cost"))
    assert header == ["Methods", "Train, min", "T, ms", "Ca, ms", "Co, ms", "S&C, ms"]
    assert body == [
        ["d2e <sub>ZS</sub>", "86.0", "150.0", "110.0", "–", "–"],
        ["vllm <sub>ZS</sub>", "–", "–", "–", "–", "–"],
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
    if layout == "piper":
        assert r"a\_\&\_b\%\$\#\{\}\textasciicircum{}\textasciitilde{}\textbackslash{}\textsubscript{ZS}" in latex
        assert r"\multirow{2}{*}{Models} & \multicolumn{6}{c}{Temporal} & \multicolumn{5}{c}{Causal}" in latex
        assert r"\multicolumn{3}{c}{Subevent\&Conditional} \\" in latex
        assert r"\cmidrule(lr){2-7}\cmidrule(lr){8-12}\cmidrule(lr){13-17}\cmidrule(lr){18-20}" in latex
    if layout == "ablation":
        assert r"Qwen1.5-7b (D\textsuperscript{2}E-SFT)" in latex
        assert latex.count(r"\midrule") == 1
