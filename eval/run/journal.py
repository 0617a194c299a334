"""One pass over a task's prompts, which a kill at any moment does not harm.

`run_pass` is the whole of it: find what earlier sessions left, decode what is missing with every answer on the disk as
soon as it is there, then write the predictions and the record of what they were decoded with. The files themselves
are described in `eval.run.journal_files`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

import d2e_sft
from d2e_sft.util.errors import ProcessError, UserError
from d2e_sft.util.files import sha256_of, write_json
from d2e_sft.util.locks import only_one
from d2e_sft.util.terminal import warn
from eval.run.engines.engine import Engine, Task
from eval.run.fingerprint import check_fingerprint
from eval.run.journal_files import (
    DECODE_ANEW,
    Answer,
    Fingerprint,
    JournalContent,
    JournalWriter,
    PassFiles,
    SessionHeader,
    read_journal,
    read_record,
)
from eval.run.processes import Processes, share
from eval.score.predictions import DIGEST, SampleKey, refuse_edited

T = TypeVar("T")


@dataclass
class ResumeState(JournalContent):
    """What earlier sessions left of a pass, as far as it may be used.

    Attributes:
        record: of a finished pass, whose answers all are there; else None.
        stale: files to remove before the first answer is written.
    """

    record: dict[str, Any] | None = None
    stale: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class CompletedPass:
    """A pass of which every answer is there.

    Attributes:
        answers: to all prompts, in their order.
        record: what they were decoded with: fingerprint, engine, environment, its counts and seconds (of the last
            session), and how many were `resumed` (decoded by earlier sessions) and `truncated`.
    """

    answers: list[Answer]
    record: dict[str, Any]

    @property
    def outputs(self) -> list[str]:
        """What was generated for each prompt."""
        return [answer.output for answer in self.answers]


def run_pass(
    task: Task,
    keys: Sequence[SampleKey],
    files: PassFiles,
    processes: Processes,
    *,
    fingerprint: Callable[[], Fingerprint],
    load_engine: Callable[[], Engine],
    write: Callable[[CompletedPass], T],
    overwrite: bool,
    accept_edited: bool = False,
) -> T:
    """Decode what earlier sessions have not, and write the results.

    Every process decodes its share; the main one looks for earlier answers and writes the results.

    Args:
        keys: of the task's prompts, in their order.
        fingerprint: tells all that the outputs depend on; called in the main process only.
        load_engine: called only where something is left to decode.
        write: writes the predictions and all that is made of them, in the main process; the record, which makes the
            pass a finished one, is written after it.
        overwrite: decode a finished pass anew, and remove what came from other options.
        accept_edited: score finished predictions again although somebody changed them; the record says so.

    Returns:
        what `write` returned, in every process.

    Raises:
        UserError: there are answers of another model or with other options, a file is damaged, or the engine cannot
            go on; the answers so far are kept.
    """

    with _alone_in(files.folder, processes):
        return _run(
            task,
            keys,
            files,
            processes,
            fingerprint,
            load_engine,
            write,
            overwrite=overwrite,
            accept_edited=accept_edited,
        )


@contextmanager
def _alone_in(folder: Path, processes: Processes) -> Iterator[None]:
    """Hold the lock of the benchmark's folder, in the main process, for all of them."""
    with ExitStack() as held:

        def enter() -> None:
            held.enter_context(only_one(folder, "another evaluation", "wait for its end, or choose another --out"))

        processes.decided_by_main(enter)
        yield


def _run(
    task: Task,
    keys: Sequence[SampleKey],
    files: PassFiles,
    processes: Processes,
    fingerprint: Callable[[], Fingerprint],
    load_engine: Callable[[], Engine],
    write: Callable[[CompletedPass], T],
    *,
    overwrite: bool,
    accept_edited: bool,
) -> T:
    def look() -> tuple[Fingerprint, ResumeState]:
        now = fingerprint()
        return now, find_resume_state(files, now, keys, overwrite=overwrite, accept_edited=accept_edited)

    now, resumed = processes.decided_by_main(look)
    if processes.is_main:
        _report_resume(resumed, files, len(task))
    session: dict[str, Any] = {}
    if len(resumed.answers) < len(task):
        session = _decode_missing(load_engine(), task, now, files, resumed, processes)
    else:
        processes.decided_by_main(lambda: _remove_stale(files, resumed))

    def finish() -> T:
        completed = _gather(files, resumed, now, len(task), session)
        if completed.record.pop(DIGEST, None) is not None:
            # Scored again, perhaps to other lines: a kill between the two files must not look like an edit.
            write_json(files.record, completed.record)
        result = write(completed)
        write_json(files.record, {**completed.record, DIGEST: sha256_of(files.predictions)})
        for path in files.partials():
            path.unlink()
        return result

    return processes.decided_by_main(finish)


def find_resume_state(
    files: PassFiles,
    fingerprint: Fingerprint,
    keys: Sequence[SampleKey],
    *,
    overwrite: bool,
    accept_edited: bool = False,
) -> ResumeState:
    """What may be used of what lies in the folder; changes nothing.

    With `overwrite` a finished pass is decoded anew, and what came from other options goes; a pass of the same options
    that was broken off goes on.

    Raises:
        UserError: there are answers of another model or with other options, or a file is damaged.
    """
    stale: list[Path] = []
    if files.companion is not None:
        stale += _check_companion(files.companion, fingerprint, overwrite=overwrite)
    record = read_record(files) if files.predictions.is_file() else None
    if record is None and files.predictions.is_file() and not files.partials() and not overwrite:
        raise UserError(
            f"{files.predictions}: holds predictions, but {files.record.name} is missing, so it cannot be told which "
            "model and options they came from",
            remedy=f"{DECODE_ANEW}, or keep them with another --out",
        )
    if overwrite:
        stale += files.finished()
    elif record is not None:
        check_fingerprint(record["fingerprint"], fingerprint, files.predictions)
        record = _as_written(files, record, accept_edited=accept_edited)
        return ResumeState(answers=_finished_answers(files, keys), record=record, stale=stale)
    try:
        journal = read_journal(files)
        for session in journal.sessions:
            check_fingerprint(session.fingerprint, fingerprint, files.partial())
    except UserError:
        if not overwrite:
            raise
        return ResumeState(stale=stale + files.partials())
    return ResumeState(**vars(journal), stale=stale)


def _check_companion(files: PassFiles, fingerprint: Fingerprint, *, overwrite: bool) -> list[Path]:
    """The two passes are read together, so they must be of one model and one benchmark; the files that are not."""
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


def _as_written(files: PassFiles, record: dict[str, Any], *, accept_edited: bool) -> dict[str, Any]:
    """The record, which from now on says so where the predictions were changed and that is accepted."""
    try:
        refuse_edited(files.predictions)
    except UserError:
        if not accept_edited:
            raise
        return {**record, "edited": True}
    return record


def _finished_answers(files: PassFiles, keys: Sequence[SampleKey]) -> dict[int, Answer]:
    """The outputs alone: how they were read and scored is no matter, as they are scored again."""
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
            problem = f"is no prediction ({error})"
        raise UserError(f"{files.predictions}, line {index + 1}: {problem}", remedy=DECODE_ANEW)
    if len(lines) != len(keys):
        raise UserError(
            f"{files.predictions}: holds {len(lines)} predictions; expected {len(keys)}", remedy=DECODE_ANEW
        )
    return answers


def _report_resume(state: ResumeState, files: PassFiles, count: int) -> None:
    """Tell the user what is used of earlier sessions."""
    for path in state.cut_off:
        warn(f"{path}: its last line was cut off, so that sample is decoded again")
    for path in state.unchecked:
        print(f"note: {path}: begun by an earlier version, whose lines have no checks", file=sys.stderr)
    if state.record is not None and DIGEST not in state.record:
        print(f"note: {files.record}: no digest of the predictions, so no edit of them would be seen", file=sys.stderr)
    if state.record is not None:
        edited = " (changed by somebody, as its record says)" if state.record.get("edited") else ""
        print(f"decoded before, and only scored again: {files.predictions}{edited}", file=sys.stderr)
    elif state.answers:
        print(f"resumed: {len(state.answers):,} of {count:,} samples were decoded before", file=sys.stderr)


def _remove_stale(files: PassFiles, state: ResumeState) -> None:
    """Make the folder, and remove what has to go from it.

    Called once whatever was wrong with the call has been said, so that nothing was touched for it.
    """
    files.folder.mkdir(parents=True, exist_ok=True)
    for path in state.stale:
        path.unlink(missing_ok=True)


def _decode_missing(
    engine: Engine, task: Task, fingerprint: Fingerprint, files: PassFiles, resumed: ResumeState, processes: Processes
) -> dict[str, Any]:
    """Decode this process's share of what is left.

    Returns:
        for the record: environment, the engine's counts, and the seconds until the last process was done.

    Raises:
        UserError: the engine cannot go on; says how many answers are kept.
    """
    lengths = engine.begin(task)
    environment = {"d2e_sft": d2e_sft.__version__, **engine.environment(), "processes": processes.count}
    processes.decided_by_main(lambda: _remove_stale(files, resumed))
    todo = share(
        lengths,
        resumed.answers.keys(),
        groups=task.groups,
        batch_size=task.decoding.batch_size,
        process=processes.index,
        processes=processes.count,
    )
    started = time.perf_counter()
    path = files.partial(processes.index)
    bar = tqdm(total=len(todo), desc=f"decoding ({task.title})", unit="sample", disable=not processes.is_main)
    with closing(JournalWriter(path, SessionHeader(fingerprint, engine.name, environment))) as writer, bar:

        def on_answers(answers: list[Answer]) -> None:
            writer.write(answers)
            bar.update(len(answers))

        try:
            engine.decode(todo, on_answers)
        except UserError as error:
            kept = len(read_journal(files).answers)
            kind = ProcessError if isinstance(error, ProcessError) else UserError
            raise kind(
                f"{error.message}; {kept:,} of {len(task):,} answers are kept in {path}, and the same command "
                "goes on from there",
                error.remedy,
            ) from error
    processes.wait()
    seconds = round(time.perf_counter() - started, 2)
    return {"environment": environment, "engine_counts": engine.counts, "seconds": seconds}


def _gather(
    files: PassFiles, resumed: ResumeState, fingerprint: Fingerprint, count: int, session: dict[str, Any]
) -> CompletedPass:
    """The answers of all processes and sessions to the `count` prompts, once all have come."""
    if resumed.record is not None:
        return CompletedPass([resumed.answers[i] for i in range(count)], resumed.record)
    journal = read_journal(files)
    missing = [i for i in range(count) if i not in journal.answers]
    if missing:
        raise UserError(
            f"{files.folder}: {len(missing)} of {count} answers are missing after decoding",
            remedy="run the same command again; if it stays so, it is a defect of d2e-sft",
        )
    record = {
        "fingerprint": fingerprint,
        "engine": ", ".join(dict.fromkeys(session.engine for session in journal.sessions)),
        **(session or {"environment": journal.sessions[-1].environment, "engine_counts": {}, "seconds": 0.0}),
        "resumed": len(resumed.answers),
        "truncated": sum(journal.answers[i].truncated for i in range(count)),
    }
    return CompletedPass([journal.answers[i] for i in range(count)], record)
