"""Matplotlib figures as inline SVG, in one style.

No pyplot and no global settings: a figure is an object here and leaves nothing behind. Series differ by colour
(Okabe and Ito's palette, safe for colour-blind readers) and also by hatch or line style, for print.
"""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

INK = "#222222"  # not black: that is SVG's default, which matplotlib leaves out, so no page could change it
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", INK)
HATCHES = ("", "///", "...", "xxx", "---")
LINES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
WIDTH = 5.0  # inches: small, so that a phone shows plots under one another unshrunk
STYLE = {
    "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's font
    "font.family": "sans-serif",
    "font.size": 10,
    "text.parse_math": False,  # a name may hold "$"
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
}


# Colours that a figure shares with the page around it: there a custom property, which dark mode changes.
_OF_THE_PAGE = {
    "--ink": ("#000000", "#222222"),
    "--blue": ("#0072b2",),
    "--green": ("#009e73",),
    "--quiet": ("#444444", "#555555", "#666666", "#777777", "#888888", "#999999", "#aaaaaa"),
    "--line": ("#b0b0b0", "#bbbbbb", "#cccccc", "#d5d5d5", "#dddddd", "#eeeeee"),
    "--panel": ("#f3f4f6",),
    "--ground": ("#ffffff",),
}
_PROPERTY_OF = {colour: name for name, colours in _OF_THE_PAGE.items() for colour in colours}


def legend_name(label: str) -> str:
    """The label as matplotlib shows it: it leaves names that begin with "_" out of a legend."""
    return f"\u200b{label}" if label.startswith("_") else label  # a zero-width space is not seen


def inline_svg(figure: Figure, description: str) -> Markup:
    """The figure as an `<svg>` element that scales to its container and reads out as `description`."""
    # Ids of clip paths and markers are hashes; a salt of its own keeps two plots on one page apart.
    with mpl.rc_context({"svg.hashsalt": description}):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg")
    # The page is HTML: the opening tag needs no namespaces and takes its size from the style sheet. The other ids
    # (axes_1, …) would repeat in every plot, and the style rule would apply to the whole page.
    _, opening, body = re.split(r"(<svg[^>]*>)", buffer.getvalue(), maxsplit=1)
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", body)
    # A fallback keeps what is copied out of the page as it was drawn.
    body = re.sub(
        r"(fill|stroke): (#[0-9a-f]{6})(?=[;\"])",
        lambda found: (
            f"{found[1]}: var({_PROPERTY_OF[found[2]]}, {found[2]})" if found[2] in _PROPERTY_OF else found[0]
        ),
        body,
    )
    view_box = re.findall(r'viewBox="[^"]*"', opening)[0]
    return Markup('<svg role="img" aria-label="{}" {}>{}').format(description, Markup(view_box), Markup(body))
