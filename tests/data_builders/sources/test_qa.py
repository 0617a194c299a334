"""What each question-answering source makes of a few raw rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from data_builders.raw.source import Samples
from data_builders.text.excerpts import chunk_spans, excerpt
from tests.data_builders.raw_rows import timeqa_row
from tests.data_builders.reading import read, replace, steps, use_substitute


def test_tempreason_limits_the_words_of_the_page(raw: Path) -> None:
    assert steps(read(raw, "tempreason")["test"]) == {"context of at most 600 words": (2, 1)}
    assert steps(read(raw, "tempreason", ("test",), "context=facts")["test"]) == {
        "context of at most 600 words": (2, 2)
    }
    rows = read(raw, "tempreason", ("test",), "max_words=none")["test"]
    assert (len(rows.rows), steps(rows)) == (2, {})


def test_tempreason_writes_ordinary_spaces(raw: Path) -> None:
    (sample,) = read(raw, "tempreason", ("test",))["test"].rows
    assert sample.question == "Who was mayor before Zoe Hall?"
    assert sample.answers == ["Ian Wood"]


def test_tempreason_gives_one_line_to_a_fact(raw: Path) -> None:
    sample = read(raw, "tempreason", ("test",), "context=facts")["test"].rows[0]
    assert sample.context.split("\n") == [
        "Ian Wood was mayor from May, 1901 to May, 1903.",
        "Zoe Hall was mayor from May, 1903.",
    ]


def test_tempreason_trains_on_no_entity_and_no_page_of_the_test(raw: Path) -> None:
    train = read(raw, "tempreason")["train"]
    assert [sample.answers for sample in train.rows] == [["Kit Lee"]]
    assert steps(train)["pages of the test"] == (3, 1)


def test_tempreason_reads_timebench_in_place_of_the_test(raw: Path) -> None:
    use_substitute(raw, "tempreason/test_l3.json", "tempreason/event-event_839.jsonl")
    rows = read(raw, "tempreason")
    assert [sample.answers for sample in rows["test"].rows] == [["Ian Wood"]]
    assert steps(rows["train"])["pages of the test"] == (3, 2)  # it has no entities, only pages


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"text": ["Ian Wood"]', '"text": "Ian Wood"', "line 1: text_answers.text: got 'Ian Wood'; expected a list"),
        ('"text": ["Ian Wood"]', '"text": [" "]', "line 1: answer: got .* expected at least one text"),
        ('{"text": ["Ian Wood"]}', "3", "line 1: text_answers: got 3; expected an object"),
        ("L3_Q1_P6_0", "L2_Q1_P6_0", "line 1: id: got 'L2_Q1_P6_0'; expected L3_<entity>"),
        ('"context": "Oakham', '"page": "Oakham', "line 1: context: missing; expected text"),
    ],
)
def test_tempreason_names_file_line_and_field_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / "tempreason/test_l3.json", old, new)
    with pytest.raises(UserError, match=rf"test_l3\.json, {message}"):
        read(raw, "tempreason", ("test",))


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


def _timeqa_page(*sentences: str, answer: str, chunk: int = 9) -> tuple[str, str]:
    """(raw row, page) of a page whose published paragraphs are chunks of so many words."""
    words = " ".join(["Title", *sentences]).split()
    chunks = [" ".join(words[at : at + chunk]) for at in range(1, len(words), chunk)]
    row = timeqa_row("/wiki/X#P1#0", "Who led X?", chunks, answer)
    return json.dumps(row) + "\n", row["context"]


def _timeqa_train(raw: Path, content: str, *settings: str) -> Samples:
    (raw / "timeqa/train.hard.json.gzip").write_text(content)
    return read(raw, "timeqa", ("train", "test"), *settings)["train"]


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


def test_an_excerpt_is_a_piece_of_the_page_with_its_headings() -> None:
    page = "Title  a b c . Youth . d e f . g h i ."
    spans = chunk_spans(page, ["a b c .", "d e f .", "g h i ."])
    assert [page[start:end].strip() for start, end in spans] == ["Title  a b c .", "Youth . d e f .", "g h i ."]
    at = page.index("e f")
    assert excerpt(page, spans, (at, at + 1), 5) is None
    assert excerpt(page, spans, (at, at + 1), 6) == "Youth . d e f ."
    assert excerpt(page, spans, (at, at + 1), 10) == "Youth . d e f . g h i ."
    assert excerpt(page, spans, (at, at + 1), None) == page


def test_ester_follows_the_types_and_the_letters_if(raw: Path) -> None:
    test = read(raw, "ester")["test"]
    assert [sample.relation for sample in test.rows] == [
        "causal",
        "counterfactual",  # "terrific"
        "causal",  # a capital "If" is not seen
        "counterfactual",
        "subevent_conditional",
        "subevent_conditional",
    ]
    assert steps(test)["relation of PIPER"] == (8, 6)


def test_ester_can_look_for_the_word_if(raw: Path) -> None:
    test = read(raw, "ester", ("test",), "rule=word")["test"]
    relations = [sample.relation for sample in test.rows]
    assert relations == ["causal", "causal", "counterfactual", "counterfactual", *["subevent_conditional"] * 2]


def test_ester_requires_every_span_once(raw: Path) -> None:
    sample = read(raw, "ester", ("test",))["test"].rows[0]
    assert sample.answers == ["Trees fell; a roof flew off"]
    assert sample.meta["spans"] == ["Trees fell", "a roof flew off"]
    assert sample.meta["type"] == "Causal"


def test_ester_trains_on_new_passages_and_answered_questions(raw: Path) -> None:
    train = read(raw, "ester")["train"]
    assert [sample.answers for sample in train.rows] == [["a spark"]]
    assert list(steps(train).values()) == [(4, 3), (3, 2), (2, 1), (1, 1)]


def test_ester_reads_the_500_where_the_whole_file_is_missing(raw: Path) -> None:
    use_substitute(raw, "ester/final_train_ans_gen.json", "ester/final_train_ans_gen_500completed.json")
    (sample,) = read(raw, "ester")["train"].rows
    assert sample.meta["source"] == "final_train_ans_gen_500completed.json"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"type": "Causal"', '"type": "Casual"', "item 1: type: got 'Casual'; expected one of"),
        ('"answer_texts": [', '"answer_texts": [7,', r"item 1: answer_texts: got \[7, .*; expected a list of texts"),
        ('"question": "What did', '"q": "What did', "item 1: question: missing; expected text"),
    ],
)
def test_ester_names_file_item_and_field_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / "ester/final_dev_ans_gen.json", old, new)
    with pytest.raises(UserError, match=rf"final_dev_ans_gen\.json, {message}"):
        read(raw, "ester", ("test",))


def test_ifqa_joins_the_passages_and_keeps_every_answer_once(raw: Path) -> None:
    sample = read(raw, "ifqa")["test"].rows[0]
    assert (sample.context, sample.answers) == ("First . Second .", ["Rome", "the Romans"])


def test_ifqa_says_a_passage_once(raw: Path) -> None:
    passages = json.dumps(["Rome fell .  Rome fell .", "Second .", "Second ."])
    replace(raw / "ifqa/full_split/test.json", '["First .", "Second ."]', passages)
    assert read(raw, "ifqa")["test"].rows[0].context == "Rome fell . Second ."


def test_ifqa_asks_in_train_what_is_asked_nowhere_else(raw: Path) -> None:
    rows = read(raw, "ifqa", ("train", "dev", "test"))
    assert [sample.question for sample in rows["train"].rows] == ["If C, who?", "If D, who?"]
    assert [sample.question for sample in rows["dev"].rows] == ["If b, Who?"]
    assert len(rows["test"].rows) == 3  # as published, repeats included
    assert list(steps(rows["train"]).values()) == [(5, 5), (5, 3), (3, 2)]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["First .", "Second ."]', "[]", r"item 1: context: got \[\]; expected at least one passage"),
        ('["First .", "Second ."]', '"First ."', "item 1: context: got 'First .'; expected a list of texts"),
        ('"question": "if a, who?"', '"question": 3', "item 1: question: got 3; expected text"),
    ],
)
def test_ifqa_names_file_item_and_field_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / "ifqa/full_split/test.json", old, new)
    with pytest.raises(UserError, match=rf"test\.json, {message}"):
        read(raw, "ifqa", ("test",))


def test_cqa_asks_for_each_side_of_a_pair_once(raw: Path) -> None:
    test = read(raw, "cqa")["test"]
    assert [(sample.relation, sample.question, sample.answers) for sample in test.rows] == [
        ("causal", "What causes sales fell?", ["Prices rose."]),
        ("counterfactual", "What will happen if Prices rose?", ["sales fell", "profit fell"]),
        ("causal", "What causes profit fell?", ["Prices rose."]),
        ("causal", "What enables profit fell?", ["Prices rose; sales fell"]),
        ("counterfactual", "What will happen if Prices rose and sales fell?", ["profit fell."]),
    ]
    assert list(steps(test).values()) == [(5, 4), (4, 3), (6, 5)]


def test_cqa_reads_the_converted_training_file(raw: Path) -> None:
    train = read(raw, "cqa")["train"]
    assert [(sample.question, sample.answers) for sample in train.rows] == [
        ("What prevents Work?", ["A strike; began"]),
        ("What will be prevented if A strike and began?", ["Work"]),
    ]
    assert steps(train)["passages of the test"] == (3, 2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[[0, 12]]", "[[0, 99]]", r"labelData.0.reason: got \[0, 99\]; expected positions in the passage of 44"),
        ("[[0, 12]]", "[[0]]", r"labelData.0.reason: got \[0\]; expected \[start, end\]"),
        ("[[0, 12]]", "7", "labelData.0.reason: got 7; expected a list"),
        ('"type": "cause"', '"type": "causes"', "labelData.0.type: got 'causes'; expected one of"),
        ('"labelData"', '"labels"', "labelData: missing; expected a list of objects"),
    ],
)
def test_cqa_names_file_item_and_field_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / "cqa/raw/event_dataset_test.json", old, new)
    with pytest.raises(UserError, match=rf"event_dataset_test\.json, item 1: {message}"):
        read(raw, "cqa", ("test",))


def test_cqa_names_the_item_of_a_converted_row_that_does_not_parse(raw: Path) -> None:
    replace(raw / "cqa/reconstruct_rl/train.json", "[Relation] prevent", "[Relation] hinder")
    with pytest.raises(UserError, match=r"train\.json, item 2: context: got 'hinder'; expected one of"):
        read(raw, "cqa")
