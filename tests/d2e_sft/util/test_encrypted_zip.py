"""Archives with a password: ours, and those of older tools."""

from __future__ import annotations

import base64
import zipfile
from pathlib import Path

import pytest

from d2e_sft.util.encrypted_zip import PASSWORD, member_names, read_encrypted, write_encrypted
from d2e_sft.util.errors import UserError

# `zip -P iamnotaLM` of a file "old/test.jsonl" that holds the line `{"row": 1}`: the older ZipCrypto.
ZIP_CRYPTO = base64.b64decode(
    "UEsDBAoACQAAAOpadl1xylddFwAAAAsAAAAOABwAb2xkL3Rlc3QuanNvbmxVVAkAA6fQAmun0AJrdXgLAAEEAAAAAAQAAAAADx1f"
    "Ddi3foV9ml/JljSX95fsdfve369QSwcIccpXXRcAAAALAAAAUEsBAh4DCgAJAAAA6lp2XXHKV10XAAAACwAAAA4AGAAAAAAAAQAA"
    "AKSBAAAAAG9sZC90ZXN0Lmpzb25sVVQFAAOn0AJrdXgLAAEEAAAAAAQAAAAAUEsFBgAAAAABAAEAVAAAAG8AAAAAAA=="
)


def test_what_is_written_is_read_with_the_password_alone(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "boxes.zip"
    write_encrypted(path, {"train.jsonl": ["one", "zwei ü"], "test.jsonl": ["three"]})
    assert member_names(path) == ["train.jsonl", "test.jsonl"]
    assert read_encrypted(path, "train.jsonl") == "one\nzwei ü\n"
    assert b"zwei" not in path.read_bytes()
    with pytest.raises(UserError, match=r"train\.jsonl cannot be read"):
        read_encrypted(path, "train.jsonl", password="guess")
    with zipfile.ZipFile(path) as archive, pytest.raises((RuntimeError, NotImplementedError)):
        archive.read("train.jsonl")


def test_archives_of_the_older_encryption_are_read_and_others_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.zip"
    path.write_bytes(ZIP_CRYPTO)
    assert read_encrypted(path, "old/test.jsonl", PASSWORD) == '{"row": 1}\n'
    with pytest.raises(UserError, match=r"b\.jsonl cannot be read"):
        read_encrypted(path, "b.jsonl")
    path.write_text("<html>")
    with pytest.raises(UserError, match="not a zip archive"):
        member_names(path)
