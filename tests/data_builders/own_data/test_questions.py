"""Rows without answers: what is read of them, how they are named, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.data.bad_rows import BadRow
from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from data_builders.own_data.questions import read_questions


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


def test_a_prompt_of_ones_own_is_what_the_model_sees(tmp_path: Path) -> None:
    mapping = tmp_path / "mine.yaml"
    mapping.write_text("train: a.csv\nformat: chat\nsystem: Be brief.\nprompt: '{question} Here: {context}'\n")
    (tmp_path / "q.csv").write_text("context,question\nIt rained.,Why?\n")
    [sample] = ask(tmp_path / "q.csv", mapping)[0]
    assert (sample.format, sample.relation) == ("chat", "none")
    assert "Be brief." in str(sample.conversation)
