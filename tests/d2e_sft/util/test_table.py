"""Tables, notes and progress as a terminal shows them."""

import io
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from weakref import WeakSet

import pytest
import yaml
from jinja2 import Environment, FileSystemLoader

from d2e_sft.util import progress
from d2e_sft.util.errors import UserError
from d2e_sft.util.html import pages
from d2e_sft.util.markup import harmless_markdown, harmless_yaml, inline_code, latex_table
from d2e_sft.util.progress import Progress
from d2e_sft.util.table import Styled, Table
from d2e_sft.util.terminal import WIDTH, folded, quietly, say, warn
from tests.messages import messages_of

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


ODD = Table.of(
    ["text", "x"],
    [["a|b\n_c_ d`e", 1_234], ["<b>", 0.5], ["[a]", True], ["*best", None], [r"a\b_{c}", ["x"]]],
)


def html(table: Table) -> str:
    loader = FileSystemLoader(pages.__file__.rpartition("/")[0])
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string("{% from 'table.html' import html_table %}{{ html_table(table) }}")
    return template.render(table=table)


TABLES = {"runs": RUNS, "a paper": PAPER, "odd texts": ODD}
FORMS: dict[str, Callable[[Table], str]] = {
    "Markdown": Table.markdown,
    "Markdown as it is": lambda table: table.markdown(escape=False),
    "HTML": html,
    "LaTeX": lambda table: latex_table(table, "x"),
    "terminal": lambda table: table.terminal(80),
}
test_written = messages_of(
    __file__,
    {
        f"{name} in {form}": lambda tmp, table=table, write=write: write(table)
        for (form, write), (name, table) in product(FORMS.items(), TABLES.items())
    },
)


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
