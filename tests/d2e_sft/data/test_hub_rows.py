"""Datasets of the Hub and folders of `datasets`, as files of rows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import huggingface_hub
import pytest

from d2e_sft.data.hub_rows import Address, fetch_rows, parse_address, splits_of
from d2e_sft.util.errors import UserError

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
