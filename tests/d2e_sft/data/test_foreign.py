"""Rows that are no samples yet: refused with the description that maps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.data.foreign import columns_of, nearest_columns, refuse_foreign
from d2e_sft.data.sample import write_samples
from d2e_sft.util.errors import UserError
from tests.tiny import make_samples


@pytest.mark.parametrize(
    ("fmt", "found", "columns"),
    [
        ("qa", "id Passage query label", "{context: Passage, question: query, answer: label}"),
        ("qa", "document prompt completion", "{context: document, question: prompt, answer: completion}"),
        ("scq", "story ask choices gold", "{context: story, question: ask, options: choices, answer: gold}"),
        ("qa", "contexts question x", "{context: contexts, question: question, answer: …}"),
        ("chat", "id conversations", "{messages: conversations}"),
    ],
)
def test_the_nearest_columns_are_those_that_others_call_so(fmt: str, found: str, columns: str) -> None:
    assert nearest_columns(fmt, found.split(), by_turns=fmt == "chat") == f"columns: {columns}"


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("mine.csv", "passage,query,label\na,b,c\n", "context: passage, question: query, answer: label"),
        ("mine.tsv", "passage\tquery\tlabel\n", "is TSV; expected samples"),
        ("mine.jsonl", '\n{"passage": "a", "query": "b", "response": "c"}\n', "answer: response"),
        ("mine.jsonl", '{"conversations": []}\n', "format: chat"),
    ],
)
def test_other_rows_are_refused_with_what_to_type(tmp_path: Path, name: str, content: str, told: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as raised:
        refuse_foreign(tmp_path / name)
    assert told in str(raised.value)
    assert f"d2e data build --datasets {tmp_path / 'mine.yaml'} --out data/mine" in str(raised.value)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_samples_pass_and_so_does_what_reading_judges_better(tmp_path: Path, ending: str) -> None:
    write_samples(make_samples(2), tmp_path / f"rows.{ending}")
    refuse_foreign(tmp_path / f"rows.{ending}")
    assert "answers" in columns_of(tmp_path / f"rows.{ending}")
    (tmp_path / "broken.jsonl").write_text("{", encoding="utf-8")
    refuse_foreign(tmp_path / "broken.jsonl")
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n', encoding="utf-8")
    refuse_foreign(tmp_path / "other.jsonl", first_row=False)
