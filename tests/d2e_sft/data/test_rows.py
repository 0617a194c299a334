"""Rows of a user's own: in memory, of the Hub, and in other programs' forms."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import huggingface_hub
import numpy as np
import pytest
import torch

from d2e_sft.data.foreign import columns_of, refuse_foreign
from d2e_sft.data.hub_rows import Address, fetch_rows, parse_address, splits_of
from d2e_sft.data.rows import file_of, samples_of
from d2e_sft.data.sample import EventSample, read_samples, write_samples
from d2e_sft.util.errors import UserError
from tests.messages import Call, messages_of
from tests.tiny import TURNS, chat_sample, make_sample, make_samples

ROW = {"context": "It rained.", "question": "What fell?", "answer": "rain"}
CHOICE = {"question": "Which?", "answer": "a", "options": ["a", "b"]}
QUOTING = {"prompt": "Context: It rained.\n\nQuestion: What fell?\nAnswer:", "context": " It rained.\n"}
NOT_QUOTING = {**QUOTING, "context": "It snowed.", "completion": "rain"}


def turn(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


SYSTEM, ASKED, ANSWER = turn("system", "Be brief."), turn("user", "How long?"), turn("assistant", "5 days.")
TAGGED = [SYSTEM, turn("user", "<context>Refunds take 5 days.</context> How long?"), ANSWER]
WORSE = turn("assistant", "No idea.")
SEVERAL = [turn(role, text) for role in ("user", "assistant") for text in ("Why?",)] * 2
QUOTED = turn("user", "Context: It rained.\nWhat fell?")
NAMES = {"user": "human", "assistant": "gpt"}
SHAREGPT = [{"from": NAMES.get(said["role"], "developer"), "value": said["content"]} for said in TAGGED]


def read(*rows: Any, name: str = "train_dataset", **options: Any) -> Call:
    """The samples of rows, a line each; of conversations what a model sees of the original and the imagined view."""

    def line(sample: EventSample) -> str:
        fields = sample.model_dump(exclude_defaults=True)
        if chat := sample.conversation:
            views = (chat.messages(context) for context in (sample.context, ""))
            fields["conversation"] = [chat.loss, *([turn["content"] for turn in view] for view in views)]
        return json.dumps(fields, ensure_ascii=False)

    return lambda folder: "\n".join(map(line, samples_of(list(rows), name, **options)))


def refused(rows: Any) -> Call:
    """What is said of rows that are not a list of rows."""
    return lambda folder: str(samples_of(rows, "train_dataset"))


test_rows = messages_of(
    __file__,
    {
        "a free question": read(ROW),
        "SQuAD's answers and choices": read(
            {**ROW, "answers": {"text": ["rain", "water"], "answer_start": [0, 0]}},
            CHOICE,
            {**CHOICE, "answers": ["a", "b"]},
            name="eval_dataset",
        ),
        "conversations of TRL": read(
            {"messages": TAGGED}, {"conversations": SHAREGPT}, {"prompt": TAGGED[:2], "completion": TAGGED[2:]}
        ),
        "turns in parts and after the answer": read(
            {"messages": [*TAGGED, turn("user", [part("And "), part("on Sunday?")]), ANSWER, ASKED]}
        ),
        "a context in a column": read({"messages": [ASKED, ANSWER], "context": "5 days."}),
        "a text and its completion": read({"prompt": "What fell?", "completion": " rain"}),
        "preferences of TRL": read(
            {"prompt": [ASKED], "chosen": [ANSWER], "rejected": [WORSE]},
            {"chosen": [ASKED, ANSWER], "rejected": [ASKED, WORSE]},
            {"prompt": "How long?", "chosen": "5 days.", "rejected": "No idea."},
            {"prompt": "How long?", "chosen": "5 days.", "rejected": None},
        ),
        "turns of the loss": read({"messages": SEVERAL}, {"messages": SEVERAL, "loss": "all"}),
        "contexts that turns quote": read(
            *(
                {"prompt": [QUOTED], "completion": [turn("assistant", "Rain.")], "context": c}
                for c in ("It rained.", "")
            )
        ),
        "a text that quotes its context": read(
            {**QUOTING, "completion": " rain"},
            {**QUOTING, "chosen": " rain", "rejected": " hail"},
            {**QUOTING, "answer": "rain"},
        ),
        "texts that do not": read(NOT_QUOTING, {**ROW, "question": "It rained. What fell?"}),
        "prompts alone": read(
            QUOTING, {**QUOTING, "prompt": [turn("user", QUOTING["prompt"])]}, name="samples", answered=False
        ),
        "no answer turn": read({"messages": TAGGED[:2]}),
        "rejected is right": read({"prompt": [ASKED], "chosen": [ANSWER], "rejected": [ANSWER]}),
        "rejected has other turns": read({"prompt": [ASKED], "chosen": [ANSWER], "rejected": [ASKED, WORSE]}),
        "rejected has no answer": read({"prompt": [ASKED], "chosen": [ANSWER], "rejected": [ASKED]}),
        "turns that are text": read({"messages": "Hello"}),
        "turns without a role": read({"messages": [{"text": "Hello"}]}),
        "an unknown role": read({"messages": [turn("critic", "Hm.")]}),
        "an image": read({"messages": [turn("user", [{"type": "image_url"}])]}),
        "a tool call": read({"messages": [{**turn("assistant", ""), "tool_calls": [{"id": 1}]}]}),
        "no content": read({"messages": [turn("user", None)]}),
        "only an answer": read({"messages": [ANSWER]}),
        "a blank answer": read({"messages": [ASKED, turn("assistant", " ")]}),
        "another loss": read({"messages": SEVERAL, "loss": "both"}),
        "a prompt that is its context": read({"prompt": "It rained.", "completion": "a", "context": "It rained."}),
        "a prompt that quotes twice": read({**QUOTING, "prompt": "It rained. Wet? It rained.", "answer": "a"}),
        "a quoting prompt with options": read({**QUOTING, "answer": "rain", "options": ["rain", "hail"]}),
        "another name": read(ROW, {"query": "What?", "answer": "x"}),
        "no answer": read({"question": "What?", "label": "x"}),
        "KTO": read(ROW, {"prompt": "What?", "completion": "x", "label": False}),
        "no option": read({**ROW, "options": ["hail"]}),
        "a blank question": read({**ROW, "question": " "}),
        "no dict": read("What fell?"),
        "no rows": read(),
        "several splits": refused(datasets.DatasetDict({"a": datasets.Dataset.from_list([ROW])})),
        "a stream": refused(datasets.Dataset.from_list([ROW]).to_iterable_dataset()),
        "an answer that is None": read({**ROW, "answer": None}),
        "a completion that is None": read({"prompt": "a", "completion": None}),
        "no completion": read({"prompt": "a"}),
        "two contexts": read({"messages": TAGGED, "context": "It pours."}),
        "two spans": read({"messages": [turn("user", "<context>A.</context> <context>B.</context> Wet?"), ANSWER]}),
        "an open tag": read({"messages": [turn("user", "<context>Wet?"), ANSWER]}),
        "one row": refused(ROW),
        "columns": refused({key: [value] for key, value in ROW.items()}),
        "one conversation": refused({"messages": [ASKED]}),
        "splits in a dict": refused({"train": [ROW], "test": [ROW]}),
        **{
            f"foreign {name}": lambda tmp, name=name, text=text: refuse_foreign(saved(tmp / name, text))
            for name, text in {
                "mine.csv": "passage,query,label\na,b,c\n",
                "mine.tsv": "passage\tquery\tlabel\n",
                "mine.jsonl": '\n{"passage": "a", "query": "b", "response": "c"}\n',
                "chats.jsonl": '{"conversations": []}\n',
            }.items()
        },
    },
)


def saved(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_of_every_kind_are_the_same_samples(tmp_path: Path) -> None:
    samples = make_samples(3)
    write_samples(samples, tmp_path / "rows.parquet")
    dumped = [sample.model_dump() for sample in samples]
    for rows in (samples, dumped, datasets.Dataset.from_list(dumped), str(tmp_path / "rows.parquet")):
        assert samples_of(rows, "train_dataset") == samples


def test_columns_that_are_not_used_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    samples_of([{**ROW, "title": "x", "url": "y"}], "train_dataset")
    assert capsys.readouterr().err == "train_dataset: unused columns: title, url\n"


def test_contexts_that_no_turn_quotes_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"prompt": [QUOTED], "completion": [ANSWER]}
    _, apart, _ = samples_of([{**row, "context": text} for text in ("It rained.", "It snowed.", "")], "x")
    assert apart.conversation is not None
    assert apart.conversation.messages(apart.context)[0]["content"].startswith("It snowed.\n\nContext: ")
    assert capsys.readouterr().err.startswith("x: in 1 of 2 rows no turn quotes")
    samples_of([{**row, "context": "It rained."}], "x")
    assert not capsys.readouterr().err


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


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_samples_pass_and_so_does_what_reading_judges_better(tmp_path: Path, ending: str) -> None:
    write_samples(make_samples(2), tmp_path / f"rows.{ending}")
    refuse_foreign(tmp_path / f"rows.{ending}")
    assert "answers" in columns_of(tmp_path / f"rows.{ending}")
    (tmp_path / "broken.jsonl").write_text("{", encoding="utf-8")
    refuse_foreign(tmp_path / "broken.jsonl")
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n', encoding="utf-8")
    refuse_foreign(tmp_path / "other.jsonl", first_row=False)
