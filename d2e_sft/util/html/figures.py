"""Matplotlib figures as inline SVG, in one style.

There is no pyplot and no global state. Series differ by colour (Okabe and Ito's palette, safe for colour-blind
readers) and, for print, by hatch, marker or line style.
"""

import io
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from d2e_sft.util.files import replacing

INK = "#222222"  # not black, SVG's default: matplotlib omits that, so a page could not change it
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", INK)
HATCHES = ("", "///", "...", "xxx", "---")
MARKERS = "os^DvPX"
LINES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
WIDTH = 5.0  # inches: fits a phone unshrunk
STYLE = {
    "svg.fonttype": "none",  # text stays searchable, in the reader's font
    "font.family": "sans-serif",
    "font.size": 10,
    "text.parse_math": False,  # a name may hold "$"
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
}
styled = mpl.rc_context(STYLE)  # decorates a function that makes or writes a figure
# The page's custom property for each colour, so that dark mode can change it.
_OF_THE_PAGE = {
    "--ink": ("#000000", "#222222"),
    "--blue": ("#0072b2",),
    "--green": ("#009e73",),
    "--quiet": ("#444444", "#555555", "#666666", "#777777", "#888888", "#999999", "#aaaaaa"),
    "--line": ("#b0b0b0", "#bbbbbb", "#cccccc", "#d5d5d5", "#dddddd", "#eeeeee"),
    "--panel": ("#f3f4f6",),
    "--ground": ("#ffffff",),
}


def legend_name(label: str) -> str:
    """The label for a legend; matplotlib omits names that begin with "_"."""
    return f"\u200b{label}" if label.startswith("_") else label  # an invisible zero-width space


def svg_text(figure: Figure, salt: str) -> str:
    """The figure as the text of an SVG file; ids of clip paths and markers are hashes with `salt`."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": salt}):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def inline_svg(figure: Figure, description: str) -> Markup:
    """The figure as an `<svg>` element that scales to its container; screen readers read `description`."""
    # HTML needs no namespaces, and the style sheet sets the size. Other ids (axes_1, …) would repeat in every plot,
    # and the style rule would apply to the whole page.
    _, opening, body = re.split(r"(<svg[^>]*>)", svg_text(figure, description), maxsplit=1)  # unique ids on a page
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", body)
    # With a fallback for plots that are copied out of the page.
    for name, colours in _OF_THE_PAGE.items():
        body = re.sub(rf"(fill|stroke): ({'|'.join(colours)})(?=[;\"])", rf"\1: var({name}, \2)", body)
    view_box = re.findall(r'viewBox="[^"]*"', opening)[0]
    return Markup('<svg role="img" aria-label="{}" {}>{}').format(description, Markup(view_box), Markup(body))


def write_figure(figure: Figure, file: Path, *, dpi: int, salt: str | None = None) -> None:
    """Write the figure atomically, in the format that the file's name ends in; `salt` makes ids of an SVG constant."""
    ending = file.suffix.removeprefix(".").lower()
    metadata = {"Date": None} if ending == "svg" else None
    with replacing(file) as partial, mpl.rc_context({**STYLE, "svg.hashsalt": salt}):
        figure.savefig(partial, format=ending, dpi=dpi, metadata=metadata)
