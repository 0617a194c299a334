"""Own conversations as a build reads them."""

from __future__ import annotations

import json
from pathlib import Path

from d2e_sft.data.conversation import Turn
from tests.chat_samples import TURNS
from tests.data_builders.own_rows import rows_of, write

SPEC = "train: mine.jsonl\nformat: chat\n"
ONE = [
    {"role": "user", "content": "<doc>It rains. Ann runs.</doc> Why?"},
    {"role": "assistant", "content": "It rains."},
]


def lines(*rows: object, name: str = "messages") -> str:
    return "".join(json.dumps({name: row}) + "\n" for row in rows)


def test_conversations_become_chat_rows_of_no_relation(tmp_path: Path) -> None:
    (row,) = rows_of(write(tmp_path, mine_yaml=SPEC, mine_jsonl=lines(TURNS)))
    assert (row.format, row.relation, row.id) == ("chat", "none", "mine-train-1")
    assert (row.context, row.refined_context) == (
        "Goods are returned within 30 days. Bring the receipt.",
        "Bring the receipt.",
    )
    assert row.answers == ["The receipt."]


def test_each_turn_gives_a_row_and_parquet_reads_as_jsonl_does(tmp_path: Path) -> None:
    spec = SPEC.replace("jsonl", "parquet") + "loss: each\ncolumns: {messages: chat}\n"
    rows = rows_of(write(tmp_path, mine_yaml=spec, mine_parquet=[{"chat": TURNS}]))
    assert [(row.id, row.answers) for row in rows] == [
        ("mine-train-1-1", ["Within 30 days."]),
        ("mine-train-1-2", ["The receipt."]),
    ]


def test_trained_on_in_all_turns_the_refined_context_serves_all_answers(tmp_path: Path) -> None:
    (row,) = rows_of(write(tmp_path, mine_yaml=SPEC + "loss: all\n", mine_jsonl=lines(TURNS)))
    assert row.conversation.loss == "all"
    assert row.refined_context == row.context


def test_prompt_and_completion_are_one_conversation(tmp_path: Path) -> None:
    row = json.dumps({"prompt": ONE[:1], "completion": ONE[1:]})
    spec = SPEC + "context_in: <doc>\ncolumns: {messages: [prompt, completion]}\n"
    (found,) = rows_of(write(tmp_path, mine_yaml=spec, mine_jsonl=row + "\n"))
    assert (found.context, found.answers) == ("It rains. Ann runs.", ["It rains."])


def test_preferences_of_llama_factory_have_one_turn_each(tmp_path: Path) -> None:
    asked, good, bad = [{"from": "human", "value": "Why?"}], {"from": "gpt", "value": "It rains."}, "It snows."
    row = json.dumps({"conversations": asked, "chosen": good, "rejected": {**good, "value": bad}})
    spec = SPEC + "context_in: none\ncolumns: {messages: [conversations, chosen], rejected: rejected}\n"
    (found,) = rows_of(write(tmp_path, mine_yaml=spec, mine_jsonl=row + "\n"))
    assert (found.question, found.answers, found.rejected) == ("Why?", ["It rains."], [bad])


def test_plain_texts_in_two_columns_are_the_turns_of_user_and_assistant(tmp_path: Path) -> None:
    row = json.dumps({"sentence_masked": "Box 0 is empty. Box 0 <extra_id_0> .", "masked_content": "is empty"})
    spec = SPEC + "context_in: none\ncolumns: {messages: [sentence_masked, masked_content]}\n"
    (found,) = rows_of(write(tmp_path, mine_yaml=spec, mine_jsonl=row + "\n"))
    assert found.conversation.turns == [Turn(role="user", content="Box 0 is empty. Box 0 <extra_id_0> .")]
    assert (found.context, found.answers) == ("", ["is empty"])


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


def test_conversations_without_contexts_are_asked_for_by_name(tmp_path: Path) -> None:
    (row,) = rows_of(write(tmp_path, mine_yaml=SPEC + "context_in: none\n", mine_jsonl=lines(ONE)))
    assert row.context == ""
