"""Tables, notes and progress as a terminal shows them."""

import io
from types import SimpleNamespace
from weakref import WeakSet

import pytest
import yaml
from jinja2 import Environment, FileSystemLoader

from d2e_sft.util import progress
from d2e_sft.util.errors import UserError
from d2e_sft.util.html import pages
from d2e_sft.util.markup import harmless_markdown, harmless_yaml, inline_code, latex_table, latex_text
from d2e_sft.util.progress import Progress
from d2e_sft.util.table import Styled, Table, percent, percent_interval
from d2e_sft.util.terminal import WIDTH, folded, quietly, say, warn

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


def test_latex_has_headings_over_columns_and_a_rule_for_each_block() -> None:
    lines = latex_table(PAPER, "piper").splitlines()
    assert r"\multirow{2}{*}{Models} & \multicolumn{2}{c}{Temporal} & \multicolumn{1}{c}{Causal} \\" in lines
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-4}" in lines
    assert r"a\_\&\_b\textsubscript{ZS} & \textbf{65.6}\textsuperscript{\dag} & 1.0 & -- \\" in lines
    assert r"{*}c & 9.0 & 1.0 & 2.0 \\" in lines
    assert lines[-3:] == [r"\caption{Two relations}", r"\label{tab:piper}", r"\end{table*}"]
    assert r"base & 61.3 {\scriptsize {[}58.2, 64.4]} &  \\" in latex_table(RUNS, "x")


def test_latex_escapes_in_one_pass_and_brackets_at_the_start_of_a_row() -> None:
    assert latex_text(r"a\b_{c}") == r"a\textbackslash{}b\_\{c\}"
    assert latex_text("[a]") == "{[}a]"  # otherwise an argument of \\midrule or \\
    assert latex_text("*best") == "{*}best"


def test_markdown_of_other_people_has_no_html_and_links_only_to_pages() -> None:
    text = "[a](https://a.b) [b](#c) <b> [x](javascript:y) ![z](//w)"
    assert harmless_markdown(text) == "[a](https://a.b) [b](#c) &lt;b> [x]\\(javascript:y) ![z]\\(//w)"


def test_front_matter_has_no_html_and_is_read_back_as_it_was() -> None:
    content = {"na<me": "x: </script>\n---\n # y " * 9, "tags": ["n<1K", "é", "no", '<!-- \\ " -->', "& *a"], "n": 1.5}
    text = harmless_yaml(content)
    assert "<" not in text
    assert "\n---" not in text
    assert yaml.safe_load(text) == content


def test_code_within_a_line_ends_where_it_should() -> None:
    assert inline_code("a") == "`a`"
    assert inline_code("a`b``c") == "``` a`b``c ```"


LONG = "a-run-whose-name-is-longer-than-any-column-of-a-table-should-be"


def test_an_error_is_folded_for_pasting(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS")  # as if piped
    path = f"runs/{LONG}"
    error = UserError(f"{path}: " + "expected a run folder " * 6 + "here", f"d2e eval {path} --bench {path} --seed 3")
    assert folded(f"d2e: error: {error}").splitlines() == [
        f"d2e: error: {path}: expected a run",
        "    folder expected a run folder expected a run folder expected a run folder expected a run folder",
        "    expected a run folder here",
        f"  remedy: d2e eval {path} --bench \\",
        f"      {path} --seed 3",
    ]
    assert folded(f"  remedy: d2e eval {path}, or d2e predict {path} with rows").splitlines() == [
        f"  remedy: d2e eval {path}, or d2e",
        f"      predict {path} with rows",
    ]
    assert folded("x" * 120) == "x" * 120, "a word is not cut"
    warn("word " * 40)
    assert max(map(len, capsys.readouterr().err.splitlines())) <= WIDTH


@pytest.fixture(autouse=True)
def no_other_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar that another test has left open would move these down a line."""
    monkeypatch.setattr(Progress, "_instances", WeakSet(), raising=False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_after_five_seconds_and_then_ever_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log = SimpleNamespace(now=0.0), io.StringIO()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with Progress(total=100, desc="reading", unit="row", mininterval=0, miniters=1, file=log) as bar:
        for second in range(1, 101):
            clock.now = float(second)
            bar.update()
    lines = log.getvalue().splitlines()
    assert [line.split(" [")[0] for line in lines] == [f"reading: {n:3}% {n}/100" for n in (5, 15, 35, 75)]
    assert "\r" not in log.getvalue()


def test_work_of_which_nothing_is_complete_shows_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log = SimpleNamespace(now=0.0), io.StringIO()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with Progress(total=8, desc="decoding", unit="sample", file=log) as bar:
        for second in range(8):
            clock.now = float(second)
            bar.set_postfix_str(f"{second} tokens/s", refresh=False)
            bar.update(0)
    [line] = log.getvalue().splitlines()
    assert line.startswith("decoding:   0% 0/8")
    assert line.endswith("5 tokens/s]")


@pytest.mark.parametrize("kind", ["quiet", "another process", "turned off"])
def test_nothing_is_shown_where_it_is_not_wanted(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "another process":
        monkeypatch.setenv("RANK", "1")
    terminal = Terminal()
    with quietly(kind == "quiet"):
        assert list(Progress(range(3), file=terminal, disable=kind == "turned off")) == [0, 1, 2]
        say("a note")
    assert terminal.getvalue() == ""
    assert capsys.readouterr().out == ("" if kind == "quiet" else "a note\n")
