"""Errors say one thing, secrets are masked, and answers are normalised."""

import errno
import os
from contextlib import chdir
from pathlib import Path

import pytest

from d2e_sft.data.sample import write_samples
from d2e_sft.util.answers import asked_for
from d2e_sft.util.errors import path_error, shortened
from d2e_sft.util.files import write_whole
from d2e_sft.util.secrets import names_a_secret, public_address, without_secrets
from tests.command import refusal_of
from tests.factories import write_recipe
from tests.messages import messages_of
from tests.tiny import make_samples


def world(folder: Path) -> Path:
    """A folder with rows, a folder with a file, and a link to itself."""
    write_whole(folder / "folder" / "file", "")
    (folder / "loop").symlink_to(folder / "loop")
    write_samples(make_samples(1), folder / "rows.jsonl")
    return folder


def refused(place: Path, *arguments: str) -> str:
    """The refusal of a command in the folder, which stays as it was."""
    with chdir(place):
        message = refusal_of(*arguments)
    assert "Errno" not in message
    assert sorted(file.name for file in place.iterdir()) == ["folder", "loop", "rows.jsonl"]
    return message


OUTPUTS = ("folder", "folder/file/x.json", "folder/file/a/b/x.json", "/dev/null/x.json", "loop", "loop/x.json")
test_message = messages_of(
    __file__,
    {
        **{
            f"writes {path}": lambda tmp, path=path: refused(world(tmp), "data", "list", "--json", path)
            for path in OUTPUTS
        },
        "writes 300 bytes": lambda tmp: refused(world(tmp), "data", "list", "--json", "a" * 300),
        "writes 5000 bytes": lambda tmp: refused(world(tmp), "data", "list", "--json", "b" * 5000),
        "reads 300 bytes": lambda tmp: refused(world(tmp), "recipes", "show", "c" * 300),
        "a long tokenizer": lambda tmp: refused(
            world(tmp), "data", "stats", "rows.jsonl", "--tokenizer", "/" + "d" * 300
        ),
        "reads a folder": lambda tmp: refused(world(tmp), "chat", "no-model", "--context", "folder"),
        "reads nothing": lambda tmp: refused(world(tmp), "predict", "no-model", "", "--out", "a.csv"),
    },
)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENOTEMPTY])
def test_what_the_system_refuses_names_path_and_remedy(tmp_path: Path, number: int) -> None:
    path = world(tmp_path) / "folder" / "out.json"
    error = path_error(OSError(number, os.strerror(number), str(path)))
    assert error is not None
    assert error.message.startswith(str(path.parent if number in (errno.EACCES, errno.EPERM) else path))
    assert error.remedy


@pytest.mark.parametrize(
    "key", ["train.output_dir", "data.train", "data.dev", "data.prompt_set", "model.name", "d2e.prefer_reference"]
)
def test_a_recipe_with_nul_in_a_path(tmp_path: Path, key: str) -> None:
    recipe = write_recipe(tmp_path, tmp_path / "recipe", f'{key}="a\\0b"')
    assert f"{key}: got 'a\\x00b'; expected text without the character NUL" in refusal_of("train", recipe)


def test_paths_that_python_refuses_are_explained_and_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="null") as error:
        Path("a\0b").stat()
    assert "NUL" in str(path_error(error.value))
    with pytest.raises(UnicodeEncodeError) as encoding:
        write_whole(tmp_path / "list", "a file \udcff.jsonl")
    assert "'a file \\udcff': not UTF-8" in str(path_error(encoding.value))
    for other in (ValueError("not one"), RuntimeError("nor this"), OSError("model x: no such repository")):
        assert path_error(other) is None


def test_values_of_any_kind_are_shown_and_long_ones_cut() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert "a list that cannot be shown" in shortened(deep)
    assert "a int that cannot be shown" in shortened(10**5_000)
    assert shortened("x" * 300, 10) == "'xxxxxxxxx… (292 more characters)"


def test_the_values_of_keys_and_tokens_are_hidden_the_longest_first() -> None:
    environment = {
        "HF_TOKEN": "hf_0123456789", "MY_API_KEY": "hf_0123456789ab", "OPENAI_API_KEY": "EMPTY",
        "SSH_KEY": "/home/me/.ssh/key", "PWD": "0123456789abcdef", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    text = "hf_0123456789ab and hf_0123456789, EMPTY; /home/me/.ssh/key 0123456789abcdef false"
    assert without_secrets(text, environment) == (
        "[MY_API_KEY] and [HF_TOKEN], EMPTY; /home/me/.ssh/key 0123456789abcdef false"
    )


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True), ("train.hub_token", True), ("AWS_SECRET_ACCESS_KEY", True), ("wandb.password", True),
        ("GITHUB_PAT", True), ("DB_PASSWORD_PROD", True), ("PATH", False), ("COMPAT", False),
        ("max_tokens", False), ("micro_batch_tokens", False), ("TOKENIZERS_PARALLELISM", False), ("keyword", False),
    ],
)  # fmt: skip
def test_what_names_a_secret(name: str, secret: bool) -> None:
    assert names_a_secret(name) is secret


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host:8/v1", "https://host:8/v1"),
        ("https://me:word@host:8/v1", "https://[hidden]@host:8/v1"),
        ("https://host/v1?key=word", "https://host/v1?[hidden]"),
        ("http://[host", "(no address)"),
        ("me:word@host/v1", "[hidden]"),
    ],
)
def test_an_address_is_shown_without_what_may_be_a_key(url: str, shown: str) -> None:
    assert public_address(url) == shown


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        ("Where is the key now?", "where"),
        ("To whom did she write?", "who"),
        ("What type of planes were flown?", "planes"),
        ("The ship was owned by what country between 1982 and 1985?", "country"),
        ("If the man who led had left, which town would he have chosen?", "town"),
        ("How many people were hurt?", "how many people"),
        ("How long may a ward keep the pump?", "how long"),
        ("Why did it burn?", "_ did it burn?"),
        ("What caused the Great Fire?", "_ caused the _ _"),
        ("What does Box 12 contain?", "_ does _ _ contain?"),
    ],
)
def test_the_kind_that_a_question_asks_for(question: str, asked: str) -> None:
    assert asked_for(question) == asked
