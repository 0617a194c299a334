"""Rows of a user's own: in memory, of the Hub, and in other programs' forms."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import huggingface_hub
import numpy as np
import pytest
import torch

from d2e_sft.data.foreign import columns_of, nearest_columns, refuse_foreign
from d2e_sft.data.hub_rows import Address, fetch_rows, parse_address, splits_of
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.rows import file_of, samples_of
from d2e_sft.data.sample import read_samples, write_samples
from d2e_sft.util.errors import UserError
from tests.tiny import TURNS, chat_sample, make_sample, make_samples

ROW = {"context": "It rained.", "question": "What fell?", "answer": "rain"}
TAGGED = {
    "messages": [
        {"role": "user", "content": "<context>It rains.</context> Wet?"},
        {"role": "assistant", "content": "Yes."},
    ]
}


def test_rows_of_every_kind_are_the_same_samples(tmp_path: Path) -> None:
    samples = make_samples(3)
    write_samples(samples, tmp_path / "rows.parquet")
    dumped = [sample.model_dump() for sample in samples]
    for rows in (samples, dumped, datasets.Dataset.from_list(dumped), str(tmp_path / "rows.parquet")):
        assert samples_of(rows, "train_dataset") == samples


def test_what_a_row_does_not_say_is_filled_in() -> None:
    free = samples_of([ROW], "train_dataset")[0]
    assert (free.id, free.format, free.relation, free.split, free.answers) == ("0", "qa", "none", "train", ["rain"])
    squad = {**ROW, "answers": {"text": ["rain", "water"], "answer_start": [0, 0]}}
    choice = {"question": "Which?", "answer": "a", "options": ["a", "b"]}
    held_out = samples_of([squad, choice, {**choice, "answers": ["a", "b"]}], "eval_dataset")
    assert [sample.format for sample in held_out] == ["qa", "scq", "mcq"]
    assert [sample.answers for sample in held_out] == [["rain", "water"], ["a"], ["a", "b"]]
    assert {sample.split for sample in held_out} == {"dev"}
    assert held_out[1].context == ""


def test_conversations_are_read_in_the_shapes_of_trl() -> None:
    system, asked = {"role": "system", "content": "Be brief."}, "<context>Refunds take 5 days.</context> How long?"
    turns = [system, {"role": "user", "content": asked}, {"role": "assistant", "content": "5 days."}]
    shapes = [
        {"messages": turns},
        {"conversations": [{"from": turn["role"], "value": turn["content"]} for turn in turns]},
        {"prompt": turns[:2], "completion": turns[2:]},
    ]
    found = samples_of(shapes, "train_dataset")
    for sample in found:
        assert (sample.format, sample.context, sample.answers) == ("chat", "Refunds take 5 days.", ["5 days."])
        assert sample.conversation == found[0].conversation
    apart = samples_of([{"messages": [{"role": "user", "content": "How long?"}, turns[2]], "context": "5 days."}], "x")
    assert apart[0].context == "5 days."
    assert samples_of([{"prompt": "What fell?", "completion": " rain"}], "x")[0].answers == ["rain"]
    with pytest.raises(UserError, match="train_dataset, row 0: no assistant turn among system, user"):
        samples_of([{"messages": turns[:2]}], "train_dataset")


def test_preferences_are_read_in_the_shapes_of_trl() -> None:
    asked, good, bad = (
        {"role": role, "content": text}
        for role, text in (("user", "How long?"), ("assistant", "5 days."), ("assistant", "No idea."))
    )
    shapes = [
        {"prompt": [asked], "chosen": [good], "rejected": [bad]},
        {"chosen": [asked, good], "rejected": [asked, bad]},
        {"prompt": "How long?", "chosen": "5 days.", "rejected": "No idea."},
    ]
    for sample in samples_of(shapes, "train_dataset"):
        assert (sample.question, sample.answers, sample.rejected) == ("How long?", ["5 days."], ["No idea."])
    none = samples_of([{"prompt": "How long?", "chosen": "5 days.", "rejected": None}], "x")[0]
    assert none.rejected == []
    for rejected, told in (
        ([good], "row 0: rejected: ['5 days.'] is a right answer; expected another one, or nothing"),
        ([asked, bad], "row 0: rejected: expected the turns of `chosen`, except for the assistant's last one"),
        ([asked], "row 0: rejected: expected the turns of `chosen`"),
    ):
        with pytest.raises(UserError, match=re.escape(told)):
            samples_of([{"prompt": [asked], "chosen": [good], "rejected": rejected}], "train_dataset")


def test_a_conversation_says_which_turns_the_loss_is_on() -> None:
    turns = [{"role": role, "content": text} for role in ("user", "assistant") for text in ("Why?",)] * 2
    last, every = samples_of([{"messages": turns}, {"messages": turns, "loss": "all"}], "train_dataset")
    assert last.conversation is not None
    assert every.conversation is not None
    assert (last.conversation.loss, every.conversation.loss) == ("last", "all")
    with pytest.raises(UserError, match="row 0: loss: 'both'; expected last or all"):
        samples_of([{"messages": turns, "loss": "both"}], "train_dataset")


def test_columns_that_are_not_used_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    samples_of([{**ROW, "title": "x", "url": "y"}], "train_dataset")
    assert capsys.readouterr().err == "train_dataset: unused columns: title, url\n"


def test_contexts_that_no_turn_quotes_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [{"role": "user", "content": "Context: It rained.\nWhat fell?"}]
    row = {"prompt": asked, "completion": [{"role": "assistant", "content": "Rain."}]}
    found, apart, _ = samples_of([{**row, "context": text} for text in ("It rained.", "It snowed.", "")], "x")
    assert found.conversation is not None
    assert found.conversation.messages(found.context) == asked
    assert apart.conversation is not None
    assert apart.conversation.messages(apart.context)[0]["content"].startswith("It snowed.\n\nContext: ")
    assert capsys.readouterr().err.startswith("x: in 1 of 2 rows no turn quotes")
    samples_of([{**row, "context": "It rained."}], "x")
    assert not capsys.readouterr().err


QUOTING = {"prompt": "Context: It rained.\n\nQuestion: What fell?\nAnswer:", "context": " It rained.\n"}


@pytest.mark.parametrize(
    "more", [{"completion": " rain"}, {"chosen": " rain", "rejected": " hail"}, {"answer": "rain"}]
)
def test_a_text_that_quotes_its_context_has_it_once_and_the_imagined_view_none(more: dict[str, str]) -> None:
    (sample,) = samples_of([{**QUOTING, **more}], "x")
    wording = load_prompt_set("default")
    asked = {view: wording.messages(sample, view)[-1]["content"] for view in ("original", "imagined")}
    assert asked == {"original": QUOTING["prompt"], "imagined": QUOTING["prompt"].replace("It rained.", "")}
    assert len(wording.messages(sample, "original")) == 1
    assert (wording.response(sample), sample.rejected) == ("rain", ["hail"] if "rejected" in more else [])
    changed = sample.model_copy(update={"refined_context": "Rain."})
    assert wording.messages(changed, "refined")[0]["content"] == QUOTING["prompt"].replace("It rained.", "Rain.")


def test_other_texts_and_questions_of_their_own_have_the_words_of_the_prompt_set() -> None:
    told = "It rained. What fell?"
    rows = [{**QUOTING, "context": "It snowed.", "completion": "rain"}, {**ROW, "question": told}]
    for sample in samples_of(rows, "x"):
        assert (sample.format, sample.conversation) == ("qa", None)
    with pytest.raises(UserError, match="row 0: no question before the assistant turn"):
        samples_of([{"prompt": "It rained.", "completion": "a", "context": "It rained."}], "x")


@pytest.mark.parametrize("prompt", [QUOTING["prompt"], [{"role": "user", "content": QUOTING["prompt"]}]])
def test_prompts_alone_are_read_where_answers_are_not_needed(prompt: Any) -> None:
    (sample,) = samples_of([{**QUOTING, "prompt": prompt}], "samples", answered=False)
    messages = load_prompt_set("default").messages(sample, "original")
    assert messages == [{"role": "user", "content": QUOTING["prompt"]}]


def test_a_dataset_of_the_hub_stands_for_a_file_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    datasets.Dataset.from_list([{"messages": TURNS}]).save_to_disk(tmp_path / "chats")
    (sample,) = read_samples(file_of(f"hf:{tmp_path}/chats"))
    assert (sample.format, sample.answers, sample.refined_context) == ("chat", ["The receipt."], None)
    pushed = [make_sample(1, context="One.\u2028Two.\x85Three."), chat_sample()]
    write_samples(pushed, tmp_path / "pushed" / "train.parquet")
    assert read_samples(file_of(f"hf:{tmp_path}/pushed")) == pushed
    assert file_of("rows.parquet") == Path("rows.parquet")


def test_tensors_and_arrays_in_rows_are_their_values() -> None:
    given = [{**ROW, "answer": None, "answers": np.array(["rain", "water"]), "meta": {"line": torch.tensor(5)}}]
    expected = samples_of([{**ROW, "answers": ["rain", "water"], "meta": {"line": 5}}], "train_dataset")
    assert samples_of(given, "train_dataset") == expected
    rows = [{**ROW, "answers": ["rain", "water"], "meta": {"line": 5}}]
    for kind in ("torch", "numpy"):
        assert samples_of(datasets.Dataset.from_list(rows).with_format(kind), "train_dataset") == expected


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([ROW, {"query": "What?", "answer": "x"}], "train_dataset, row 1: no `question`; it has query, answer"),
        ([{"question": "What?", "label": "x"}], "row 0: no `answer`; it has question, label"),
        ([ROW, {"prompt": "What?", "completion": "x", "label": False}], "row 1: label=False marks a wrong"),
        ([{**ROW, "options": ["hail"]}], "row 0: answers: ['rain'] not among the options"),
        ([{**ROW, "question": " "}], "row 0: question: got ' '; expected text that is not empty"),
        (["What fell?"], "row 0: got 'What fell?', a str; expected a dict"),
        ([], "train_dataset: no rows"),
        (datasets.DatasetDict({"a": datasets.Dataset.from_list([ROW])}), "has the splits a; expected one of them"),
        (datasets.Dataset.from_list([ROW]).to_iterable_dataset(), "without a length"),
        ([{**ROW, "answer": None}], "row 0: `answer` is None; expected text\n  remedy: fill it"),
        ([{"prompt": "a", "completion": None}], "row 0: `completion` is None; expected text"),
        ([{"prompt": "a"}], "row 0: no `answer`; it has prompt; expected"),
        (
            [{**QUOTING, "prompt": "It rained. Wet? It rained.", "answer": "a"}],
            "row 0: turn 1: 2 quotations of the context; expected one",
        ),
        (
            [{**QUOTING, "answer": "rain", "options": ["rain", "hail"]}],
            "row 0: `options` with a `prompt` that quotes its context",
        ),
        ([{**TAGGED, "context": "It pours."}], "a context of its own, and another one between <context> tags"),
        (
            [{"messages": [{"role": "user", "content": "<context>Wet?"}, *TAGGED["messages"][1:]]}],
            "without </context>",
        ),
        (
            ROW,
            "got one row in a dict, context, question, answer; expected a list of rows\n  remedy: put it",
        ),
        ({key: [value] for key, value in ROW.items()}, "got columns in a dict, context, question, answer; expected"),
        ({"messages": [{"role": "user", "content": "a"}]}, "got one row in a dict, messages"),
        ({"train": [ROW], "test": [ROW]}, "has the splits train, test; expected one of them"),
    ],
)
def test_a_row_that_is_refused_is_told_with_its_own_columns(rows: Any, told: str) -> None:
    with pytest.raises(UserError) as refused:
        samples_of(rows, "train_dataset")
    assert told in str(refused.value)


ROWS = [{"question": f"Why {number}?", "turns": [{"role": "user"}]} for number in range(3)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    fetch_rows.cache_clear()


def rows_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_an_address_has_a_name_and_optional_parts() -> None:
    assert parse_address("hf:me/chats") == Address("me/chats")
    assert parse_address("hf:me/chats:en@v1.0#train_sft") == Address("me/chats", "en", "v1.0", "train_sft")
    with pytest.raises(UserError, match="not the address of a dataset; expected hf:OWNER/NAME"):
        parse_address("hf:")


def test_folders_that_datasets_wrote_are_read_by_split(tmp_path: Path) -> None:
    whole = datasets.Dataset.from_list(ROWS)
    whole.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": whole, "validation": whole.select([2])}).save_to_disk(tmp_path / "several")
    assert splits_of(f"hf:{tmp_path}/one") == ["train"]
    assert splits_of(f"hf:{tmp_path}/several") == ["train", "dev"]
    assert rows_in(fetch_rows(f"hf:{tmp_path}/one").path) == ROWS
    assert rows_in(fetch_rows(f"hf:{tmp_path}/one", "train", 2).path) == ROWS[:2]
    assert rows_in(fetch_rows(f"hf:{tmp_path}/several", "dev").path) == ROWS[2:]
    with pytest.raises(UserError, match="has no split 'test'; expected one of train, validation"):
        fetch_rows(f"hf:{tmp_path}/several", "test")
    with pytest.raises(UserError, match="has no split 'test'; it has no splits"):
        fetch_rows(f"hf:{tmp_path}/one", "test")


def test_a_folder_of_data_files_is_read_as_the_hub_would(tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "files" / "test.parquet")
    assert rows_in(fetch_rows(f"hf:{tmp_path}/files", "test").path) == ROWS


def test_a_repository_is_fetched_once_a_commit_and_streamed_where_it_is_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size, asked = 10, list[dict[str, Any]]()

    def load(name: str, config: str | None, **options: Any) -> list[dict[str, Any]]:
        asked.append({"name": name, **options})
        return ROWS

    def info(api: object, name: str, **options: Any) -> SimpleNamespace:
        return SimpleNamespace(sha="c0ffee", siblings=[SimpleNamespace(size=size), SimpleNamespace(size=None)])

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", info)
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda *args, **options: ["train_sft", "test_sft"])
    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(UserError, match="has no split 'train'; expected one of train_sft, test_sft"):
        fetch_rows("hf:me/chats")
    first = fetch_rows("hf:me/chats#train_sft")
    fetch_rows.cache_clear()
    assert fetch_rows("hf:me/chats#train_sft") == first
    assert asked == [{"name": "me/chats", "split": "train_sft", "revision": "c0ffee", "streaming": False}]
    assert (rows_in(first.path), first.commit) == (ROWS, "c0ffee")
    size = 10**10
    assert len(rows_in(fetch_rows("hf:me/chats#test_sft", "train", 1).path)) == 1
    assert asked[1]["streaming"]


def test_without_a_network_one_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(api: object, name: str, **options: Any) -> None:
        raise huggingface_hub.errors.OfflineModeIsEnabled("Cannot reach it: offline mode is enabled.")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", fail)
    with pytest.raises(UserError, match="hf:me/chats: cannot be read from the Hub") as raised:
        fetch_rows("hf:me/chats")
    assert "hf:FOLDER" in str(raised.value)
    with pytest.raises(UserError, match="no such folder"):
        fetch_rows("hf:./missing")


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
