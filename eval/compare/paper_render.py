"""A paper table as Markdown, as LaTeX (booktabs, multirow) and as JSON."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from d2e_sft.util.files import write_whole
from d2e_sft.util.tables import WIDTH, markdown_row, text_table
from eval.compare.paper_tables import LAYOUTS, Head, Layout, PaperTable, TableRow, Value, rounded

TableFormat = Literal["markdown", "latex", "json"]
ENDINGS: dict[TableFormat, str] = {"markdown": "md", "latex": "tex", "json": "json"}
_AT_ONCE = 8  # rows of the paper's table beside one another
_FIRST: dict[Layout, str] = {"piper": "Models", "ablation": "Models", "sensitivity": "Methods", "ood": "Methods"}
_TITLES: dict[Layout, str] = {
    "piper": "PIPER",
    "ablation": "Ablation on PIPER: DIE is distillation, DEE debiasing",
    "sensitivity": "Sensitivity to the debias ratio α: averages over the datasets of a relation",
    "ood": "Out of distribution; CIDER is averaged over its relations",
}
_ESCAPES = {
    "\\": r"\textbackslash{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # At the start of a row, \\ and \midrule would take these for arguments of theirs.
    "[": "{[}",
    "*": "{*}",
    "²": r"\textsuperscript{2}",
    "α": r"$\alpha$",
    "λ": r"$\lambda$",
    "–": "--",
    "†": r"\textsuperscript{\dag}",
    "\n": " ",
}


def render(table: PaperTable, form: TableFormat) -> str:
    """The table in one of the three formats, with a newline at its end."""
    return {"markdown": to_markdown, "latex": to_latex, "json": to_json}[form](table)


def write_table(table: PaperTable, stem: Path) -> list[Path]:
    """Write the table in all formats; returns the files, which are the stem with an ending each."""
    files = {form: stem.with_name(f"{stem.name}.{ending}") for form, ending in ENDINGS.items()}
    for form, file in files.items():
        write_whole(file, render(table, form))
    return list(files.values())


def to_markdown(table: PaperTable) -> str:
    """The best of a block is bold; headings over several columns stand in the header row."""
    heads = LAYOUTS[table.layout]
    names = [column.header for column in table.columns]
    if len(heads) > 1:  # Markdown has one header row: the relations take it, and the datasets the row below
        over = [text for head in heads for text in (head.text, *[""] * (len(head.columns) - 1))]
        header, below = [_FIRST[table.layout], *over], [["", *(f"**{name}**" for name in names)]]
    else:
        header, below = [_FIRST[table.layout], *names], []
    best = table.best()
    lines = [header, ["---", *["---:"] * len(names)], *below]
    for index, row in enumerate(table.rows):
        values = [_marked(value, (index, place) in best) for place, value in enumerate(row.values)]
        lines.append([_markdown_label(row), *values])
    notes = "\n".join(table.notes)
    return "\n".join(map(markdown_row, lines)) + f"\n\n{notes}\n"


def to_text(table: PaperTable) -> str:
    """For a terminal of 100 columns: a line a dataset, a column a row of the paper's table, eight at a time."""
    best = table.best()
    names = [f"{row.entry.label} ({row.entry.note})" if row.entry.note else row.entry.label for row in table.rows]
    parts = [f"{_TITLES[table.layout]}: percent, * is the best of its block"]
    for start in range(0, len(names), _AT_ONCE):
        places = range(start, min(start + _AT_ONCE, len(names)))
        key = [f"{place + 1:>3}  {names[place]}"[:WIDTH] for place in places]
        lines = [["", *(str(place + 1) for place in places)]]
        for number, column in enumerate(table.columns):
            values = (_number(table.rows[place].values[number]) for place in places)
            marks = (
                "*" * ((place, number) in best) + "†" * table.rows[place].values[number].partial for place in places
            )
            lines.append([column.key, *(text + mark for text, mark in zip(values, marks, strict=True))])
        parts += ["\n".join(key), text_table(lines)]
    notes = [textwrap.fill(note, WIDTH) for note in table.notes]
    return "\n\n".join([*parts, *filter(None, ["\n".join(notes)])]) + "\n"


def to_latex(table: PaperTable) -> str:
    """A `table*` environment; its preamble needs booktabs and multirow."""
    heads = LAYOUTS[table.layout]
    best = table.best()
    groups = [" ".join("c" * len(head.columns)) for head in heads]
    lines = [
        r"% \usepackage{booktabs,multirow}",
        r"\begin{table*}[t]",
        r"\centering",
        r"\small",
        r"\setlength{\tabcolsep}{3pt}",
        rf"\begin{{tabular}}{{l {' '.join(groups)}}}",
        r"\toprule",
        *_latex_header(table.layout, heads),
    ]
    index = 0
    for block in table.blocks():
        lines.append(r"\midrule")
        for row in block:
            values = [_latex_value(value, (index, place) in best) for place, value in enumerate(row.values)]
            lines.append(_latex_line([_latex_label(row), *values]))
            index += 1
    caption = " ".join([f"{_TITLES[table.layout]}.", *table.notes])
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{latex_text(caption)}}}",
        rf"\label{{tab:{table.layout}}}",
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def to_json(table: PaperTable) -> str:
    """Values in percent, not rounded, by the columns' keys; null where nothing was scored."""
    best = table.best()
    keys = [column.key for column in table.columns]
    rows = [
        {
            "label": row.entry.label,
            "block": row.entry.block,
            "setting": row.entry.scores.setting,
            **row.entry.scores.decoding,
            "model": row.entry.scores.model,
            **(row.entry.facts or {}),
            "values": {key: value.percent for key, value in zip(keys, row.values, strict=True)},
            "partial": [key for key, value in zip(keys, row.values, strict=True) if value.partial],
            "best": [key for place, key in enumerate(keys) if (index, place) in best],
        }
        for index, row in enumerate(table.rows)
    ]
    content = {"layout": table.layout, "columns": keys, "rows": rows, "notes": list(table.notes)}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def latex_text(text: str) -> str:
    """The text with everything that means something to LaTeX made to be read as it is."""
    return re.sub("|".join(map(re.escape, _ESCAPES)), lambda match: _ESCAPES[match[0]], text)


def _latex_header(layout: Layout, heads: tuple[Head, ...]) -> list[str]:
    names = [latex_text(column.header) for head in heads for column in head.columns]
    if len(heads) == 1:
        return [_latex_line([_FIRST[layout], *names])]
    over, rules, start = [rf"\multirow{{2}}{{*}}{{{_FIRST[layout]}}}"], [], 2
    for head in heads:
        width = len(head.columns)
        over.append(rf"\multicolumn{{{width}}}{{c}}{{{latex_text(head.text)}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    return [_latex_line(over), "".join(rules), _latex_line(["", *names])]


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_label(row: TableRow) -> str:
    note = rf"\textsubscript{{{latex_text(row.entry.note)}}}" if row.entry.note else ""
    return latex_text(row.entry.label) + note


def _latex_value(value: Value, best: bool) -> str:
    text = _number(value)
    if best:
        text = rf"\textbf{{{text}}}"
    return latex_text(text) if value.percent is None else text + (latex_text("†") if value.partial else "")


def _markdown_label(row: TableRow) -> str:
    label = re.sub(r"([\\|*_`<\[])", r"\\\1", row.entry.label).replace("\n", " ")
    return label + (f" <sub>{row.entry.note}</sub>" if row.entry.note else "")


def _marked(value: Value, best: bool) -> str:
    text = _number(value)
    return (f"**{text}**" if best else text) + ("†" if value.partial else "")


def _number(value: Value) -> str:
    return "–" if value.percent is None else f"{rounded(value.percent):.1f}"
