"""A table as LaTeX, and texts of data and models inside Markdown."""

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from d2e_sft.util.table import Styled, Table, is_number, split_suffix

_OTHER_LINK = re.compile(r"\]\((?!https?://|#)")
_ESCAPES = {
    "\\": r"\textbackslash{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # At the start of a row, \\ and \midrule would take these as their arguments.
    "[": "{[}",
    "*": "{*}",
    "²": r"\textsuperscript{2}",
    "α": r"$\alpha$",
    "λ": r"$\lambda$",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "−": "$-$",
    "≥": r"$\geq$",
    "“": "``",
    "”": "''",
    "█": r"$\bullet$",
    "░": r"$\circ$",
    "·": r"$\cdot$",
    "–": "--",
    "…": r"\ldots{}",
    "†": r"\textsuperscript{\dag}",
    "‡": r"\textsuperscript{\ddag}",
    "\n": " ",
}


def latex_table(table: Table, label: str) -> str:
    r"""Return the table as a `table*` environment with `\label{tab:LABEL}`; it needs booktabs and multirow."""
    *over, names = ([latex_text(name) for name in row] for row in table.header())
    first, *columns = names
    header = [_row(names)]
    form = " ".join("c" * len(columns))
    if over:
        groups = [(text, len(list(columns_of_group))) for text, columns_of_group in itertools.groupby(over[0][1:])]
        starts = itertools.accumulate((n for _, n in groups), initial=2)
        heads = [rf"\multicolumn{{{n}}}{{c}}{{{text}}}" for text, n in groups]
        rules = (rf"\cmidrule(lr){{{start}-{start + n - 1}}}" for start, (_, n) in zip(starts, groups, strict=False))
        header = [_row([rf"\multirow{{2}}{{*}}{{{first}}}", *heads]), "".join(rules), _row(["", *columns])]
    body = []
    for name, rows in table.blocks():
        heading = [rf"\multicolumn{{{len(names)}}}{{l}}{{\emph{{{latex_text(name)}}}}} \\"]
        body += [r"\midrule", *heading * bool(table.frame.index.name), *(_row(map(_cell, row)) for row in rows)]
    lines = [
        r"% \usepackage{booktabs,multirow}",
        r"\begin{table*}[t]",
        r"\centering",
        r"\small",
        r"\setlength{\tabcolsep}{3pt}",
        rf"\begin{{tabular}}{{l {form}}}",
        r"\toprule",
        *header,
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{latex_text(' '.join([table.caption, *table.notes]))}}}",
        rf"\label{{tab:{label}}}",
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def latex_text(text: str) -> str:
    """The text with the characters escaped that have a meaning in LaTeX."""
    return re.sub("|".join(map(re.escape, _ESCAPES)), lambda match: _ESCAPES[match[0]], text)


def _row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(cell: Styled) -> str:
    """Return a cell's text; the best value is bold, the second best underlined, and text after a number is small."""
    signed = re.sub(r"(?<![^\[( ])-(?=\d)", "−", cell)  # a minus, not a hyphen
    number, space, rest = signed.partition(" ") if is_number(cell) else (str(cell), "", "")
    bare, suffix = split_suffix(number)
    value = latex_text(bare)
    command = "textbf" if cell.best else "underline" if cell.second else ""
    text = (rf"\{command}{{{value}}}" if command else value) + latex_text(suffix)
    text += rf" {{\scriptsize {latex_text(rest)}}}" if space else ""
    return text + (rf"\textsubscript{{{latex_text(cell.note)}}}" if cell.note else "")


def one_line(value: Any) -> str:
    return " ".join(str(value).split()).replace("|", r"\|")


def harmless_markdown(text: str) -> str:
    """Return Markdown without HTML, in which only web pages and places on the page are linked.

    For cards, which show texts of other people's data: not every site that shows Markdown sanitises it.
    """
    return _OTHER_LINK.sub(r"]\(", text.replace("<", "&lt;"))


def harmless_yaml(content: Mapping[str, Any]) -> str:
    r"""Return a card's front matter without HTML: texts with `<` are quoted and have `\x3C` instead, read as `<`."""
    text = yaml.dump(content, Dumper=_Quoting, sort_keys=False, allow_unicode=True)
    return text.replace("<", r"\x3C")


class _Quoting(yaml.SafeDumper):
    """Writes texts with `<` between double quotes."""


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "<" in text else None)


_Quoting.add_representer(str, _represent)


def inline_code(text: str) -> str:
    """The text as code within a line, whatever back quotes it holds."""
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    room = " " if len(ticks) > 1 else ""
    return f"{ticks}{room}{text}{room}{ticks}"
