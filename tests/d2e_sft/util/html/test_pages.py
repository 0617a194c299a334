"""Pages escape what they show, refuse a name that nobody gave them, and carry the style sheet."""

from pathlib import Path

import pytest
from jinja2 import UndefinedError
from matplotlib.figure import Figure

from d2e_sft.util.html import pages
from d2e_sft.util.html.figures import inline_svg, legend_name, styled
from d2e_sft.util.html.pages import render_page


def test_what_a_template_shows_is_escaped_and_must_be_given_and_the_page_has_the_style_sheet(tmp_path: Path) -> None:
    template = tmp_path / "page.html"
    template.write_text('{% extends "base.html" %}{% block title %}{{ text }}{% endblock %}')
    page = render_page(template, text="a < b & c")
    assert "<title>a &lt; b &amp; c</title>" in page
    assert Path(pages.__file__).with_name("style.css").read_text(encoding="utf-8").strip() in page
    with pytest.raises(UndefinedError, match="text"):
        render_page(template)


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
