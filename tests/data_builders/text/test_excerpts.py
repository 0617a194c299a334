"""Excerpts of a page."""

from __future__ import annotations

from data_builders.text.sentences import chunk_spans, excerpt


def test_an_excerpt_is_a_piece_of_the_page_with_its_headings() -> None:
    page = "Title  a b c . Youth . d e f . g h i ."
    spans = chunk_spans(page, ["a b c .", "d e f .", "g h i ."])
    assert [page[start:end].strip() for start, end in spans] == ["Title  a b c .", "Youth . d e f .", "g h i ."]
    at = page.index("e f")
    assert excerpt(page, spans, (at, at + 1), 5) is None
    assert excerpt(page, spans, (at, at + 1), 6) == "Youth . d e f ."
    assert excerpt(page, spans, (at, at + 1), 10) == "Youth . d e f . g h i ."
    assert excerpt(page, spans, (at, at + 1), None) == page
