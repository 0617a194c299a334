"""Answers on disk as they come, so that an evaluation that is killed at any moment goes on from there.

Each process appends to a file of its own (`predictions.partial.jsonl`, `predictions.partial.1.jsonl`, …). A session
begins with a line that says what it decodes with; each answer is a line with its place among the samples. What a
kill cut off is the last line at most, and that sample is decoded again.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from d2e_sft.util.errors import UserError

Fingerprint = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """The output for the sample at `index` of those to decode; `truncated` if its context was cut to fit."""

    index: int
    output: str
    truncated: bool = False


@dataclass(frozen=True)
class Session:
    """The first line of a session.

    Attributes:
        fingerprint: all that the outputs depend on.
        engine, environment: what they should not depend on; for the record.
    """

    fingerprint: Fingerprint
    engine: str
    environment: dict[str, Any]


@dataclass
class Kept:
    """What earlier sessions left.

    Attributes:
        answers: by index.
        cut_off: files whose last line is incomplete.
    """

    sessions: list[Session] = field(default_factory=list)
    answers: dict[int, Answer] = field(default_factory=dict)
    cut_off: list[Path] = field(default_factory=list)


def part_file(folder: Path, stem: str, process: int = 0) -> Path:
    """The file that a process appends to."""
    return folder / (f"{stem}.partial.{process}.jsonl" if process else f"{stem}.partial.jsonl")


def part_files(folder: Path, stem: str) -> list[Path]:
    """The files that processes appended to, however many they were."""
    first = part_file(folder, stem)
    others = [path for path in folder.glob(f"{stem}.partial.*.jsonl") if path.name.split(".")[-2].isdecimal()]
    return [path for path in (first, *sorted(others)) if path.is_file()]


def read_kept(folder: Path, stem: str) -> Kept:
    """Read what earlier sessions left; changes nothing.

    Raises:
        UserError: a line is damaged that no kill can have damaged.
    """
    kept = Kept()
    for path in part_files(folder, stem):
        *lines, rest = path.read_bytes().split(b"\n")
        if rest:
            kept.cut_off.append(path)
        for number, line in enumerate(lines, start=1):
            _read_line(line, kept, f"{path}, line {number}")
    return kept


def remove_parts(folder: Path, stem: str) -> None:
    """Remove what sessions left."""
    for path in part_files(folder, stem):
        path.unlink()


class Writer:
    """Appends a session's answers to a process's file; safe for several threads.

    Every append is on the disk before it returns.

    Raises:
        UserError: another evaluation is writing to the file.
    """

    def __init__(self, path: Path, session: Session) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file: BinaryIO = path.open("ab")
        self._refuse_company()
        self._drop_cut_off_line()
        self._append([vars(session)])

    def write(self, answers: Iterable[Answer]) -> None:
        """Append answers, all of them in one piece."""
        self._append([vars(answer) for answer in answers])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        with self._lock:
            self._file.write(text.encode("utf-8", errors="backslashreplace"))
            self._file.flush()
            os.fsync(self._file.fileno())

    def _refuse_company(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however that ends
        except BlockingIOError:
            self._file.close()
            raise UserError(
                f"{self.path}: another evaluation is writing to it", "wait for its end, or choose another --out"
            ) from None
        except OSError:
            return  # a file system without locks

    def _drop_cut_off_line(self) -> None:
        content = self.path.read_bytes()
        self._file.truncate(content.rfind(b"\n") + 1)


def _read_line(line: bytes, kept: Kept, where: str) -> None:
    try:
        content = json.loads(line)
        if "fingerprint" in content:
            kept.sessions.append(Session(**content))
            return
        answer = Answer(**content)
        kept.answers[answer.index] = answer
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(
            f"{where}: neither a session nor an answer ({error})",
            remedy="the file is damaged or was edited; remove the line, or decode anew with --overwrite",
        ) from None
