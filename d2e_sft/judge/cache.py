"""Replies on disk, one small file each, so that a killed run resumes and nothing is paid for twice.

A file's name is a hash of everything that the reply depends on. That includes the address, since servers at different
addresses serve different models under one name.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from d2e_sft.judge.messages import Prompt, Reply
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import replacing

_LARGEST = 32 << 20  # bytes; an answer of an endpoint has at most half as many


class _Kept(BaseModel):
    """A file of the cache."""

    reply: Reply
    check: str


class ReplyCache:
    """The replies in a folder; safe for several threads and processes.

    Args:
        folder: created by `prepare`.
        identity: what replies depend on besides the prompt: back end, address, model, sampling.

    Attributes:
        damaged: unreadable files found so far.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.damaged: set[Path] = set()
        self._identity = dict(identity)

    def get(self, prompt: Prompt, asking: int) -> Reply | None:
        """Return the reply to a prompt asked for the `asking`-th time, if any; damaged files go to `damaged`."""
        path = self._path(prompt, asking)
        try:
            with path.open("rb") as file:
                content = file.read(_LARGEST)
        except OSError:
            return None
        try:
            kept = _Kept.model_validate_json(content)
            if kept.check == _check(path, kept.reply):
                return kept.reply
        except ValidationError:
            pass
        self.damaged.add(path)
        return None

    def prepare(self) -> None:
        """Create the folder; UserError if that fails or it cannot be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(self.folder, str(error.strerror)) from None
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise _unwritable(self.folder, "no permission")

    def put(self, prompt: Prompt, asking: int, reply: Reply) -> None:
        """Write a reply, all of it or nothing; UserError if that fails, since the reply would be paid for again."""
        path = self._path(prompt, asking)
        try:
            with replacing(path, shared=True) as partial:  # several threads may write the same reply
                kept = _Kept(reply=reply, check=_check(path, reply))
                partial.write_text(kept.model_dump_json(), encoding="utf-8")
        except OSError as error:
            raise _unwritable(path, str(error.strerror)) from None

    def _path(self, prompt: Prompt, asking: int) -> Path:
        content = {**self._identity, "system": prompt.system, "user": prompt.user, "asking": asking}
        key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return self.folder / key[:2] / f"{key}.json"


def _check(path: Path, reply: Reply) -> str:
    """Return 16 hexadecimal digits of a hash of the reply and its place."""
    return hashlib.sha256(f"{path.stem}\n{reply.model_dump_json()}".encode()).hexdigest()[:16]


def _unwritable(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path}: the judge's replies cannot be kept ({reason})",
        remedy="make room, or name a folder that can be written: --judge-cache DIR, or D2E_CACHE",
    )
