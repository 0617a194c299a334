"""TimeQA: which raw rows become which samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from data_builders.raw.source import Samples
from tests.data_builders.raw_rows import timeqa_row
from tests.data_builders.reading import read, replace, steps, use_substitute


def _timeqa_page(*sentences: str, answer: str, chunk: int = 9) -> tuple[str, str]:
    """(raw row, page) of a page whose published paragraphs are chunks of so many words."""
    words = " ".join(["Title", *sentences]).split()
    chunks = [" ".join(words[at : at + chunk]) for at in range(1, len(words), chunk)]
    row = timeqa_row("/wiki/X#P1#0", "Who led X?", chunks, answer)
    return json.dumps(row) + "\n", row["context"]


def _timeqa_train(raw: Path, content: str, *settings: str) -> Samples:
    (raw / "timeqa/train.hard.json.gzip").write_text(content)
    return read(raw, "timeqa", ("train", "test"), *settings)["train"]


def test_timeqa_keeps_answerable_questions_on_short_pages(raw: Path) -> None:
    test = read(raw, "timeqa")["test"]
    assert [sample.answers for sample in test.rows] == [["Hill FC"]]
    assert list(steps(test).values()) == [(3, 2), (2, 2), (2, 1)]
    assert len(read(raw, "timeqa", ("test",), "test_max_words=none")["test"].rows) == 2


def test_timeqa_shows_the_paragraphs_around_the_answer(raw: Path) -> None:
    train = read(raw, "timeqa")["train"]
    (sample,) = train.rows
    assert sample.context == "before " * 200 + " He played for Moor FC in 1988 . " + ("after " * 200).strip()
    assert list(steps(train).values()) == [(4, 3), (3, 2), (2, 2), (2, 1)]


def test_timeqa_excerpts_begin_and_end_with_sentences(raw: Path) -> None:
    sentences = [f"In 19{number} the old town of X chose Leader{number} ." for number in range(10, 90)]
    content, page = _timeqa_page(*sentences, answer="Leader50")
    (sample,) = _timeqa_train(raw, content, "max_words=47").rows
    assert sample.context == " ".join(sentences[39:43])  # four sentences of ten words, the next one first
    assert sample.context in page


def test_timeqa_excerpts_hold_no_byte_order_mark(raw: Path) -> None:
    content, _ = _timeqa_page("X chose \ufeffLeader1 .", "He left .", answer="\ufeffLeader1")
    (sample,) = _timeqa_train(raw, content).rows
    assert (sample.context, sample.answers) == ("Title X chose Leader1 . He left .", ["Leader1"])


def test_timeqa_falls_back_on_chunks_where_a_list_holds_the_answer(raw: Path) -> None:
    content, _ = _timeqa_page(" ".join(f"- Leader{number}" for number in range(10, 90)), answer="Leader50")
    (sample,) = _timeqa_train(raw, content, "max_words=20").rows
    assert "Leader50" in sample.context
    assert len(sample.context.split()) == 18  # two chunks


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"from": [', '"from": [1', r"from\.0, end\.0: got \(1\d+, \d+\); expected positions in the context of"),
        ('"from": [', '"from": [3, ', r"from: got \[3, \d+\]; expected a list of as many positions as there are"),
        ("Leader20", "Leader99", r"from\.0, end\.0: got .* expected the place of 'Leader20', but 'Leader99' stands"),
        ('"paragraphs": [', '"paragraphs": [], "more": [', r"paragraphs: got \[\]; expected the page's paragraphs"),
        ('"paragraphs": [', '"more": [', r"paragraphs: missing; expected the page's paragraphs"),
    ],
)
def test_timeqa_refuses_offsets_that_miss_the_answer(raw: Path, old: str, new: str, message: str) -> None:
    content, _ = _timeqa_page(*(f"In 19{n} X chose Leader{n} ." for n in range(10, 30)), answer="Leader20")
    assert old in content
    with pytest.raises(UserError, match=rf"line 1: {message}"):
        _timeqa_train(raw, content.replace(old, new, 1), "max_words=30")


def test_timeqa_can_show_whole_pages(raw: Path) -> None:
    train = read(raw, "timeqa", ("train", "test"), "context=page", "max_words=2000")["train"]
    assert [sample.context.count("far") for sample in train.rows] == [400, 0]


def test_timeqa_reads_timebench_as_it_is(raw: Path) -> None:
    use_substitute(raw, "timeqa/test.hard.json", "timeqa/timeqa_hard_500.jsonl")
    test = read(raw, "timeqa", ("test",), "test_max_words=3")["test"]
    assert steps(test) == {"answerable": (3, 2), "answer in the context": (2, 1)}


def test_timeqa_cut_off_names_the_line(raw: Path) -> None:
    path = raw / "timeqa/train.hard.json.gzip"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"train\.hard\.json\.gzip, line \d+: the gzip data ends or breaks here"):
        read(raw, "timeqa")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"targets": ["Hill FC"]', '"targets": []', r"targets: got \[\]; expected at least one text"),
        ('"targets": ["Hill FC"]', '"targets": "Hill FC"', "targets: got 'Hill FC'; expected a list of texts"),
        ('"idx": "/wiki', '"index": "/wiki', "idx: missing; expected text"),
    ],
)
def test_timeqa_names_file_line_and_field_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / "timeqa/test.hard.json", old, new)
    with pytest.raises(UserError, match=rf"test\.hard\.json, line 1: {message}"):
        read(raw, "timeqa", ("test",))
