"""`d2e data stats`: numbers against independent counts, and the page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import read_samples
from d2e_sft.data.views import ViewEncoder
from data_builders.dataset.sample_sets import SampleSet, read_set
from data_builders.quality.context_free import hypothesis_alone
from data_builders.quality.stats import compute_stats
from tests.data_builders.nli_rows import nli, stats_in_words
from tests.data_builders.reading import published_rows
from tests.tiny import tiny_tokenizer


def test_counts_are_those_of_the_rows(built: Path) -> None:
    samples = [sample for split in ("train", "test") for sample in read_samples(built / f"{split}.parquet")]
    expected = Counter((s.split, s.dataset, s.relation, s.format) for s in samples)
    stats = stats_in_words(built)
    found = {
        (group.group.split, group.group.dataset, *kind): rows
        for group in stats.groups
        for kind, rows in group.counts.items()
    }
    assert found == expected
    assert stats.rows == len(samples)


@pytest.mark.parametrize("unit", ["words", "tokens"])
def test_lengths_are_those_of_the_messages_or_of_what_training_gets(built: Path, tmp_path: Path, unit: str) -> None:
    prompts, tokenizer = load_prompt_set("default"), tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    encoder = ViewEncoder(tokenizer, prompts, ["original", "imagined", "refined"])
    stats = compute_stats([read_set(built)], tokenizer=str(tmp_path / "model") if unit == "tokens" else "words")
    assert stats.unit == unit
    for group in stats.groups:
        rows = [s for s in read_samples(built / f"{group.group.split}.parquet") if s.dataset == group.group.dataset]
        for view, lengths in group.lengths.items():
            if unit == "tokens":
                sizes = [len(encoder.encode(row).prompts[view]) for row in rows]
            else:
                sizes = [len(" ".join(m["content"] for m in prompts.messages(row, view)).split()) for row in rows]
            assert (lengths.n, lengths.median, lengths.longest) == (len(rows), median(sizes), max(sizes))


def test_the_refined_view_counts_only_rows_that_have_one() -> None:
    rows = [nli(n, "It rained. A cat slept.", "It was wet.", "positive") for n in range(4)]
    rows[0] = rows[0].model_copy(update={"refined_context": "It rained."})
    (group,) = compute_stats([SampleSet("own", rows)], tokenizer="words").groups
    assert (group.lengths["original"].n, group.lengths["refined"].n) == (4, 1)
    assert group.refinement == {"refined_share_of_words": 0.4, "rows_refined_unchanged": 0}  # two of five words
    (none,) = compute_stats([SampleSet("own", rows[1:])], tokenizer="words").groups
    assert "refined" not in none.lengths
    assert set(none.refinement.values()) == {None}
    rows[1] = rows[1].model_copy(update={"refined_context": rows[1].context})
    (both,) = compute_stats([SampleSet("own", rows)], tokenizer="words").groups
    assert both.refinement == {"refined_share_of_words": 0.7, "rows_refined_unchanged": 1}


def test_datasets_of_one_name_in_two_sets_stay_apart() -> None:
    one, other = (nli(1, "It rained.", "It was wet.", label) for label in ("positive", "negative"))
    sets = [SampleSet("a", [one]), SampleSet("b", [other])]
    labels = {group.group.data: group.labels for group in compute_stats(sets, tokenizer="words").groups}
    assert labels == {"a": {"positive": 1, "negative": 0}, "b": {"positive": 0, "negative": 1}}


def test_what_the_hypotheses_of_the_published_files_tell(published_raw: Path) -> None:
    """CIDER's negatives cannot be told without the dialogue; TRACIE's hypotheses give some of its labels away."""
    cider, tracie = (hypothesis_alone(published_rows(published_raw, name, "test")) for name in ("cider", "tracie"))
    assert 0.46 < cider.accuracy < 0.56
    assert 0.58 < tracie.accuracy < 0.68
