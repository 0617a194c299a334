"""The files of one pass over a benchmark: what is there, what may be used of it, and what has to go.

`predictions.jsonl` (or `without_context.jsonl`) appears when the pass is complete, and beside it `….decoding.json`,
the record of what it was decoded with. Until then there are the part files of `eval.run.progress`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_whole
from eval.run.fingerprint import refuse_other
from eval.run.progress import Answer, Fingerprint, Kept, part_file, part_files, read_kept

WITH_CONTEXT, WITHOUT_CONTEXT = "predictions", "without_context"
SCORES_FILE = "scores.json"
_ANEW = "decode anew with --overwrite"


class Named(Protocol):
    """What is decoded: a sample, or a conversation."""

    @property
    def dataset(self) -> str:
        """Where it comes from."""

    @property
    def id(self) -> str:
        """Its name there."""


@dataclass(frozen=True)
class PassFiles:
    """Where one pass keeps its files.

    Attributes:
        folder: RUN/eval/BENCH.
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

    def finished(self) -> list[Path]:
        """The files of a finished pass, in the order in which they may be removed."""
        scores = [self.folder / SCORES_FILE] if self.stem == WITH_CONTEXT else []
        return [path for path in (self.predictions, *scores, self.record) if path.is_file()]

    def parts(self) -> list[Path]:
        """The files of an unfinished pass."""
        return part_files(self.folder, self.stem)


@dataclass
class Found:
    """What earlier evaluations left of a pass.

    Attributes:
        kept: answers that need not be decoded again.
        record: of a finished pass, which then is complete; else None.
        removed: files to remove before the first answer is written.
    """

    kept: Kept = field(default_factory=Kept)
    record: dict[str, Any] | None = None
    removed: list[Path] = field(default_factory=list)


def find_earlier(files: PassFiles, fingerprint: Fingerprint, samples: Sequence[Named], *, overwrite: bool) -> Found:
    """What may be used of what lies in the folder; changes nothing.

    With `overwrite` a finished pass is decoded anew, and what came from other options goes; a pass of the same options
    that was broken off goes on.

    Raises:
        UserError: there are answers of another model or with other options, or a file is damaged.
    """
    found = Found()
    if files.companion is not None:
        _check_companion(files.companion, fingerprint, found, overwrite=overwrite)
    record = read_record(files) if files.predictions.is_file() else None
    if record is None and files.predictions.is_file() and not files.parts() and not overwrite:
        raise UserError(
            f"{files.predictions}: holds predictions, but {files.record.name} is missing, so it cannot be told which "
            "model and options they came from",
            remedy=f"{_ANEW}, or keep them with another --out",
        )
    if overwrite:
        found.removed += files.finished()
    elif record is not None:
        refuse_other(record["fingerprint"], fingerprint, files.predictions)
        found.kept.answers = _finished_answers(files, samples)
        found.record = record
        return found
    _use_parts(files, fingerprint, found, overwrite=overwrite)
    return found


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
        raise UserError(f"{files.record}: not the record of a decoding ({error})", _ANEW) from None
    return content if isinstance(fingerprint, dict) else None


def write_record(files: PassFiles, record: dict[str, Any]) -> None:
    """Write the record of a finished pass."""
    write_whole(files.record, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def _use_parts(files: PassFiles, fingerprint: Fingerprint, found: Found, *, overwrite: bool) -> None:
    try:
        kept = read_kept(files.folder, files.stem)
        for session in kept.sessions:
            refuse_other(session.fingerprint, fingerprint, part_file(files.folder, files.stem))
    except UserError:
        if not overwrite:
            raise
        found.removed += files.parts()
        return
    found.kept = kept


def _check_companion(files: PassFiles, fingerprint: Fingerprint, found: Found, *, overwrite: bool) -> None:
    """The two passes are read together, so they must be of one model and one benchmark."""
    try:
        record = read_record(files) if files.predictions.is_file() else None
        others = [record["fingerprint"]] if record is not None else []
        others += [session.fingerprint for session in read_kept(files.folder, files.stem).sessions]
        for other in others:
            refuse_other(other, fingerprint, files.predictions, companion=True)
    except UserError:
        if not overwrite:
            raise
        found.removed += [*files.finished(), *files.parts()]


def _finished_answers(files: PassFiles, samples: Sequence[Named]) -> dict[int, Answer]:
    """The outputs alone: how they were read and scored is no matter, as they are scored again."""
    answers = {}
    problem = ""
    lines = files.predictions.read_bytes().splitlines()
    for index, (line, sample) in enumerate(zip(lines, samples, strict=False)):
        try:
            row = json.loads(line)
            if (row["dataset"], row["id"]) == (sample.dataset, sample.id):
                answers[index] = Answer(index, str(row["output"]))
                continue
            problem = f"is about {row['id']!r} of {row['dataset']!r}; expected {sample.id!r} of {sample.dataset!r}"
        except (ValueError, KeyError, TypeError) as error:
            problem = f"is no prediction ({error})"
        raise UserError(f"{files.predictions}, line {index + 1}: {problem}", remedy=_ANEW)
    if len(lines) != len(samples):
        raise UserError(f"{files.predictions}: holds {len(lines)} predictions; expected {len(samples)}", remedy=_ANEW)
    return answers
