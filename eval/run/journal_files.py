"""The files of one pass: answers on disk as they come, and the predictions once all are there.

Each process appends to a file of its own (`predictions.partial.jsonl`, `predictions.partial.1.jsonl`, …). A session
begins with a line that says what it decodes with; each answer is a line with its place among the samples. What a
kill cut off is the last line at most, and that sample is decoded again. Once the pass is complete there are
`predictions.jsonl` (or `without_context.jsonl`) and beside it `….decoding.json`, the record of what it was decoded
with; the partial files then go.

Every line ends with a check: the first 16 hexadecimal digits of the SHA-256 of the line before it in its session (its
check alone) and of this one. So a changed byte, and a line that is missing from the middle, are found; what is missing
from the end is decoded again.
"""

from __future__ import annotations

import fcntl
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
DECODE_ANEW = "decode anew with --overwrite"
Fingerprint = dict[str, Any]
CHECK = "check"
_CHECKED = re.compile(rb', "check": "([0-9a-f]{16})"\}')


@dataclass(frozen=True)
class Answer:
    """The output for the sample at `index` of those to decode.

    Attributes:
        truncated: its context was cut to fit.
        scores: where its options were scored and nothing was generated: the log-probability and the tokens of each.
    """

    index: int
    output: str
    truncated: bool = False
    scores: list[tuple[float, int]] | None = None

    def line(self) -> dict[str, Any]:
        """As JSON; without the scores where there are none."""
        return {name: value for name, value in vars(self).items() if name != "scores" or value is not None}


@dataclass(frozen=True)
class SessionHeader:
    """The first line of a session, which is one run of the command in one process.

    Attributes:
        fingerprint: all that the outputs depend on.
        engine, environment: what they should not depend on; for the record.
    """

    fingerprint: Fingerprint
    engine: str
    environment: dict[str, Any]


@dataclass
class JournalContent:
    """What the partial files hold.

    Attributes:
        sessions: in the order of the files and of their lines.
        answers: by index.
        cut_off: files whose last line is incomplete.
        unchecked: files with a session of an earlier version, whose lines have no checks.
    """

    sessions: list[SessionHeader] = field(default_factory=list)
    answers: dict[int, Answer] = field(default_factory=dict)
    cut_off: list[Path] = field(default_factory=list)
    unchecked: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class PassFiles:
    """Where one pass keeps its files.

    Attributes:
        folder: RUN/eval/BENCHMARK.
        stem: `predictions` or `without_context`; in a benchmark of several passes the name of the pass.
    """

    folder: Path
    stem: str

    @property
    def predictions(self) -> Path:
        """The predictions, once all are there."""
        return self.folder / f"{self.stem}.jsonl"

    @property
    def record(self) -> Path:
        """What they were decoded with."""
        return self.folder / f"{self.stem}.decoding.json"

    @property
    def companion(self) -> PassFiles | None:
        """The other pass over the same samples, where there is one."""
        others = {WITH_CONTEXT: WITHOUT_CONTEXT, WITHOUT_CONTEXT: WITH_CONTEXT}
        return PassFiles(self.folder, others[self.stem]) if self.stem in others else None

    def partial(self, process: int = 0) -> Path:
        """The file that a process appends to."""
        return self.folder / (f"{self.stem}.partial.{process}.jsonl" if process else f"{self.stem}.partial.jsonl")

    def partials(self) -> list[Path]:
        """The files that processes appended to, however many they were."""
        others = self.folder.glob(f"{self.stem}.partial.*.jsonl")
        numbered = [path for path in others if path.name.split(".")[-2].isdecimal()]
        return [path for path in (self.partial(), *sorted(numbered)) if path.is_file()]

    def finished(self) -> list[Path]:
        """The files of a finished pass, in the order in which they may be removed."""
        scores = [self.folder / SCORES_FILE] if self.stem == WITH_CONTEXT else []
        return [path for path in (self.predictions, *scores, self.record) if path.is_file()]


def read_journal(files: PassFiles) -> JournalContent:
    """Read what earlier sessions left in the partial files; changes nothing.

    Raises:
        UserError: a line is damaged that no kill can have damaged.
    """
    content = JournalContent()
    for path in files.partials():
        *lines, rest = path.read_bytes().split(b"\n")
        if rest:
            content.cut_off.append(path)
        _read_lines(path, lines, content)
    return content


def read_record(files: PassFiles) -> dict[str, Any] | None:
    """The record of a finished pass; None where there is none.

    Raises:
        UserError: it is damaged.
    """
    try:
        content = json.loads(files.record.read_text(encoding="utf-8"))
        fingerprint = content["fingerprint"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{files.record}: not the record of a decoding ({error})", DECODE_ANEW) from None
    return content if isinstance(fingerprint, dict) else None


class JournalWriter:
    """Appends a session's answers to a process's file; safe for several threads.

    Every append is on the disk before it returns.

    Raises:
        UserError: another evaluation is writing to the file.
    """

    def __init__(self, path: Path, header: SessionHeader) -> None:
        self._lock = threading.Lock()
        self._file: BinaryIO = path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however that ends
        except BlockingIOError:
            self._file.close()
            raise UserError(
                f"{path}: another evaluation is writing to it", "wait for its end, or choose another --out"
            ) from None
        except OSError:
            pass  # a file system without locks
        self._file.truncate(path.read_bytes().rfind(b"\n") + 1)  # drops a line that was cut off
        self._check = b""  # of the line before; a session begins its own chain
        self._append([vars(header)])

    def write(self, answers: Iterable[Answer]) -> None:
        """Append answers, all of them in one piece."""
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


def _check_of(before: bytes, body: bytes) -> bytes:
    """The check of a line.

    Args:
        before: that of the line before it in its session; empty for the session's own line.
        body: the line up to its check.
    """
    return hashlib.sha256(before + body).hexdigest()[:16].encode()


def _read_lines(path: Path, lines: Iterable[bytes], content: JournalContent) -> None:
    """Add what a file's lines hold; each session has checks in all its lines, or in none."""
    before: bytes | None = None  # the check of the line before; None outside a session that has checks
    in_session = False
    for number, line in enumerate(lines, start=1):
        try:
            found = _CHECKED.search(line, max(0, len(line) - 40))
            check = found[1] if found and found.end() == len(line) else None
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise TypeError(f"a {type(entry).__name__}; expected an object")
            begins = "fingerprint" in entry
            if check is not None:
                assert found is not None
                del entry[CHECK]
                expected = _check_of(b"" if begins else before or b"", line[: found.start()])
                if check != expected or (before is None and not begins):
                    raise ValueError("its check does not fit: it was changed, or the line before it is missing")
            elif before is not None and not begins:
                raise ValueError("it has no check")
            _add(entry, content, in_session=in_session)
        except (ValueError, TypeError, RecursionError) as error:
            raise UserError(
                f"{path}, line {number}: neither a session nor an answer ({error})",
                remedy="the file is damaged or was edited; decode anew with --overwrite, or cut the file off before "
                "this line, and what follows is decoded again",
            ) from None
        if begins:
            in_session = True
            if check is None and path not in content.unchecked:
                content.unchecked.append(path)
        before = check


def _add(entry: dict[str, Any], content: JournalContent, *, in_session: bool) -> None:
    if "fingerprint" in entry:
        header = SessionHeader(**entry)
        if not (isinstance(header.fingerprint, dict) and isinstance(header.environment, dict)):
            raise TypeError("expected objects as fingerprint and environment")
        content.sessions.append(header)
        return
    answer = Answer(**entry)
    if not (isinstance(answer.index, int) and isinstance(answer.output, str)):
        raise TypeError("expected a number as index and a text as output")
    if not in_session:
        raise ValueError("an answer before any session, so it cannot be told what it was decoded with")
    content.answers[answer.index] = answer
