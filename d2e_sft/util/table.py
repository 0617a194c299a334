"""Tables: a pandas DataFrame of cells with a caption, written for the terminal, Markdown, HTML and LaTeX.

Rows with the same index form a block; a named index is shown. Columns with two levels have a heading over several
columns. Columns of numbers are aligned right; in their cells, text after the first space is small print.
`util/markup.py` writes LaTeX, `util/html/table.html` HTML.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from d2e_sft.util.terminal import filled, is_quiet, terminal_width

if TYPE_CHECKING:
    from pandas import DataFrame

NONE = "–"
_NUMBER = re.compile(r"[-+–<±]?\d.*|[–-]?", re.DOTALL)
_NARROWEST = 20  # characters; longer text may be folded to this width in the terminal
_GAP = 2  # spaces between columns, and indent of a block


class Styled(str):
    """A cell with a style: `best` and `second` mark values of a block, `note` is small print after the text."""

    best: bool = False
    second: bool = False
    note: str = ""

    @classmethod
    def of(cls, text: str, *, best: bool = False, second: bool = False, note: str = "") -> Styled:
        """The text with a style; text that has one keeps it."""
        if isinstance(text, Styled):
            return text
        styled = cls(text)
        styled.best, styled.second, styled.note = best, second, note
        return styled


@dataclass(frozen=True, eq=False)
class Table:
    """A table to write; its `frame` has cells as text.

    `caption` and `notes` are paragraphs above and below. The first `keys` columns name a row; each part of a wide
    table repeats them. `bold` is what a bold value is called below a table in the terminal.
    """

    frame: DataFrame
    caption: str = ""
    notes: Sequence[str] = ()
    keys: int = 1
    bold: str = "best"

    @classmethod
    def of(
        cls,
        columns: Sequence[Any],
        rows: Sequence[Sequence[Any]],
        caption: str = "",
        *,
        notes: Sequence[str] = (),
        keys: int = 1,
    ) -> Table:
        """Make a table from rows; whole numbers get thousands separators, None becomes a dash.

        `columns` are names, or pairs of a heading over several columns and a name.
        """
        return cls.in_blocks("", columns, [("", row) for row in rows], caption, notes=notes, keys=keys)

    @classmethod
    def in_blocks(
        cls,
        name: str,
        columns: Sequence[Any],
        rows: Iterable[tuple[str, Sequence[Any]]],
        caption: str = "",
        *,
        notes: Sequence[str] = (),
        keys: int = 1,
        bold: str = "best",
    ) -> Table:
        """Make a table from pairs of a block and the cells of a row; `name` is the index's, empty to hide it."""
        import pandas as pd

        pairs = list(rows)
        header = pd.MultiIndex.from_tuples(columns) if isinstance(columns[0], tuple) else pd.Index(columns)
        texts = {int: "{:,}".format, type(None): lambda cell: NONE}
        cells = [
            [cell if isinstance(cell, str) else texts.get(type(cell), str)(cell) for cell in row] for _, row in pairs
        ]
        index = pd.Index([block for block, _ in pairs], name=name, dtype=object)
        return cls(pd.DataFrame(cells, index, header, dtype=object), caption, notes, keys, bold)

    def header(self) -> list[list[str]]:
        columns = self.frame.columns
        return [list(columns.get_level_values(level)) for level in range(columns.nlevels)]

    def rows(self) -> list[list[Styled]]:
        return [list(map(Styled.of, row)) for row in self.frame.to_numpy().tolist()]

    def blocks(self) -> Iterator[tuple[str, list[list[Styled]]]]:
        for name, pairs in itertools.groupby(
            zip(self.frame.index, self.rows(), strict=True), key=lambda pair: pair[0]
        ):
            yield str(name), [row for _, row in pairs]

    def markdown(self, *, escape: bool = True) -> str:
        """The table as Markdown, its columns padded; without `escape`, Markdown in cells of text stays."""
        flat = self
        if self.frame.index.name:  # a named index is the first column
            frame = self.frame.reset_index(drop=True)
            frame.insert(0, self.frame.index.name, list(self.frame.index), allow_duplicates=True)
            flat = Table(frame)
        *over, names = flat.header()
        right = flat.numeric()
        escapes = [escape and not number for number in right]
        rows = [[*map(_markdown, row, escapes)] for row in flat.rows()]
        lines = [[_markdown(Styled(name), False) for name in names], *rows]
        if over:  # Markdown has one header row, which takes the headings
            heads = [text if n == 0 or text != over[0][n - 1] else "" for n, text in enumerate(over[0])]
            lines = [[names[0], *heads[1:]], ["", *(f"**{name}**" for name in names[1:])], *rows]
        widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
        rule = ["-" * (width - number) + ":" * number for width, number in zip(widths, right, strict=True)]
        sides = [f"{'>' if number else '<'}{width}" for width, number in zip(widths, right, strict=True)]
        padded = (map(format, line, sides) for line in (lines[0], rule, *lines[1:]))
        table = "\n".join(f"| {' | '.join(line)} |" for line in padded)
        return "\n\n".join(filter(None, [self.caption, table, *self.notes]))

    def terminal(self, width: int | None = None) -> str:
        """Return the table as aligned columns; a wide table is split into parts, and its long texts are wrapped.

        With `--quiet` it has a title, but no explanation. A `width` of None is the terminal's, or 100 if the output is
        piped.
        """
        room = width or terminal_width()
        parts = [self._part(places, room) for places in self._parts(room)]
        cells = [cell for row in self.rows() for cell in row]
        kinds = {
            f"^ {self.bold}": any(cell.best for cell in cells),
            "_ second best": any(cell.second for cell in cells),
        }
        marks = ", ".join(mark for mark, used in kinds.items() if used)
        # Up to its first stop a caption is a title, after that it explains.
        caption_text = re.split(r"(?<=\?) |[.:;](?: |$)", self.caption, maxsplit=1)[0] if is_quiet() else self.caption
        caption, *notes = (filled(text, room) for text in (caption_text, *filter(None, [marks]), *self.notes))
        return "\n\n".join(filter(None, [caption, *parts, "\n".join(notes)]))

    def numeric(self) -> list[bool]:
        """Whether each column holds numbers, perhaps with an interval or a unit."""
        columns = (self.frame.iloc[:, place] for place in range(self.frame.shape[1]))
        return [all(map(is_number, cells)) and any(cell not in ("", NONE) for cell in cells) for cells in columns]

    def _parts(self, room: int) -> Iterator[list[int]]:
        """Yield the columns of each part: the keys, and as many others as fit, at least one."""
        _, least = self._widths()
        heads = self.header()[0] if self.frame.columns.nlevels > 1 else [""] * len(least)
        part = list(range(self.keys))
        for place in range(self.keys, len(least)):
            is_full = sum(least[i] + _GAP for i in [*part, place]) - _GAP > room
            if len(part) > self.keys and (is_full or heads[place] != heads[place - 1]):
                yield part
                part = list(range(self.keys))
            part.append(place)
        yield part

    def _widths(self) -> tuple[list[int], list[int]]:
        """Return the width of each column in the terminal, whole and with its text folded."""
        from rich.cells import cell_len

        rows = [self.header()[-1], *map(_plain, self.rows())]
        whole = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        whole[0] += _GAP * bool(self.frame.index.name)
        return whole, [w if n else min(w, _NARROWEST) for w, n in zip(whole, self.numeric(), strict=True)]

    def _part(self, places: Sequence[int], room: int) -> str:
        """Return some of the columns as text: the header, then each block under its heading."""
        widths, least = ([sizes[place] for place in places] for sizes in self._widths())
        while sum(widths) + _GAP * (len(widths) - 1) > room and widths != least:
            widest = max(range(len(widths)), key=lambda i: (widths[i] > least[i]) * widths[i])
            widths[widest] -= 1
        right = [self.numeric()[place] for place in places]
        *over, names = ([row[place] for place in places] for row in self.header())
        lines = [over[0][-1]] if over else []
        indent = " " * _GAP * bool(self.frame.index.name)
        lines.append(_aligned([[indent + names[0], *names[1:]]], widths, right))
        for name, rows in self.blocks():
            lines += [name] if indent else []
            plain = [_plain([row[place] for place in places]) for row in rows]
            lines.append(_aligned([[indent + row[0], *row[1:]] for row in plain], widths, right))
        return "\n".join(lines)


def is_number(cell: str) -> bool:
    """Whether a cell is a number, perhaps with an interval or a unit, or empty."""
    return _NUMBER.fullmatch(cell) is not None


def split_suffix(number: str) -> tuple[str, str]:
    """Return a number and the signs of footnotes after it, which are neither bold nor underlined."""
    value = number.rstrip(r"†*\ ")
    return value, number.removeprefix(value)


def percent(share: float | None) -> str:
    """A share in percent, `61.3`; a dash for None."""
    return NONE if share is None else f"{100 * share:.1f}"


def percent_interval(mean: float, low: float, high: float) -> str:
    """A share with its interval in percent: `61.3 [58.2, 64.4]`."""
    return f"{percent(mean)} [{percent(low)}, {percent(high)}]"


def _plain(row: Sequence[Styled]) -> list[str]:
    """Cells with their style in characters."""
    return [_styled(cell, cell, ("{}^", "{}_"), " ({})") for cell in row]


def _styled(cell: Styled, text: str, marks: tuple[str, str], note: str) -> str:
    """Style text; `marks` are the formats of a best and a second-best number, `note` of its note."""
    number, space, small = text.partition(" ") if is_number(cell) else (text, "", "")
    shown, mark = str(text), marks[0] if cell.best else marks[1] if cell.second else None
    if mark is not None:
        value, suffix = split_suffix(number)
        shown = mark.format(value) + suffix + space + small
    return shown + note.format(cell.note) if cell.note else shown


def _aligned(rows: Sequence[Sequence[str]], widths: Sequence[int], right: Sequence[bool]) -> str:
    """Return rows as columns of these widths; cells that are longer are folded."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    for width, number in zip(widths, right, strict=True):
        table.add_column(justify="right" if number else "left", width=width, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    shown = io.StringIO()
    Console(file=shown, width=sum(widths) + _GAP * len(widths), color_system=None).print(table)
    return "\n".join(line.rstrip() for line in shown.getvalue().splitlines())


def _markdown(cell: Styled, escape: bool) -> str:
    text = re.sub(r"(?<!\\)\|", r"\|", " ".join(cell.split()))
    if is_number(cell):
        text = re.sub(r"(?<=\d)\*", r"\\*", text)  # the sign of a footnote
    elif escape:
        text = re.sub(r"([*`<\[]|(?<!\w)_|_(?!\w))", r"\\\1", text)
    return _styled(cell, text, ("**{}**", "<ins>{}</ins>"), " <sub>{}</sub>")
