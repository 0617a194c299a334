"""Pages escape what they show, refuse a name that nobody gave them, and carry the style sheet."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from d2e_sft.util.html import pages
from d2e_sft.util.html.pages import render_page


def test_what_a_template_shows_is_escaped_and_must_be_given(tmp_path: Path) -> None:
    template = tmp_path / "page.html"
    template.write_text("<p>{{ text }}</p>")
    assert render_page(template, text="a < b & c") == "<p>a &lt; b &amp; c</p>"
    with pytest.raises(UndefinedError, match="text"):
        render_page(template)


def test_a_page_that_extends_the_base_has_the_style_sheet(tmp_path: Path) -> None:
    template = tmp_path / "page.html"
    template.write_text('{% extends "base.html" %}{% block title %}A title{% endblock %}')
    page = render_page(template)
    assert "<title>A title</title>" in page
    assert (Path(pages.__file__).with_name("style.css")).read_text(encoding="utf-8").strip() in page
