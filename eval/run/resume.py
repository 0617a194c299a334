"""What earlier sessions left of a pass, and whether it may be used."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import say, warn
from eval.run.fingerprint import check_fingerprint
from eval.run.journal_files import (
    DECODE_AGAIN,
    Answer,
    Fingerprint,
    JournalContent,
    PassFiles,
    read_journal,
    read_record,
)
from eval.score.predictions import DIGEST, SampleKey, refuse_edited


@dataclass
class ResumeState(JournalContent):
    """The usable part of earlier sessions, and `stale` files to remove before the first answer is written.

    `record` is that of a finished pass; None if answers are missing.
    """

    record: dict[str, Any] | None = None
    stale: list[Path] = field(default_factory=list)

    def report(self, files: PassFiles, count: int) -> None:
        """Tell the user what is reused of earlier sessions."""
        for path in self.cut_off:
            warn(f"{path}: its last line was cut off, so that sample is decoded again")
        if self.record is not None:
            edited = " (edited by hand, as its record says)" if self.record.get("edited") else ""
            print(f"decoded before, and only scored again: {files.predictions}{edited}", file=sys.stderr)
        elif self.answers:
            say(f"resumed: {len(self.answers):,} of {count:,} samples were decoded before", err=True)

    def remove_stale(self, folder: Path) -> None:
        """Make the folder and remove stale files; call this only after everything has been checked."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in self.stale:
            path.unlink(missing_ok=True)


def find_resume_state(
    files: PassFiles, fingerprint: Fingerprint, keys: Sequence[SampleKey], *, overwrite: bool, accept_edited: bool
) -> ResumeState:
    """Find what can be reused in the folder; changes nothing.

    With `overwrite`, finished passes and results of other options are stale. An interrupted pass with the same options
    is still resumed. Raises UserError for answers of another model or with other options, or a damaged file.
    """
    stale = [] if files.companion is None else _stale_companion(files.companion, fingerprint, overwrite=overwrite)
    record = read_record(files) if files.predictions.is_file() else None
    if overwrite:
        stale += files.finished()
    elif record is not None:
        check_fingerprint(record["fingerprint"], fingerprint, files.predictions)
        try:
            if record.get(DIGEST, "missing") is not None:  # None: a kill interrupted its scoring
                refuse_edited(files.predictions)
        except UserError:
            if not accept_edited:
                raise
            record = {**record, "edited": True}
        return ResumeState(answers=_finished_answers(files, keys), record=record, stale=stale)
    elif files.predictions.is_file() and not files.partials():
        raise UserError(
            f"{files.predictions}: holds predictions, but {files.record.name} is missing, so their model and options "
            "are unknown",
            remedy=f"{DECODE_AGAIN}, or keep them with another --out",
        )
    try:
        journal = read_journal(files)
        for session in journal.sessions:
            check_fingerprint(session.fingerprint, fingerprint, files.partial())
    except UserError:
        if not overwrite:
            raise
        return ResumeState(stale=stale + files.partials())
    return ResumeState(**vars(journal), stale=stale)


def _stale_companion(files: PassFiles, fingerprint: Fingerprint, *, overwrite: bool) -> list[Path]:
    """Check that the pass with, or without, the context has the same model and benchmark; else its files are stale."""
    try:
        record = read_record(files) if files.predictions.is_file() else None
        others = [record["fingerprint"]] if record is not None else []
        others += [session.fingerprint for session in read_journal(files).sessions]
        for other in others:
            check_fingerprint(other, fingerprint, files.predictions, companion=True)
    except UserError:
        if not overwrite:
            raise
        return [*files.finished(), *files.partials()]
    return []


def _finished_answers(files: PassFiles, keys: Sequence[SampleKey]) -> dict[int, Answer]:
    """The outputs of a finished pass; they are scored again."""
    answers = {}
    lines = files.predictions.read_bytes().splitlines()
    for index, (line, (dataset, name)) in enumerate(zip(lines, keys, strict=False)):
        try:
            row = json.loads(line)
            if (row["dataset"], row["id"]) == (dataset, name):
                scored = row.get("likelihoods")
                scores = None if scored is None else [(option["logprob"], option["tokens"]) for option in scored]
                answers[index] = Answer(index, str(row["output"]), scores=scores)
                continue
            problem = f"is about {row['id']!r} of {row['dataset']!r}; expected {name!r} of {dataset!r}"
        except (ValueError, KeyError, TypeError) as error:
            problem = f"is not a prediction ({error})"
        raise UserError(f"{files.predictions}, line {index + 1}: {problem}", remedy=DECODE_AGAIN)
    if len(lines) != len(keys):
        raise UserError(f"{files.predictions}: holds {len(lines)} predictions; expected {len(keys)}", DECODE_AGAIN)
    return answers
