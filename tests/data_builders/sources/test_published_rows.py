"""Published rows are the rows of their raw files; skipped if they are missing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from data_builders.raw.reader import read_bytes
from tests.data_builders.reading import letters, published_rows


def test_every_tracie_sample_is_a_raw_row_with_its_label(published_raw: Path) -> None:
    lines = (published_raw / "tracie/iid/tracie_test.txt").read_text(encoding="utf-8").split("\n")
    for sample in published_rows(published_raw, "tracie", "test"):
        rebuilt = f"event: {sample.question} story: {sample.context} answer: {sample.answers[0]}"
        # Some of the double quotes are CSV's.
        assert lines[sample.meta["line"] - 1].replace('"', "").split() == rebuilt.replace('"', "").split()


def test_timeqa_excerpts_are_pieces_of_their_pages(published_raw: Path) -> None:
    excerpts = {s.id: s.context for s in published_rows(published_raw, "timeqa", "train")}
    pages = {s.id: s.context for s in published_rows(published_raw, "timeqa", "train", "context=page")}
    assert max(len(text.split()) for text in excerpts.values()) <= 600
    # A page that fits is shown whole.
    assert all(letters(excerpts[name]) == letters(page) for name, page in pages.items())
    # The others begin and end with a sentence or with the page; only in three does a list have the answer.
    assert not [text for text in excerpts.values() if text[:1].islower()]
    lines = read_bytes(published_raw / "timeqa/human_train.hard.json.gzip").splitlines()
    ends = "".join(json.loads(line)["context"].strip()[-300:] for line in lines)
    cut = [text for text in excerpts.values() if text[-1] not in ".!?\"'”" and text[-200:] not in ends]
    assert len(cut) == 3


def test_the_events_of_matres_are_marked_in_order_in_both_contexts(published_raw: Path) -> None:
    rows = published_rows(published_raw, "matres", "dev")
    for one in rows:
        assert one.context.index("<e1>") < one.context.index("<e2>")
        assert one.refined_context.count("<e1>") == one.refined_context.count("<e2>") == 1
    priors = Counter(prior for one in rows for prior in one.meta["conflicts_with"])
    assert priors == {"narrative": 3_171, "tense": 1_093, "roberta_erp": 3_862}


def test_facts_of_tempreason_have_the_answer(published_raw: Path) -> None:
    for sample in published_rows(published_raw, "tempreason", "test", "context=facts"):
        assert sample.answers[0].casefold() in sample.context.casefold()
