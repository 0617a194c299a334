"""Replies on disk, by content: one small file each, so that a killed run resumes and nothing is paid for twice.

The key is a hash of all that a reply depends on. The endpoint's address is part of it: servers at different addresses
serve different models under one name (`local-model`, or the same model quantised), and a reply taken from the wrong
one would never be noticed, whereas a moved server shows in the estimate before it costs anything.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from d2e_sft.judge.messages import Prompt, Reply
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import replacing

_CHECK = "check"


class ReplyCache:
    """The replies in a folder; safe for several threads, and for several processes.

    Args:
        folder: made by `prepare`.
        identity: what replies depend on besides the prompt: back end, address, model, sampling.

    Attributes:
        damaged: files that were found to be no replies.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.damaged: set[Path] = set()
        self._identity = dict(identity)

    def get(self, prompt: Prompt, asking: int) -> Reply | None:
        """The kept reply to a prompt asked for the `asking`-th time; None where there is none that can be read.

        A damaged file is no reply and counts in `damaged`; the next reply overwrites it.
        """
        path = self._path(prompt, asking)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        try:
            fields = json.loads(content)
            check = fields.pop(_CHECK)
            reply = Reply.model_validate(fields)
        except (ValueError, AttributeError, TypeError, KeyError, RecursionError):  # pydantic's error is a ValueError
            reply, check = None, None
        if reply is None or check != _check(path, reply):
            self.damaged.add(path)
            return None
        return reply

    def prepare(self) -> None:
        """Make the folder.

        Raises:
            UserError: there can be no such folder, or nothing can be written into it.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(self.folder, str(error.strerror)) from None
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise _unwritable(self.folder, "no permission")

    def put(self, prompt: Prompt, asking: int, reply: Reply) -> None:
        """Keep a reply; it is there whole or not at all.

        Raises:
            UserError: it cannot be written. A paid reply that cannot be kept is a reason to stop paying.
        """
        path = self._path(prompt, asking)
        try:
            with replacing(path, shared=True) as partial:  # several threads may write the same reply
                content = {**reply.model_dump(), _CHECK: _check(path, reply)}
                partial.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        except OSError as error:
            raise _unwritable(path, str(error.strerror)) from None

    def _path(self, prompt: Prompt, asking: int) -> Path:
        content = {**self._identity, "system": prompt.system, "user": prompt.user, "asking": asking}
        key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return self.folder / key[:2] / f"{key}.json"


def _check(path: Path, reply: Reply) -> str:
    """16 hexadecimal digits of what the reply says and whose reply it is."""
    return hashlib.sha256(f"{path.stem}\n{reply.model_dump_json()}".encode()).hexdigest()[:16]


def _unwritable(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path}: the judge's replies cannot be kept ({reason})",
        remedy="make room, or name a folder that can be written: --judge-cache DIR, or D2E_CACHE",
    )
