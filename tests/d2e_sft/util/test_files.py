"""Files that are written in one piece or not at all."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from d2e_sft.util.errors import is_disk_full
from d2e_sft.util.files import (
    load_yaml,
    object_with_unique_keys,
    put_folder,
    replacing,
    replacing_folder,
    write_json,
    write_whole,
)


def test_a_file_is_replaced_in_one_piece_or_stays_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.txt"
    write_whole(target, "one\n")
    with pytest.raises(FileNotFoundError), replacing(target) as partial:
        partial.write_text("tw", encoding="utf-8") and (tmp_path / "missing").read_text(encoding="utf-8")
    with replacing(target) as partial:
        partial.write_text("two\n", encoding="utf-8")
        assert target.read_text(encoding="utf-8") == "one\n"
    assert target.read_text(encoding="utf-8") == "two\n"
    write_json(target, {"name": "D²E"})
    assert target.read_text(encoding="utf-8") == '{\n  "name": "D²E"\n}\n'
    assert [path.name for path in target.parent.iterdir()] == ["a.txt"]


def test_a_folder_takes_its_place_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "model"
    with pytest.raises(FileNotFoundError), replacing_folder(target) as partial:
        (partial / "half").write_text("half") and (tmp_path / "missing").read_text(encoding="utf-8")
    assert list(target.parent.iterdir()) == []
    with replacing_folder(target) as partial:
        (partial / "weights").write_text("whole")
        assert not target.exists()
    assert [path.name for path in target.parent.iterdir()] == ["model"]
    assert (target / "weights").read_text() == "whole"
    assert target.stat().st_mode & 0o777 == 0o755
    with pytest.raises(OSError, match="not empty"), replacing_folder(target):
        write_whole(target / "other", "another process was quicker")
    with pytest.raises(FileNotFoundError), replacing_folder(target, overwrite=True):
        (tmp_path / "missing").read_text(encoding="utf-8")
    assert (target / "weights").read_text() == "whole"
    with replacing_folder(target, overwrite=True) as partial:
        (partial / "weights").write_text("new")
    assert [*target.parent.rglob("*")] == [target, target / "weights"]


def test_a_folder_that_cannot_be_replaced_stays(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "weights").write_text("old")
    with pytest.raises(FileNotFoundError):
        put_folder(tmp_path / "missing", target, overwrite=True)
    assert (target / "weights").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_several_threads_may_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "reply"
    with replacing(path, shared=True) as first, replacing(path, shared=True) as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b:\n  a: 1\n  a: 2", "line 3: the key 'a' is given twice"),
        ("a: " + "[" * 20_000, "nests too deeply"),
        (f"a: {'9' * 5_000}", "digits"),
        ('a: 1\nb: ["half \\ud800"]', "line 2: contains a lone surrogate"),
    ],
)
def test_bad_yaml_is_one_kind_of_error(text: str, message: str) -> None:
    with pytest.raises(yaml.YAMLError, match=message):
        load_yaml(text)
    assert load_yaml("a: &a {x: 1}\nb: [*a, *a]") == {"a": {"x": 1}, "b": [{"x": 1}, {"x": 1}]}


def test_a_key_given_twice_is_found_among_many() -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match="'k49999' is given twice"):
        object_with_unique_keys([*((f"k{i}", i) for i in range(50_000)), ("k49999", 0)])
    assert time.process_time() - started < 1


def test_a_symbolic_link_stays_one_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    for text in ("made", "made again"):  # the link leads nowhere at first
        write_whole(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "there" / "file").read_text() == text
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "link", "there"]


def test_a_pipe_gets_the_content_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        write_whole(pipe, "content")
        assert read.result(10) == "content"
    assert pipe.is_fifo()


def test_devices_are_written_to() -> None:
    write_whole(Path("/dev/null"), "content")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OSError, match="No space left") as caught:
        write_whole(Path("/dev/full"), "content")
    assert is_disk_full(caught.value)
    assert Path("/dev/full").is_char_device()
