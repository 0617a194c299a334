"""Texts of single sources: CSV quotes, repeated passages, numbered events, excerpts of pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from data_builders.build.options import parse_settings
from data_builders.dataset.sample_sets import describe_rows
from data_builders.raw.files import locate_files
from data_builders.sources import SOURCES
from data_builders.sources.conflict.torque import number_repeats
from data_builders.sources.piper.tracie import without_csv_quotes
from tests.data_builders.reading import read, replace, use_substitutes


def test_words_that_are_not_events_have_no_number() -> None:
    assert number_repeats(["had", "said", "had", "said"], [0, 1, 1, 1]) == ["had", "said (1)", "had", "said (2)"]


def test_stories_lose_the_quotes_of_csv_and_keep_their_own(raw: Path) -> None:
    story = 'It rained. "So, Ann left." "He heard a ""meow""." She ate her "greens" then!'
    assert without_csv_quotes(story) == 'It rained. So, Ann left. He heard a "meow". She ate her "greens" then!'
    path = raw / "tracie/iid/tracie_test.txt"
    plain, quoted = "early. The rain comes down.", 'early. "The rain, it comes down."'
    path.write_text(path.read_text(encoding="utf-8").replace(plain, quoted), encoding="utf-8")
    test = read(raw, "tracie")["test"]
    assert all("early. The rain, it comes down. Everyone" in sample.context for sample in test.rows)
    assert describe_rows(test.rows)["rows_decoded"] == {"CSV quotes": 10}


def test_spans_are_found_in_decoded_passages(raw: Path) -> None:
    use_substitutes(raw, "cqa")
    replace(raw / "cqa/reconstruct_rl/train.json", "Firms say a strike", "A&amp;B say a strike")
    first = read(raw, "cqa")["train"].rows[0]
    assert first.context == "A&B say a strike could halt work."
    assert first.meta["decoded"] == ["HTML entities"]


def test_a_rule_for_published_questions_is_refused_for_derived_ones(raw: Path) -> None:
    use_substitutes(raw, "cqa")
    with pytest.raises(UserError, match=r"cqa\.rule=word: only for published questions; raw/event_dataset_test\.json"):
        read(raw, "cqa", ("test",), "rule=word")


def test_published_questions_are_preferred_to_derived_ones(raw: Path) -> None:
    published = (raw / "cqa/qa_dataset_test.json").read_text()
    use_substitutes(raw, "cqa")
    (raw / "cqa/qa_dataset_test.json").write_text(published)
    assert {row.meta["source"] for row in read(raw, "cqa")["test"].rows} == {"qa_dataset_test.json"}
    chosen = parse_settings(["cqa.test_file=raw/event_dataset_test.json"], [SOURCES["cqa"]])
    assert locate_files(SOURCES["cqa"], ["test"], raw, chosen.files["cqa"]).files["test"].file.substitute


def _excerpt(raw: Path, *sentences: str, answer: str, max_words: int = 600) -> EventSample:
    """The training row of a page whose published paragraphs are chunks of nine words."""
    words = " ".join(sentences).split()
    chunks = [" ".join(words[at : at + 9]) for at in range(0, len(words), 9)]
    page = " ".join(["Title", *chunks])
    row = {
        "idx": "/wiki/X#P1#0",
        "question": "Who led X?",
        "context": page,
        "targets": [answer],
        "from": [page.index(answer)],
        "end": [page.index(answer) + len(answer)],
        "paragraphs": [{"text": chunk} for chunk in chunks],
    }
    (raw / "timeqa/train.hard.json.gzip").write_text(json.dumps(row) + "\n")
    (sample,) = read(raw, "timeqa", ("train", "test"), f"max_words={max_words}")["train"].rows
    return sample


def test_excerpts_begin_and_end_with_sentences(raw: Path) -> None:
    sentences = [f"In 19{number} the old town of X chose Leader{number} ." for number in range(10, 90)]
    sample = _excerpt(raw, *sentences, answer="Leader50", max_words=47)
    assert sample.context == " ".join(sentences[39:43])  # four sentences of ten words, the next one first


def test_an_excerpt_is_made_of_chunks_if_a_list_has_the_answer(raw: Path) -> None:
    sample = _excerpt(raw, *(f"- Leader{number}" for number in range(10, 90)), answer="Leader50", max_words=20)
    assert "Leader50" in sample.context
    assert len(sample.context.split()) == 18  # two chunks


def test_excerpts_have_no_byte_order_mark(raw: Path) -> None:
    sample = _excerpt(raw, "X chose \ufeffLeader1 .", "He left .", answer="\ufeffLeader1")
    assert (sample.context, sample.answers) == ("Title X chose Leader1 . He left .", ["Leader1"])


def test_whole_pages_can_be_shown(raw: Path) -> None:
    rows = read(raw, "timeqa", ("train", "test"), "context=page", "max_words=2000")["train"].rows
    assert [sample.context.count("far") for sample in rows] == [400, 0]
