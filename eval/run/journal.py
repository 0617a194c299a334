"""One pass over a task's prompts, which survives a kill at any moment.

A pass finds the answers of earlier sessions and decodes the missing ones, with every answer on disk at once. Then it
writes the predictions and the record of their decoding. `eval.run.journal_files` describes the files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import d2e_sft
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of, write_json
from d2e_sft.util.locks import file_lock
from d2e_sft.util.progress import Progress
from eval.run.engines.engine import Engine, prompt_length
from eval.run.journal_files import Answer, Fingerprint, JournalWriter, PassFiles, SessionHeader, read_journal
from eval.run.processes import Processes, share
from eval.run.resume import ResumeState, find_resume_state
from eval.run.task import Task
from eval.score.predictions import DIGEST

T = TypeVar("T")


@dataclass(frozen=True)
class CompletedPass:
    """A pass with an answer to every prompt.

    Attributes:
        answers: Answers in the order of the prompts.
        record: Fingerprint and engine; environment, counts and seconds of the last session. It also has the numbers of
            answers `resumed` from earlier sessions and `truncated`, and by relation the samples that were `timed`.
    """

    answers: list[Answer]
    record: dict[str, Any]

    @property
    def outputs(self) -> list[str]:
        """The output for each prompt."""
        return [answer.output for answer in self.answers]


@dataclass(frozen=True)
class DecodingPass:
    """A task to decode, its files, and how to do it.

    Every process decodes its share; the main one looks for earlier answers and writes the results.

    Attributes:
        fingerprint: Computes everything that the outputs depend on; called only in the main process.
        load_engine: Loads the engine; called only if something is left to decode.
        overwrite: Decode a finished pass again, and remove results of other options.
        accept_edited: Score finished predictions again although they were edited; the record says so.
    """

    task: Task
    files: PassFiles
    processes: Processes
    fingerprint: Callable[[], Fingerprint]
    load_engine: Callable[[], Engine]
    overwrite: bool = False
    accept_edited: bool = False

    def run(self, write: Callable[[CompletedPass], T]) -> T:
        """Decode what earlier sessions have not and write the results; every process returns the result of `write`.

        `write` writes the predictions and everything derived from them, in the main process. The record, which makes
        the pass a finished one, is written after it. Raises UserError for answers of another model or with other
        options, a damaged file, or an engine that stopped; the answers so far are kept.
        """
        remedy = "wait for its end, or choose another --out"
        with file_lock(self.files.folder, "another evaluation", remedy, self.processes.broadcast_from_main):
            now, resumed = self.processes.broadcast_from_main(self._find_earlier)
            count = len(self.task.conversations)
            if self.processes.is_main:
                resumed.report(self.files, count)
            session: dict[str, Any] = {}
            if len(resumed.answers) < count:
                session = self._decode_missing(now, resumed)
            else:
                self.processes.broadcast_from_main(lambda: resumed.remove_stale(self.files.folder))
            return self.processes.broadcast_from_main(lambda: self._finish(self._gather(now, resumed, session), write))

    def _find_earlier(self) -> tuple[Fingerprint, ResumeState]:
        now, keys = self.fingerprint(), [(one.dataset, one.id) for one in self.task.conversations]
        how = {"overwrite": self.overwrite, "accept_edited": self.accept_edited}
        return now, find_resume_state(self.files, now, keys, **how)

    def _decode_missing(self, fingerprint: Fingerprint, resumed: ResumeState) -> dict[str, Any]:
        """Decode this process's share of what is left; returns what the record says of this session."""
        task, processes, engine = self.task, self.processes, self.load_engine()
        pairs = engine.prepare(task)
        environment = {"d2e_sft": d2e_sft.__version__, **engine.environment(), "processes": processes.count}
        processes.broadcast_from_main(lambda: resumed.remove_stale(self.files.folder))
        lengths, groups = [prompt_length(pair) for pair in pairs], [one.group for one in task.conversations]
        places = share(lengths, groups, task.decoding.group_batch_size, resumed.answers.keys(), processes)
        path = self.files.partial(processes.index)
        started = before = time.perf_counter()
        counted = 0  # tokens so far
        bar = Progress(total=len(places), desc=f"decoding ({task.title})", unit="sample", leave=True)
        with closing(JournalWriter(path, SessionHeader(fingerprint, engine.name, environment))) as writer, bar:
            decode = engine.score if task.likelihood else engine.generate
            try:
                for reply in decode([pairs[place] for place in places], task.decoding):
                    counted += reply.tokens
                    now = time.perf_counter()
                    if counted:
                        bar.set_postfix_str(f"{counted / (now - started):,.0f} tokens/s", refresh=False)
                    if reply.answer is None:
                        continue
                    place = places[reply.place]
                    answer = task.answer(place, reply.answer, truncated=pairs[place].truncated)
                    seconds = round(now - before, 6) if engine.in_turn else None
                    writer.write([replace(answer, seconds=seconds)])
                    bar.update()
                    before = time.perf_counter()
            except UserError as error:
                kept = len(read_journal(self.files).answers)
                raise type(error)(
                    f"{error.message}; {kept:,} of {len(pairs):,} answers are kept in {path}, and the same command "
                    "resumes from there",
                    error.remedy,
                ) from error
        processes.wait()
        total = round(time.perf_counter() - started, 2)
        return {"environment": environment, "engine_counts": engine.counts, "seconds": total}

    def _finish(self, completed: CompletedPass, write: Callable[[CompletedPass], T]) -> T:
        if completed.record.pop(DIGEST, None) is not None:
            # Scored again, perhaps to other lines: a kill between the two files must not look like an edit.
            write_json(self.files.record, {**completed.record, DIGEST: None})
        result = write(completed)
        write_json(self.files.record, {**completed.record, DIGEST: sha256_of(self.files.predictions)})
        for path in self.files.partials():
            path.unlink()
        return result

    def _gather(self, fingerprint: Fingerprint, resumed: ResumeState, session: dict[str, Any]) -> CompletedPass:
        """The answers of all processes and sessions, once all are there."""
        places: Sequence[int] = range(len(self.task.conversations))
        if resumed.record is not None:
            return CompletedPass([resumed.answers[place] for place in places], resumed.record)
        journal = read_journal(self.files)
        answers = [journal.answers[place] for place in places]
        last = {"environment": journal.sessions[-1].environment, "engine_counts": {}, "seconds": 0.0}
        record = {
            "fingerprint": fingerprint,
            "engine": ", ".join(dict.fromkeys(session.engine for session in journal.sessions)),
            **(session or last),
            "resumed": len(resumed.answers),
            "truncated": sum(answer.truncated for answer in answers),
            "timed": _timed(self.task, answers),
        }
        return CompletedPass(answers, record)


def _timed(task: Task, answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """The number of samples and the seconds that they took, by relation; those of several processes are added."""
    found: dict[str, dict[str, float]] = {}
    for conversation, answer in zip(task.conversations, answers, strict=True):
        if conversation.relation and answer.seconds is not None:
            own = found.setdefault(conversation.relation, {"samples": 0, "seconds": 0.0})
            own["samples"] += 1
            own["seconds"] += answer.seconds
    return found
