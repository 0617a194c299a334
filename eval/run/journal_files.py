"""The files of one pass: answers on disk as they come, and the predictions once all are there.

Each process appends to its own file (`predictions.partial.jsonl`, `predictions.partial.1.jsonl`, …). A session begins
with a header line; each answer is a line with its place among the samples. A kill can cut off only the last line; its
sample is decoded again. A complete pass has `predictions.jsonl` (or `without_context.jsonl`) and the record of how it
was decoded, `….decoding.json`; the partial files are then removed.

Every line ends with a check: the first 16 hexadecimal digits of the SHA-256 over the check of the previous line of the
session and this line. So changed bytes and missing lines are detected.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from d2e_sft.util.errors import UserError
from eval.score.scores import SCORES_FILE

WITH_CONTEXT, WITHOUT_CONTEXT = "predictions", "without_context"
DECODE_AGAIN = "decode again with --overwrite"
Fingerprint = dict[str, Any]
CHECK = "check"
_CHECKED = re.compile(rb', "check": "([0-9a-f]{16})"\}$')


@dataclass(frozen=True)
class Answer:
    """The output for the sample at `index`; `truncated` if its context was cut to fit.

    `scores` are log-probability and number of tokens of each option, if these were scored and nothing was generated.
    `seconds` are its share of its batch's time, if batches were decoded one after another.
    """

    index: int
    output: str
    truncated: bool = False
    scores: list[tuple[float, int]] | None = None
    seconds: float | None = None

    def line(self) -> dict[str, Any]:
        """The answer as JSON, without empty scores or seconds."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class SessionHeader:
    """The first line of a session, which is one run of the command in one process.

    `fingerprint` is everything that the outputs depend on; `engine` and `environment` are for the record.
    """

    fingerprint: Fingerprint
    engine: str
    environment: dict[str, Any]


@dataclass
class JournalContent:
    """The content of the partial files: sessions in the order of their lines, and answers by index.

    `cut_off` are files whose last line is incomplete.
    """

    sessions: list[SessionHeader] = field(default_factory=list)
    answers: dict[int, Answer] = field(default_factory=dict)
    cut_off: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class PassFiles:
    """Paths of the files of one pass in the folder RUN/eval/BENCHMARK.

    The stem is `predictions` or `without_context`; in a benchmark with several passes, the name of the pass.
    """

    folder: Path
    stem: str

    @property
    def predictions(self) -> Path:
        """The predictions, once all are there."""
        return self.folder / f"{self.stem}.jsonl"

    @property
    def record(self) -> Path:
        """How they were decoded."""
        return self.folder / f"{self.stem}.decoding.json"

    @property
    def companion(self) -> PassFiles | None:
        """The other pass over the same samples, with or without the context."""
        others = {WITH_CONTEXT: WITHOUT_CONTEXT, WITHOUT_CONTEXT: WITH_CONTEXT}
        return PassFiles(self.folder, others[self.stem]) if self.stem in others else None

    def partial(self, process: int = 0) -> Path:
        """The file that a process appends to."""
        return self.folder / (f"{self.stem}.partial.{process}.jsonl" if process else f"{self.stem}.partial.jsonl")

    def partials(self) -> list[Path]:
        """The partial files of all processes."""
        others = self.folder.glob(f"{self.stem}.partial.*.jsonl")
        numbered = [path for path in others if path.name.split(".")[-2].isdecimal()]
        return [path for path in (self.partial(), *sorted(numbered)) if path.is_file()]

    def finished(self) -> list[Path]:
        """The files of a finished pass, in the order in which they may be removed."""
        scores = [self.folder / SCORES_FILE] if self.stem == WITH_CONTEXT else []
        return [path for path in (self.predictions, *scores, self.record) if path.is_file()]


def read_journal(files: PassFiles) -> JournalContent:
    """Read the partial files of earlier sessions; changes nothing.

    Raises UserError if a line is damaged in a way that no kill explains.
    """
    content = JournalContent()
    for path in files.partials():
        *lines, rest = path.read_bytes().split(b"\n")
        if rest:
            content.cut_off.append(path)
        check = b""
        for number, line in enumerate(lines, start=1):
            try:
                check = _read_line(line, check, content)
            except (ValueError, TypeError, RecursionError) as error:
                raise UserError(
                    f"{path}, line {number}: neither a session nor an answer ({error})",
                    remedy="the file is damaged or was edited; decode again with --overwrite, or cut the file off "
                    "before this line, and the rest is decoded again",
                ) from None
    return content


def read_record(files: PassFiles) -> dict[str, Any] | None:
    """Return the record of a finished pass; None if the pass is not finished, UserError if it is damaged."""
    try:
        content: dict[str, Any] = json.loads(files.record.read_text(encoding="utf-8"))
        content["fingerprint"].items()
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{files.record}: not the record of a decoding ({error})", DECODE_AGAIN) from None
    return content


class JournalWriter:
    """Appends a session's answers to a process's file, on disk before it returns; safe for several threads."""

    def __init__(self, path: Path, header: SessionHeader) -> None:
        self._lock = threading.Lock()
        self._file: BinaryIO = path.open("ab")
        self._file.truncate(path.read_bytes().rfind(b"\n") + 1)  # drops a line that was cut off
        self._check = b""  # check of the session's previous line
        self._append([vars(header)])

    def write(self, answers: Iterable[Answer]) -> None:
        """Append answers in one write."""
        self._append([answer.line() for answer in answers])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        with self._lock:
            text = b""
            for line in lines:
                body = json.dumps(line, ensure_ascii=False).encode("utf-8", errors="backslashreplace")[:-1]
                self._check = _check_of(self._check, body)
                text += b'%s, "%s": "%s"}\n' % (body, CHECK.encode(), self._check)
            self._file.write(text)
            self._file.flush()
            os.fsync(self._file.fileno())


def _check_of(previous: bytes, body: bytes) -> bytes:
    """The check of a line up to its check, after that of the session's previous line (empty for the header)."""
    return hashlib.sha256(previous + body).hexdigest()[:16].encode()


def _read_line(line: bytes, previous: bytes, content: JournalContent) -> bytes:
    """Add a line to the content; returns its check."""
    entry = json.loads(line)
    if not isinstance(entry, dict):
        raise TypeError(f"a {type(entry).__name__}; expected an object")
    found = _CHECKED.search(line)
    if found is None:
        raise ValueError("it has no check")
    del entry[CHECK]
    header = "fingerprint" in entry
    if found[1] != _check_of(b"" if header else previous, line[: found.start()]) or not (header or previous):
        raise ValueError("its check does not fit: it was changed, or the line before it is missing")
    if header:
        content.sessions.append(SessionHeader(**entry))
    else:
        answer = Answer(**entry)
        content.answers[answer.index] = answer
    return found[1]
