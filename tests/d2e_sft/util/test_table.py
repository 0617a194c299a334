"""A table in the terminal, Markdown, LaTeX and HTML."""

from __future__ import annotations

import pytest
from jinja2 import Environment, FileSystemLoader

from d2e_sft.util.html import pages
from d2e_sft.util.table import Styled, Table, percent, percent_interval

RUNS = Table.in_blocks(
    "samples",
    ["run", "mean", "Δ mean"],
    [
        ("all (1,204)", ["base", "61.3 [58.2, 64.4]", ""]),
        ("all (1,204)", ["d2e", Styled.of("66.3 [62.0, 70.6]", best=True), "+5.0 [+1.1, +9.0] *"]),
    ],
    "Scores.",
    notes=["A note."],
)
PAPER = Table.of(
    [("", "Models"), ("Temporal", "Tem."), ("Temporal", "Avg."), ("Causal", "Eca.")],
    [[Styled.of("a_&_b", note="ZS"), Styled.of("65.6†", best=True), "1.0", None], ["*c", "9.0", "1.0", "2.0"]],
    "Two relations",
)


def test_the_terminal_shows_blocks_under_their_headings() -> None:
    assert RUNS.terminal(100).splitlines() == [
        "Scores.",
        "",
        "  run                 mean               Δ mean",
        "all (1,204)",
        "  base   61.3 [58.2, 64.4]",
        "  d2e   66.3* [62.0, 70.6]  +5.0 [+1.1, +9.0] *",
        "",
        "* best",
        "A note.",
    ]


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_wide_table_is_split_into_parts_that_repeat_the_keys_and_long_text_is_folded(width: int) -> None:
    columns = ["run", "seed", *(f"measure {letter}" for letter in "abcdefghijkl"), "reason"]
    table = Table.of(columns, [[name, 1, *range(12), "word " * 30] for name in ("a", "b")], keys=2)
    shown = table.terminal(width)
    assert max(map(len, shown.splitlines())) <= width
    parts = shown.split("\n\n")
    assert len(parts) > 1
    assert all(part.startswith("run  seed") for part in parts)
    assert all(shown.count(column) == 1 for column in columns[2:])
    assert shown.count("word") == 60


def test_each_heading_over_columns_has_a_part_of_its_own() -> None:
    assert PAPER.terminal(100).split("\n\n")[1:] == [
        "Temporal\nModels        Tem.  Avg.\na_&_b (ZS)  65.6*†   1.0\n*c             9.0   1.0",
        "Causal\nModels      Eca.\na_&_b (ZS)     –\n*c           2.0",
        "* best",
    ]


def test_markdown_pads_columns_and_escapes_text() -> None:
    assert RUNS.markdown().splitlines()[2:5] == [
        "| samples     | run  |                  mean |              Δ mean |",
        "| ----------- | ---- | --------------------: | ------------------: |",
        "| all (1,204) | base |     61.3 [58.2, 64.4] |                     |",
    ]
    over, _, names, first, second = PAPER.markdown().splitlines()[2:]
    assert [cell.strip() for cell in over.split("|")] == ["", "Models", "Temporal", "", "Causal", ""]
    assert [cell.strip() for cell in names.split("|")] == ["", "", "**Tem.**", "**Avg.**", "**Eca.**", ""]
    assert r"a\_&\_b <sub>ZS</sub>" in first
    assert "**65.6**†" in first
    assert r"\*c" in second
    assert r"a\|b \_c\_ d\`e" in Table.of(["x"], [["a|b\n_c_ d`e"]]).markdown()
    assert "`a|`" not in Table.of(["x"], [["`a|`"]]).markdown(escape=False)


def test_html_escapes_texts_and_sets_intervals_small() -> None:
    environment = Environment(loader=FileSystemLoader(pages.__file__.rpartition("/")[0]), autoescape=True)
    template = environment.from_string("{% from 'table.html' import html_table %}{{ html_table(table) }}")
    page = template.render(table=RUNS)
    assert '<th scope="rowgroup" rowspan="2">all (1,204)</th><td>base</td>' in page
    assert '<td class="number">61.3<span class="beside">[58.2, 64.4]</span></td>' in page
    assert '<td class="number starred">+5.0 *<span class="beside">[+1.1, +9.0]</span></td>' in page
    assert "<td>&lt;b&gt;</td>" in template.render(table=Table.of(["x"], [["<b>"]]))


def test_any_value_can_be_a_cell() -> None:
    (row,) = Table.of(["a", "b", "c", "d", "e"], [[1_234, 0.5, True, None, ["x"]]]).rows()
    assert row == ["1,234", "0.5", "True", "–", "['x']"]


def test_shares_are_shown_in_percent_with_one_decimal() -> None:
    assert [percent(0.6129), percent(1), percent(None)] == ["61.3", "100.0", "–"]
    assert percent_interval(0.5, 0.25, 0.875) == "50.0 [25.0, 87.5]"
