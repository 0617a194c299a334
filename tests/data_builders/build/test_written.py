"""What a build writes beside its rows: the card, and exports for other trainers."""

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import load_dataset
from huggingface_hub import DatasetCard

from d2e_sft.config.objectives import VIEWS
from d2e_sft.data.built import read_manifest
from d2e_sft.data.conversation import Conversation, Turn
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample, read_samples, write_samples
from d2e_sft.data.views import ViewEncoder
from data_builders.build.card import render_card
from data_builders.build.export import FORMATS
from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from data_builders.commands import data
from tests.command import call, output_of, refusal_of
from tests.hub_server import HubServer
from tests.tiny import chat_sample, make_sample, tiny_tokenizer


def _built(raw: Path, out: Path, *datasets: str, **options: Any) -> dict[str, Any]:
    build(BuildOptions(datasets, out, raw, **options))
    return read_manifest(out)


def _section(card: str, title: str) -> list[list[str]]:
    """The cells of a section's table, without its header."""
    text = card.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_the_hub_understands_the_front_matter(raw: Path, tmp_path: Path) -> None:
    assert _built(raw, tmp_path, "tracie", "mctaco", "ecare")["seed"] == 0
    metadata = DatasetCard.load(tmp_path / "README.md").data.to_dict()
    assert metadata["license"] == ["apache-2.0", "mit", "unknown"]
    assert metadata["task_categories"] == ["multiple-choice", "text-classification"]
    assert metadata["size_categories"] == ["n<1K"]
    assert metadata["language"] == ["en"]


def test_load_dataset_reads_the_folder_by_its_card(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    _built(raw, tmp_path / "out", "tracie", "ecare")
    loaded = load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert set(loaded) == {"train", "test"}
    for split, rows in loaded.items():
        samples = read_samples(tmp_path / "out" / f"{split}.parquet")
        assert rows["id"] == [sample.id for sample in samples]
        assert rows["refined_context"] == [sample.refined_context for sample in samples]
    *counts, total = _section((tmp_path / "out/README.md").read_text("utf-8"), "Rows")
    assert {tuple(kind): int(count) for *kind, count in counts} == Counter(
        (row["dataset"], row["relation"], row["format"], split) for split, rows in loaded.items() for row in rows
    )
    assert int(total[-1]) == sum(map(len, loaded.values()))


def test_a_card_warns_of_the_sources_that_must_not_be_published(raw: Path, tmp_path: Path) -> None:
    card = render_card(_built(raw, tmp_path / "a", "mctaco", "tracie"))
    assert "**Do not publish this data.**" in card
    assert "> - **mctaco**: the publishers state no licence" in card
    assert "> - **tracie**" not in card
    assert "[tracie](https://" in card
    licences = {row[0].split("]")[0].strip("["): row[2] for row in _section(card, "Licences")}
    assert licences == {"mctaco": "**no**: the publishers state no licence", "tracie": "allowed by the licence"}
    assert "Do not publish" not in render_card(_built(raw, tmp_path / "b", "tracie"))


def test_the_command_in_the_card_builds_the_same_bytes(raw: Path, tmp_path: Path) -> None:
    settings = ["boxes.boxes=2", "boxes.train_samples=6", "boxes.test_samples=3", "refine.max_share=0.5"]
    assert str(tmp_path) not in render_card(_built(raw, tmp_path / "a", "boxes", "tracie", seed=7, settings=settings))
    command = re.findall(r"^\$ d2e data (build .*)$", (tmp_path / "a/README.md").read_text("utf-8"), re.MULTILINE)[0]
    arguments = ["--raw", str(raw), *command.replace("OUT", str(tmp_path / "b")).split()[1:]]
    data.main(["build", *arguments], standalone_mode=False)
    for name in ("train.parquet", "test.parquet", "manifest.json", "README.md"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


ALL_VIEWS = ",".join(VIEWS)
SAMPLES = [
    make_sample(1),
    make_sample(2, format="nli", answers=["positive"]),
    make_sample(3, format="mcq", options=["sun", "moon", "sea"], answers=["sea", "sun"]),
    make_sample(4, split="test", id="s1"),
    chat_sample(),
]


def _file(folder: Path, *samples: EventSample) -> Path:
    write_samples(samples or SAMPLES, folder / "rows.jsonl")
    return folder / "rows.jsonl"


def _rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def _pair(fmt: str, row: dict[str, Any]) -> tuple[list[dict[str, str]], str]:
    """The prompt's turns and the answer, as each format has them."""
    turns = row["messages"] if "messages" in row else [*row["prompt"], *row.get("completion", [])]
    plain = [{"role": turn["role"], "content": turn["content"]} for turn in turns]
    return (plain, row["answer"]) if fmt == "jsonl" else (plain[:-1], plain[-1]["content"])


@pytest.mark.parametrize("fmt", FORMATS)
def test_each_export_opens_with_datasets_and_has_the_pairs_of_the_views(tmp_path: Path, fmt: str) -> None:
    output_of("data", "export", _file(tmp_path), "--format", fmt, "--views", ALL_VIEWS)
    wording, out = load_prompt_set("default"), tmp_path / f"rows-{fmt}"
    for view in VIEWS:
        found = datasets.load_dataset(str(out), view, cache_dir=str(tmp_path / "cache"))
        for split in ("train", "test"):
            samples = [sample for sample in SAMPLES if sample.split == split]
            pairs = [_pair(fmt, row) for row in found[split]]
            assert pairs == [(wording.messages(sample, view), wording.response(sample)) for sample in samples]
            assert found[split]["id"] == [sample.id for sample in samples]
    chat = _pair(fmt, _rows(out, "train-imagined.jsonl")[-1])
    assert [turn["role"] for turn in chat[0]] == ["user", "assistant", "user"]
    assert chat[0][0]["content"] == "How long?"
    assert chat[1] == "The receipt."


@pytest.mark.parametrize("fmt", FORMATS)
def test_rejected_answers_are_written_as_training_has_them_or_reported_as_left_out(tmp_path: Path, fmt: str) -> None:
    choice: dict[str, Any] = {"format": "scq", "options": ["sun", "sea"], "answers": ["sea"], "id": "s3"}
    samples = [make_sample(1, rejected=["the hill"]), make_sample(2), make_sample(3, **choice, habit=["sun"])]
    printed = output_of("data", "export", _file(tmp_path, *samples), "--format", fmt, "--views", ALL_VIEWS)
    out, expected = tmp_path / f"rows-{fmt}", ["The answer is: the hill", "", "The correct option is: (A) sun"]
    assert ("left out: the rejected answers of 2 samples" in " ".join(printed.split())) == (
        fmt in ("llamafactory", "axolotl")
    )
    if fmt == "jsonl":
        assert [row["rejected"] for row in _rows(out, "train-original.jsonl")] == expected
    assert bool(list(out.glob("*-preference.jsonl"))) == (fmt == "trl")
    if fmt != "trl":
        return
    assert "DPOTrainer" in (out / "README.md").read_text("utf-8")
    for view in VIEWS:
        found = datasets.load_dataset(str(out), f"{view}-preference", split="train", cache_dir=str(tmp_path / "cache"))
        pairs = {row["id"]: row for row in _rows(out, f"train-{view}.jsonl")}
        assert [row["id"] for row in found] == [samples[0].id, "s3"]
        for row, text in zip(found, filter(None, expected), strict=True):
            assert (row["prompt"], row["chosen"]) == (pairs[row["id"]]["prompt"], pairs[row["id"]]["completion"])
            assert row["rejected"] == [{"role": "assistant", "content": text}]


def test_the_tokens_of_trl_are_those_of_the_views(tmp_path: Path) -> None:
    """TRL's mask is what the template writes behind the prompt with its generation prompt."""
    output_of("data", "export", _file(tmp_path, *SAMPLES[:3]), "--format", "trl", "--views", ALL_VIEWS)
    tokenizer = tiny_tokenizer()
    encoder = ViewEncoder(tokenizer, load_prompt_set("default"), VIEWS)
    for view in VIEWS:
        for sample, row in zip(SAMPLES, _rows(tmp_path / "rows-trl", f"train-{view}.jsonl"), strict=False):
            prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
            whole = tokenizer.apply_chat_template(row["prompt"] + row["completion"], return_dict=False)
            encoded = encoder.encode(sample)
            assert prompt == encoded.prompts[view] == whole[: len(prompt)]
            assert whole[len(prompt) :][: len(encoded.answer)] == encoded.answer


def test_llamafactory_is_told_files_columns_and_roles(tmp_path: Path) -> None:
    output_of("data", "export", _file(tmp_path), "--format", "llamafactory")
    out = tmp_path / "rows-llamafactory"
    info = json.loads((out / "dataset_info.json").read_text())
    assert list(info) == ["train-original", "test-original"]
    for name, entry in info.items():
        assert entry["file_name"] == f"{name}.jsonl"
        columns, tags = entry["columns"], entry["tags"]
        for row in _rows(out, entry["file_name"]):
            # Its converter takes a system turn off, and then skips rows in which the two sides do not alternate.
            roles = [turn[tags["role_tag"]] for turn in row[columns["messages"]]]
            spoken = roles[roles[0] == tags["system_tag"] :]
            assert spoken == [tags["user_tag"], tags["assistant_tag"]] * (len(spoken) // 2)
    assert "mask_history: true" in (out / "README.md").read_text()  # the chat trains on its last turn only


def test_axolotl_is_told_which_turns_are_trained_on(tmp_path: Path) -> None:
    rows = _file(tmp_path, chat_sample(), chat_sample("all", id="c2"), make_sample(1))
    output_of("data", "export", rows, "--format", "axolotl")
    marks = [[turn["training"] for turn in row["messages"]] for row in _rows(tmp_path / "rows-axolotl", FIRST)]
    assert marks == [[False, False, False, True], [False, True, False, True], [False, False, True]]


FIRST = "train-original.jsonl"


def _talk(*roles: str) -> EventSample:
    turns = [Turn.model_validate({"role": role, "content": f"say {role}"}) for role in roles]
    return chat_sample(conversation=Conversation(turns=turns), id="c9")


@pytest.mark.parametrize(
    ("fmt", "sample", "message"),
    [
        (
            "trl",
            chat_sample("all", id="c8"),
            "trl cannot hold the original view: it trains on the earlier assistant turns too",
        ),
        ("llamafactory", _talk("user", "user"), "got the turns user, user, assistant; expected user"),
        ("llamafactory", _talk("user", "assistant", "system", "user"), "got the turns user, assistant, system, user"),
        ("llamafactory", _talk("system"), "got the turns system, assistant"),
        ("llamafactory", chat_sample("all", id="c8"), "line 2 trains on last and"),
    ],
)
def test_a_row_that_no_format_holds_is_named(tmp_path: Path, fmt: str, sample: EventSample, message: str) -> None:
    rows = _file(tmp_path, make_sample(7), chat_sample(), sample)
    printed = " ".join(refusal_of("data", "export", rows, "--format", fmt).split())
    assert f"{rows}, line 3" in printed
    assert message in printed
    assert not (tmp_path / f"rows-{fmt}").exists()
    output_of("data", "export", rows, "--format", "jsonl")
    last = _rows(tmp_path / "rows-jsonl", FIRST)[-1]
    assert last["loss"] == (sample.conversation.loss if sample.conversation else "last")


def test_an_existing_folder_is_replaced_only_on_request_and_only_if_it_is_an_export(tmp_path: Path) -> None:
    rows, out = _file(tmp_path), tmp_path / "out"
    arguments = ("data", "export", rows, "--format", "trl", "--out", out)
    output_of(*arguments, "--views", ALL_VIEWS)
    (out / "notes.txt").write_text("mine")
    assert "out: already exists" in refusal_of(*arguments)
    output_of(*arguments, "--overwrite")
    assert sorted(path.name for path in out.glob("*.jsonl")) == ["test-original.jsonl", FIRST]
    assert (out / "notes.txt").read_text() == "mine"
    assert "contains manifest.json, README.md" in refusal_of("data", "build", "--datasets", "habit", "--out", out)
    assert "is no export" in refusal_of(*arguments[:-1], tmp_path, "--overwrite")
    assert rows.is_file()


def test_an_export_says_where_its_rows_are_from_and_is_pushed(hub: HubServer, built: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    output_of("data", "export", built, "--format", "llamafactory", "--views", ALL_VIEWS, "--out", out)
    manifest = read_manifest(out)
    assert manifest["export"]["rows"][FIRST] == len(read_samples(built / "train.parquet"))
    assert manifest["datasets"] == read_manifest(built)["datasets"]
    for name, output in manifest["outputs"].items():
        assert output["sha256"] == hashlib.sha256((out / name).read_bytes()).hexdigest()
    assert "ester (the publishers state no licence)" in refusal_of("data", "push", "a/b", "--data", out, "--public")
    assert call("data", "push", "a/b", "--data", out).status == 0
    assert hub.files["a/b"] == {path.name: path.read_bytes() for path in out.iterdir()}
    again = {path.name: path.read_bytes() for path in out.iterdir()}
    output_of("data", "export", built, "--format", "llamafactory", "--views", ALL_VIEWS, "--out", out, "--overwrite")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == again


def test_rows_that_no_build_describes_are_pushed_privately_only(hub: HubServer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    output_of("data", "export", _file(tmp_path), "--format", "jsonl", "--out", out)
    assert "no build describes the rows of rows.jsonl" in refusal_of("data", "push", "a/b", "--data", out, "--public")
    (out / "README.md").unlink()
    assert "expected the card of the export" in refusal_of("data", "push", "a/b", "--data", out)
    assert not hub.files
