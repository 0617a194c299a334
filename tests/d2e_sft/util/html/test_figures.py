"""Figures as markup: text stays text, and two on one page share no ids."""

from __future__ import annotations

import re

from matplotlib.figure import Figure

from d2e_sft.util.html.figures import inline_svg, legend_name, styled


@styled
def _markup(description: str) -> str:
    figure = Figure(figsize=(2, 2))
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], marker="o", label=legend_name("_private"))
    axes.legend()
    return inline_svg(figure, description)


def test_a_figure_is_an_svg_element_that_says_what_it_shows() -> None:
    markup = _markup('scores of "a" & b')
    assert markup.startswith('<svg role="img" aria-label="scores of &#34;a&#34; &amp; b" viewBox="')
    assert markup.rstrip().endswith("</svg>")
    assert "<metadata>" not in markup
    assert "_private" in markup, "a name that begins with _ has its place in the legend"


def test_two_figures_on_one_page_share_no_ids() -> None:
    first, second = (set(re.findall(r' id="([^"]+)"', _markup(name))) for name in ("one", "two"))
    assert first
    assert not first & second
