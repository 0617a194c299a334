"""Typed cells as text, own conversations, and questions without answers."""

import json
import unicodedata
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from d2e_sft.data.conversation import Turn
from d2e_sft.data.hub_rows import fetch_rows
from d2e_sft.data.rows import samples_of
from d2e_sft.data.sample import BadRow, EventSample, read_samples, write_samples
from d2e_sft.util.answers import contains, is_same_answer
from d2e_sft.util.errors import UserError
from data_builders.own_data.questions import read_questions
from tests.command import output_of
from tests.data_builders.own_rows import QA, rows_of, write
from tests.tiny import TURNS

ASKED = {"context": "In 1998 it cost 0.1.", "question": "When?"}

CELLS: list[tuple[Any, pa.DataType, str]] = [
    (1998.0, pa.float64(), "1998"),
    (1998.0, pa.float32(), "1998"),
    (0.1, pa.float32(), "0.1"),
    (0.1, pa.float16(), "0.1"),
    (0.30000000000000004, pa.float64(), "0.30000000000000004"),
    (-0.0, pa.float64(), "0"),
    (2.0**53, pa.float64(), "9007199254740992"),
    (1.5e-7, pa.float64(), "1.5e-07"),
    (2**60, pa.int64(), "1152921504606846976"),
    (Decimal("1.50"), pa.decimal128(5, 2), "1.50"),
    (True, pa.bool_(), "true"),
    (date(2020, 1, 31), pa.date32(), "2020-01-31"),
    (datetime(2020, 1, 31), pa.timestamp("ns"), "2020-01-31"),
    (datetime(2020, 1, 31, 12, 30), pa.timestamp("s"), "2020-01-31T12:30:00"),
    (datetime(2020, 1, 31, tzinfo=UTC), pa.timestamp("us", "UTC"), "2020-01-31T00:00:00+00:00"),
    (time(12, 30), pa.time32("s"), "12:30:00"),
]


@pytest.mark.parametrize(("value", "kind", "text"), CELLS)
@pytest.mark.parametrize("source", ["parquet", "hub"])
def test_a_typed_cell_and_a_list_of_them_are_written_by_one_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, value: object, kind: pa.DataType, text: str
) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    fetch_rows.cache_clear()
    for answers, column in (([value], kind), ([[value]], pa.list_(kind))):
        cells = {name: pa.array([text]) for name, text in ASKED.items()}
        table = pa.table({**cells, "answer": pa.array(answers, column)})
        folder = tmp_path / ("list" if pa.types.is_list(column) else "cell")
        if source == "parquet":
            spec = write(folder, mine_yaml=QA.replace("csv", "parquet"))
            folder.mkdir(exist_ok=True)
            pq.write_table(table, folder / "mine.parquet")
        else:
            datasets.Dataset(table).save_to_disk(folder / "saved")
            spec = write(folder, mine_yaml=QA.replace("mine.csv", f"hf:{folder}/saved"))
        assert [row.answers for row in rows_of(spec)] == [[text]]


@pytest.mark.parametrize(
    ("number", "text"),
    [("1998.0", "1998"), ("1.50", "1.50"), ("1e3", "1e3"), ("-0.0", "0"), ("6.022e23", "6.022e23"), ("false", "false"),
     ("1152921504606846976", "1152921504606846976"), ("0.1000", "0.1000")],
)  # fmt: skip
@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_a_number_of_json_keeps_its_own_text(tmp_path: Path, ending: str, number: str, text: str) -> None:
    row = json.dumps(ASKED)[:-1] + f', "answer": [{number}], "id": {number}}}'
    content = f"[{row}]" if ending == "json" else row
    (tmp_path / f"mine.{ending}").write_text(content)
    (found,) = rows_of(write(tmp_path, mine_yaml=QA.replace("csv", ending)))
    assert (found.answers, found.id) == ([text], text)


def test_a_column_of_integers_with_an_empty_cell_names_options_labels_and_ids_as_before(tmp_path: Path) -> None:
    rows = [ASKED | {"id": i, "a": 1998, "b": 1999, "answer": i % 2, "guess": i % 2} for i in range(4)]
    frame = pd.DataFrame([*rows, ASKED | {"id": 9, "a": 1, "b": 2, "answer": 0}, ASKED | {"id": 10}])
    write(tmp_path / "scq", mine_yaml="")
    frame.to_parquet(tmp_path / "scq/mine.parquet")
    spec = "train: mine.parquet\nformat: scq\nanswer_as: from-0\ncolumns: {options: [a, b], habit: guess}\n"
    found = rows_of(write(tmp_path / "scq", mine_yaml=spec), skip_bad=True)
    assert [(row.id, row.options, row.answers, row.habit) for row in found] == [
        ("0", ["1998", "1999"], ["1998"], ["1998"]),
        ("1", ["1998", "1999"], ["1999"], ["1999"]),
        ("2", ["1998", "1999"], ["1998"], ["1998"]),
        ("3", ["1998", "1999"], ["1999"], ["1999"]),
        ("9", ["1", "2"], ["1"], []),
    ]
    assert len((tmp_path / "scq/out/bad_rows.jsonl").read_text().splitlines()) == 1


def test_the_build_says_which_cells_it_wrote_otherwise_than_the_file(tmp_path: Path) -> None:
    rows = [ASKED | {"id": i, "answer": answer} for i, answer in enumerate([1998.0, 0.1, True, False])]
    spec = write(tmp_path, mine_yaml=QA.replace("csv", "json"), mine_json=json.dumps(rows))
    printed = output_of("data", "build", "--datasets", spec, "--out", tmp_path / "out")
    assert "cells of mine train: 1 whole floats without .0 (answer), 2 booleans as true or false (answer)" in printed


def test_an_answer_of_several_lines_becomes_one_line_as_scores_read_it(tmp_path: Path) -> None:
    rows = [
        ASKED | {"answer": "Take 2 eggs.\nAdd milk.", "guess": "Bake.\n\nEat."},
        ASKED | {"answer": "two  eggs\n", "guess": None},
    ]
    text = QA.replace("csv", "json") + "columns: {habit: guess}\n"
    spec = write(tmp_path, mine_yaml=text, mine_json=json.dumps([row | {"id": i} for i, row in enumerate(rows)]))
    printed = output_of("data", "build", "--datasets", spec, "--out", tmp_path / "out")
    joined = "1 texts of several lines on one, which `format: chat` keeps"
    assert f"cells of mine train: {joined} (answer), {joined} (guess)" in printed
    row, other = read_samples(tmp_path / "out/train.parquet")
    assert (row.answers, row.habit, other.answers) == (["Take 2 eggs. Add milk."], ["Bake. Eat."], ["two  eggs"])


def test_texts_have_one_unicode_form_and_ids_and_columns_keep_theirs(tmp_path: Path) -> None:
    apart = partial(unicodedata.normalize, "NFD")
    rows = f"{apart('köln')},question,answer,id\n{apart('In Köln.')},Wo?,Köln,{apart('ö')}\n"
    spec = f"train: mine.csv\nformat: qa\ncolumns: {{context: {apart('köln')}}}\n"
    (found,) = rows_of(write(tmp_path / "qa", mine_yaml=spec, mine_csv=rows))
    assert (found.context, found.id) == ("In Köln.", apart("ö"))
    turns = [{"role": "user", "content": "<c>Köln</c> Wo?"}, {"role": "assistant", "content": "Köln"}]
    chats = apart(json.dumps({"messages": turns}, ensure_ascii=False))
    (chat,) = rows_of(write(tmp_path / "chat", mine_yaml=SPEC + "context_in: <c>\n", mine_jsonl=chats))
    assert (chat.context, chat.answers) == ("Köln", ["Köln"])
    spec = f"train: mine.csv\nformat: nli\nlabels: {{{apart('träfe')}: positive}}\n"
    rows = apart("context,question,answer\nEr traf.,Traf er?,träfe\n")
    assert rows_of(write(tmp_path / "nli", mine_yaml=spec, mine_csv=rows))[0].answers == ["positive"]
    assert contains(apart("In Köln."), "Köln")
    assert is_same_answer(apart("Köln"), "Köln")


def test_questions_have_options_by_the_same_rule(tmp_path: Path) -> None:
    write(tmp_path, mine_parquet=[ASKED | {"id": 7.0, "options": [1998.0, 0.5]}])
    ((question,), _) = read_questions(tmp_path / "mine.parquet", mapping=None, fmt=None)
    assert (question.id, question.options) == ("7", ["1998", "0.5"])


def test_rows_of_a_frame_have_nothing_where_a_cell_is_empty() -> None:
    rows = [{**ASKED, "answer": "1998", "refined_context": "In 1998.", "when": pd.Timestamp(2020, 1, 1)},
            {**ASKED, "answer": "1998"}, {"messages": [{"role": "user", "content": "Why?"},
                                                       {"role": "assistant", "content": "So."}]}]  # fmt: skip
    found = samples_of(pd.DataFrame(rows).to_dict("records"), "train_dataset")
    assert [(row.refined_context, row.context) for row in found] == [
        ("In 1998.", ASKED["context"]), (None, ASKED["context"]), (None, "")]  # fmt: skip
    for empty in (float("nan"), pd.NaT, pd.NA):
        with pytest.raises(UserError, match="row 0: `answer` is None; expected text"):
            samples_of([{**ASKED, "answer": empty}], "train_dataset")
    with pytest.raises(UserError, match="`context`: got 5; expected text"):
        samples_of([{"context": 5, "messages": rows[2]["messages"]}], "train_dataset")


SPEC = "train: mine.jsonl\nformat: chat\n"
ONE = [
    {"role": "user", "content": "<doc>It rains. Ann runs.</doc> Why?"},
    {"role": "assistant", "content": "It rains."},
]


def lines(*rows: object, name: str = "messages") -> str:
    return "".join(json.dumps({name: row}) + "\n" for row in rows)


def test_each_turn_gives_a_row_and_parquet_reads_as_jsonl_does(tmp_path: Path) -> None:
    spec = SPEC.replace("jsonl", "parquet") + "loss: each\ncolumns: {messages: chat}\n"
    rows = rows_of(write(tmp_path, mine_yaml=spec, mine_parquet=[{"chat": TURNS}]))
    assert [(row.id, row.answers) for row in rows] == [
        ("mine-train-1-1", ["Within 30 days."]),
        ("mine-train-1-2", ["The receipt."]),
    ]


def test_own_wording_is_all_that_the_model_sees(tmp_path: Path) -> None:
    spec = (
        "train: mine.csv\nformat: chat\nsystem: You help customers.\n"
        'prompt: "Policy: {context}\\nCustomer: {question}"\n'
    )
    rows = "context,question,answer\nGoods go back within 30 days.,How long?,30 days\n"
    (row,) = rows_of(write(tmp_path, mine_yaml=spec, mine_csv=rows))
    assert row.conversation.turns == [
        Turn(role="system", content="You help customers."),
        Turn(role="user", content="Customer: How long?"),
    ]
    assert row.conversation.messages(row.context)[1]["content"] == (
        "Policy: Goods go back within 30 days.\nCustomer: How long?"
    )


def ask(
    file: Path, mapping: Path | None = None, fmt: str | None = None, *, skip_bad: bool = False
) -> tuple[list[EventSample], list[BadRow]]:
    return read_questions(file, mapping=mapping, fmt=fmt, skip_bad=skip_bad)


def test_a_row_says_its_format_or_its_options_do(tmp_path: Path) -> None:
    rows = [
        {"context": "A.", "question": "Q?"},
        {"context": "A.", "question": "Q?", "options": ["x", "y"]},
        {"context": "A.", "question": "Q?", "options": ["x", "y"], "format": "mcq"},
        {"context": "A.", "question": "H.", "format": "nli", "answers": ["not read"], "relation": "causal"},
    ]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    samples, _ = ask(tmp_path / "q.jsonl")
    assert [sample.format for sample in samples] == ["qa", "scq", "mcq", "nli"]
    assert [sample.id for sample in samples] == ["1", "2", "3", "4"], "lines, where there are no ids"
    assert [sample.relation for sample in samples] == ["none"] * 3 + ["causal"]
    assert samples[2].options == ["x", "y"]
    (tmp_path / "q.csv").write_text("context,question\nA.,H.\n")
    assert [sample.format for sample in ask(tmp_path / "q.csv", fmt="nli")[0]] == ["nli"]


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_a_built_chat_is_asked_as_it_was_built(tmp_path: Path, ending: str) -> None:
    turns = [{"role": "user", "content": "<context>A.</context> Q?"}, {"role": "assistant", "content": "R."}]
    (tmp_path / "mine.jsonl").write_text(json.dumps({"messages": turns}))
    spec = write(tmp_path, mine_yaml="train: mine.jsonl\nformat: chat\n")
    output_of("data", "build", "--datasets", spec, "--out", tmp_path / "out")
    (built,) = read_samples(tmp_path / "out/train.parquet")
    write_samples([built], tmp_path / f"rows.{ending}")
    ((asked,), _) = ask(tmp_path / f"rows.{ending}")
    assert (asked.id, asked.context, asked.conversation) == (built.id, "A.", built.conversation)
    assert "R." not in asked.answers


def test_a_description_is_followed_and_its_answer_column_is_not_needed(tmp_path: Path) -> None:
    mapping = tmp_path / "mine.yaml"
    mapping.write_text(
        "train: train.csv\ntest: test.csv\nformat: scq\nrelation: causal\nseparator: ';'\n"
        "columns: {context: story, question: ask, options: choices, answer: key}\nanswer_as: letter\n"
    )
    (tmp_path / "test.csv").write_text("story,ask,choices\nIt rained.,Why?,wet;dry\n")
    (tmp_path / "train.csv").write_text("story,ask,choices,key\nIt rained.,Why?,wet;dry,A\n")
    described, given = ask(mapping)[0], ask(tmp_path / "test.csv", mapping)[0]
    assert described == given
    assert (given[0].options, given[0].relation, given[0].id) == (["wet", "dry"], "causal", "2")
    (tmp_path / "train.csv").unlink()
    assert ask(tmp_path / "test.csv", mapping)[0] == given, "files that it names need not be there"
    with pytest.raises(UserError, match=r"train\.csv: no such file"):
        ask(mapping)
