"""`d2e data stats`: numbers against independent counts, and the page."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import pytest

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample, read_samples
from d2e_sft.data.views import ViewEncoder
from data_builders.dataset.sample_sets import SampleSet, read_set
from data_builders.quality.context_free import hypothesis_alone
from data_builders.quality.stats import compute_stats, render_stats
from tests.data_builders.nli_rows import nli, stats_in_words
from tests.data_builders.reading import published_rows
from tests.tiny import tiny_tokenizer


def test_counts_are_those_of_the_rows(built: Path) -> None:
    samples = [sample for split in ("train", "test") for sample in read_samples(built / f"{split}.parquet")]
    expected = Counter((s.split, s.dataset, s.relation, s.format) for s in samples)
    stats = stats_in_words(built)
    found = {
        (group["split"], group["dataset"], kind["relation"], kind["format"]): kind["rows"]
        for group in stats["groups"]
        for kind in group["counts"]
    }
    assert found == expected
    assert stats["rows"] == len(samples)


@pytest.mark.parametrize("unit", ["words", "tokens"])
def test_lengths_are_those_of_the_messages_or_of_what_training_gets(built: Path, tmp_path: Path, unit: str) -> None:
    prompts, tokenizer = load_prompt_set("default"), tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    encoder = ViewEncoder(tokenizer, prompts, ["original", "imagined", "refined"])
    stats = compute_stats([read_set(built)], tokenizer=str(tmp_path / "model") if unit == "tokens" else "words")
    assert stats["unit"] == unit
    for group in stats["groups"]:
        rows = [s for s in read_samples(built / f"{group['split']}.parquet") if s.dataset == group["dataset"]]
        for view, lengths in group["prompt_lengths"].items():
            if unit == "tokens":
                sizes = [len(encoder.encode(row).prompts[view]) for row in rows]
            else:
                sizes = [len(" ".join(m["content"] for m in prompts.messages(row, view)).split()) for row in rows]
            found = (lengths["n"], lengths["median"], lengths["longest"])
            assert found == (len(rows), median(sizes), max(sizes))


def _group(rows: list[EventSample]) -> dict[str, Any]:
    (group,) = compute_stats([SampleSet("own", rows)], tokenizer="words")["groups"]
    return dict(group)


def test_the_refined_view_counts_only_rows_that_have_one() -> None:
    rows = [nli(n, "It rained. A cat slept.", "It was wet.", "positive") for n in range(4)]
    rows[0] = rows[0].model_copy(update={"refined_context": "It rained."})
    group = _group(rows)
    assert {view: one["n"] for view, one in group["prompt_lengths"].items()} == {
        "original": 4,
        "imagined": 4,
        "refined": 1,
    }
    assert (group["refined_share_of_words"], group["rows_refined_unchanged"]) == (0.4, 0)  # two of five words
    none = _group(rows[1:])
    assert "refined" not in none["prompt_lengths"]
    assert (none["refined_share_of_words"], none["rows_refined_unchanged"]) == (None, None)
    rows[1] = rows[1].model_copy(update={"refined_context": rows[1].context})
    both = _group(rows)
    assert (both["refined_share_of_words"], both["rows_refined_unchanged"]) == (0.7, 1)


def test_datasets_of_one_name_in_two_sets_stay_apart() -> None:
    one, other = (nli(1, "It rained.", "It was wet.", label) for label in ("positive", "negative"))
    sets = [SampleSet("a", [one]), SampleSet("b", [other])]
    labels = {group["data"]: group["nli_labels"] for group in compute_stats(sets, tokenizer="words")["groups"]}
    assert labels == {"a": {"positive": 1, "negative": 0}, "b": {"positive": 0, "negative": 1}}


def test_what_the_hypotheses_of_the_published_files_tell(published_raw: Path) -> None:
    """CIDER's negatives cannot be told without the dialogue; TRACIE's hypotheses give some of its labels away."""
    cider, tracie = (hypothesis_alone(published_rows(published_raw, name, "test")) for name in ("cider", "tracie"))
    assert 0.46 < cider.accuracy < 0.56
    assert 0.58 < tracie.accuracy < 0.68


def test_the_page_is_whole_and_its_plots_are_described(built: Path) -> None:
    page = render_stats(compute_stats([read_set(built)], tokenizer="words"))
    plots = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(plots) == 5
    for plot in plots:
        root = ElementTree.fromstring(plot.replace("<svg", '<svg xmlns:xlink="http://www.w3.org/1999/xlink"', 1))
        assert "tracie" in root.attrib["aria-label"]
    assert not re.search(r"<link|<script|<img|@import|src=|href=\"http", page)


def test_the_page_escapes_names() -> None:
    rows = [nli(1, "It rained.", "It was wet.", "positive", dataset="<b>$x_1$ & co")]
    page = render_stats(compute_stats([SampleSet("<i>set", rows)], tokenizer="words"))
    assert "<b>" not in page
    assert "<i>" not in page
    assert "&lt;b&gt;$x_1$ &amp; co" in page


def test_a_page_without_nli_and_refined_contexts_leaves_them_out() -> None:
    rows = [nli(1, "It rained.", "What got wet?", "all", format="qa")]
    page = render_stats(compute_stats([SampleSet("own", rows)], tokenizer="words"))
    assert "hypothesis" not in page
    assert "What the refiner keeps" not in page
