"""Tables as LaTeX, and other people's texts inside Markdown."""

from __future__ import annotations

import yaml

from d2e_sft.util.markup import harmless_markdown, harmless_yaml, inline_code, latex_table, latex_text
from tests.d2e_sft.util.test_table import PAPER, RUNS


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
