"""A path that cannot be used is answered by one message: which path, what is wrong with it, and what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from d2e_sft.data.sample import write_samples
from d2e_sft.util.errors import path_error
from d2e_sft.util.files import replacing_folder, write_whole
from tests.command import refusal_of
from tests.factories import write_recipe
from tests.tiny import make_samples


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a file, a folder and a link to itself."""
    write_whole(tmp_path / "folder" / "file", "")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("folder", "folder: is a folder; expected a file"),
        ("", ".: is a folder; expected a file"),
        ("folder/file/x.json", "folder/file: is not a folder; expected one"),
        ("folder/file/a/b/x.json", "folder/file: is not a folder; expected one"),
        ("/dev/null/x.json", "/dev/null: is not a folder; expected one"),
        ("loop", "loop: is a symbolic link that leads back to itself"),
        ("loop/x.json", "loop: is not a folder; expected one"),
        ("a" * 300, "is too long; most file systems take 255 bytes for a name"),
        ("b" * 5000, "5,000 characters): is too long"),
    ],
)
def test_an_output_that_cannot_be_written(place: Path, monkeypatch: pytest.MonkeyPatch, path: str, said: str) -> None:
    monkeypatch.chdir(place)
    message = " ".join(refusal_of("data", "list", "--json", path).split())
    assert said in message
    assert "remedy: name another path" in message
    assert "Errno" not in message
    assert sorted(file.name for file in place.iterdir()) == ["folder", "loop"]


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, "folder: no permission to read or write it remedy: change the permissions"),
        (errno.EPERM, "folder: no permission to read or write it remedy: change the permissions"),
        (errno.EROFS, "out.json: is on a read-only file system"),
        (errno.EIO, "out.json: Input/output error"),
        (errno.EMFILE, "too many open files remedy: raise the limit"),
    ],
)
def test_what_the_system_refuses(place: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "write_text", refuse)  # no permission stops the user root
    message = " ".join(refusal_of("data", "list", "--json", place / "folder" / "out.json").split())
    assert said in message
    assert "Errno" not in message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["recipes", "show", "c" * 300], "is too long"),
        (["data", "stats", "rows.jsonl", "--tokenizer", "/" + "d" * 300], "is too long"),
        (["chat", "no-model", "--context", "folder"], "folder: is a folder; expected a file"),
        (["predict", "no-model", "", "--out", "a.csv"], ".: is a folder; expected a file with questions"),
    ],
)
def test_an_input_that_cannot_be_read(
    place: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    write_samples(make_samples(1), place / "rows.jsonl")
    monkeypatch.chdir(place)
    message = refusal_of(*arguments)
    assert said in message
    assert "Errno" not in message


def test_two_that_write_one_folder(tmp_path: Path) -> None:
    target = tmp_path / "export"
    with pytest.raises(OSError, match="not empty") as error, replacing_folder(target):
        write_whole(target / "other", "another process was quicker")
    message = str(path_error(error.value))
    assert message.startswith(f"{target}: is a folder with content, perhaps written by another process just now")


@pytest.mark.parametrize(
    "key", ["train.output_dir", "data.train", "data.dev", "data.prompt_set", "model.name", "d2e.prefer_reference"]
)
def test_a_recipe_with_nul_in_a_path(tmp_path: Path, key: str) -> None:
    recipe = write_recipe(tmp_path, tmp_path / "recipe", f'{key}="a\\0b"')
    assert f"{key}: got 'a\\x00b'; expected text without the character NUL" in refusal_of("train", recipe)


@pytest.mark.parametrize(
    "error", [ValueError("not one"), RuntimeError("nor this"), OSError("model x: no such repository")]
)
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    assert path_error(error) is None


def test_nul_in_other_files() -> None:
    with pytest.raises(ValueError, match="null") as error:
        Path("a\0b").stat()
    assert "NUL" in str(path_error(error.value))
