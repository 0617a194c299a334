"""The page of the statistics."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from data_builders.dataset.sample_sets import SampleSet, read_set
from data_builders.quality.stats import compute_stats
from data_builders.quality.stats_page import render_page
from tests.data_builders.nli_rows import nli


def test_the_page_is_whole_and_its_plots_are_described(built: Path) -> None:
    page = render_page(compute_stats([read_set(built)], tokenizer="words"))
    plots = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(plots) == 5
    for plot in plots:
        root = ElementTree.fromstring(plot.replace("<svg", '<svg xmlns:xlink="http://www.w3.org/1999/xlink"', 1))
        assert "tracie" in root.attrib["aria-label"]
    assert not re.search(r"<link|<script|<img|@import|src=|href=\"http", page)


def test_the_page_escapes_names() -> None:
    rows = [nli(1, "It rained.", "It was wet.", "positive", dataset="<b>$x_1$ & co")]
    page = render_page(compute_stats([SampleSet("<i>set", rows)], tokenizer="words"))
    assert "<b>" not in page
    assert "<i>" not in page
    assert "&lt;b&gt;$x_1$ &amp; co" in page


def test_a_page_without_nli_and_refined_contexts_leaves_them_out() -> None:
    rows = [nli(1, "It rained.", "What got wet?", "all", format="qa")]
    page = render_page(compute_stats([SampleSet("own", rows)], tokenizer="words"))
    assert "hypothesis" not in page
    assert "What the refiner keeps" not in page
