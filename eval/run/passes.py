"""One pass over a task's prompts, which survives a kill at any moment.

A pass finds the answers of earlier sessions and decodes the missing ones, each on disk at once. Then it writes the
finished file and the record of its decoding. PIPER's rows, the systems' prompts, closed-book questions and the rows of
`d2e predict` are tasks of the same pass. `eval.run.journal` describes the files.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import d2e_sft
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of, write_json, write_whole
from d2e_sft.util.locks import file_lock
from d2e_sft.util.progress import Progress
from eval.run.engines.engine import Engine, identity_of, make_engine, prompt_length
from eval.run.journal import (
    Earlier,
    Fingerprint,
    Journal,
    PassFiles,
    SessionHeader,
    find_earlier,
    fingerprint_of,
    read_journals,
)
from eval.run.options import EvalConfig
from eval.run.processes import Processes, share
from eval.run.task import Answer, Task
from eval.score.predictions import DIGEST

LoadEngine = Callable[[str, EvalConfig, Processes], Engine]


@dataclass
class EvaluatedModel:
    """A model, how it is asked, and the processes that ask it; it is loaded when there is something to decode.

    `load` loads the engine; several models may share one that it keeps. None: an engine of its own.
    """

    model: str
    config: EvalConfig
    processes: Processes
    load: LoadEngine | None = None

    @cached_property
    def identity(self) -> str:
        """The model by its content, which takes time to read, or an endpoint's by address and name."""
        return identity_of(self.model, self.config)

    @cached_property
    def engine(self) -> Engine:
        return (self.load or make_engine)(self.model, self.config, self.processes)


@dataclass(frozen=True)
class FinishedPass:
    """A pass with an answer to every prompt, in order.

    `record` has fingerprint and engine, and environment, counts and seconds of the last session. It has the numbers
    of answers `resumed` from earlier sessions and `truncated`, and by relation the samples that were `timed`.
    """

    answers: list[Answer]
    record: dict[str, Any]


def run_pass(task: Task, files: PassFiles, model: EvaluatedModel) -> FinishedPass:
    """Decode what earlier sessions have not, and write the finished file, a line per prompt, and its record.

    Every process decodes its share and returns the same; the main one looks for earlier answers and writes. The
    record, which makes the pass a finished one, is written last.

    UserError for answers of another model or with other options, a damaged file, or an engine that stopped; the
    answers so far are kept.
    """
    processes, options, count = model.processes, model.config.options, len(task.conversations)

    def look_back() -> tuple[Fingerprint, Earlier]:
        now, flags = fingerprint_of(task, model.identity, model.config), (options.overwrite, options.accept_edited)
        return now, find_earlier(files, now, task.keys, *flags)

    with file_lock(
        files.folder, "another evaluation", "wait for its end, or choose another --out", processes.broadcast_from_main
    ):
        fingerprint, earlier = processes.broadcast_from_main(look_back)
        if processes.is_main:
            earlier.report(files, count)
        session: dict[str, Any] = {}
        if len(earlier.answers) < count:
            session = _decode_missing(task, files, model, fingerprint, earlier)
        else:
            processes.broadcast_from_main(lambda: earlier.remove_stale(files.folder))
        return processes.broadcast_from_main(lambda: _finish(task, files, _gather(task, files, earlier, session)))


def _decode_missing(
    task: Task, files: PassFiles, model: EvaluatedModel, fingerprint: Fingerprint, earlier: Earlier
) -> dict[str, Any]:
    """Decode this process's share of what is left; returns what the record says of this session."""
    processes, engine = model.processes, model.engine
    pairs = engine.prepare(task)
    environment = {"d2e_sft": d2e_sft.__version__, **engine.environment(), "processes": processes.count}
    processes.broadcast_from_main(lambda: earlier.remove_stale(files.folder))
    lengths, groups = [prompt_length(pair) for pair in pairs], [chat.group for chat in task.conversations]
    ranks = share(lengths, groups, task.decoding.group_batch_size, earlier.answers.keys(), processes)
    places = list(ranks)
    path = files.partial(processes.index)
    started = before = time.perf_counter()
    tokens = 0
    decode = engine.score if task.likelihood else engine.generate
    bar = Progress(total=len(places), desc=f"decoding ({task.title})", unit="sample", leave=True)
    with closing(Journal(path, SessionHeader(fingerprint, engine.name, environment))) as journal, bar:
        try:
            for reply in decode([replace(pairs[place], place=rank) for place, rank in ranks.items()], task.decoding):
                tokens += reply.tokens
                now = time.perf_counter()
                if tokens:
                    bar.set_postfix_str(f"{tokens / (now - started):,.0f} tokens/s", refresh=False)
                if reply.answer is not None:
                    place = places[reply.place]
                    answer = task.answer(place, reply.answer, truncated=pairs[place].truncated)
                    journal.append(replace(answer, seconds=round(now - before, 6) if engine.in_turn else None))
                    bar.update()
                    before = now
        except UserError as error:
            kept = len(read_journals(files, len(pairs)).answers)
            raise type(error)(
                f"{error.message}; {kept:,} of {len(pairs):,} answers are kept in {path}, and the same command "
                "resumes from there",
                error.remedy,
            ) from error
    processes.wait()
    seconds = round(time.perf_counter() - started, 2)
    return {"environment": environment, "engine_counts": engine.counts, "seconds": seconds}


def _gather(task: Task, files: PassFiles, earlier: Earlier, session: dict[str, Any]) -> FinishedPass:
    places = range(len(task.conversations))
    if earlier.record is not None:
        return FinishedPass([earlier.answers[place] for place in places], earlier.record)
    journals = read_journals(files, len(places))
    answers = [journals.answers[place] for place in places]
    last = {"environment": journals.sessions[-1].environment, "engine_counts": {}, "seconds": 0.0}
    record = {
        "fingerprint": journals.sessions[-1].fingerprint,
        "engine": ", ".join(dict.fromkeys(header.engine for header in journals.sessions)),
        **(session or last),
        "resumed": len(earlier.answers),
        "truncated": sum(answer.truncated for answer in answers),
        "timed": _timed(task, answers),
    }
    return FinishedPass(answers, record)


def _finish(task: Task, files: PassFiles, finished: FinishedPass) -> FinishedPass:
    """Write the finished file, then its record with the file's checksum, and remove the journals."""
    record = finished.record
    if record.pop(DIGEST, None) is not None:
        # Written again, perhaps with other lines: a kill between the two files must not look like an edit.
        write_json(files.record, {**record, DIGEST: None})
    write_whole(files.predictions, "".join(task.line(answer) + "\n" for answer in finished.answers))
    write_json(files.record, {**record, DIGEST: sha256_of(files.predictions)})
    for path in files.partials():
        path.unlink()
    return finished


def _timed(task: Task, answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """The number of samples and the seconds that they took, by relation; those of several processes are added."""
    timed: dict[str, dict[str, float]] = {}
    for conversation, answer in zip(task.conversations, answers, strict=True):
        if conversation.relation and answer.seconds is not None:
            relation = timed.setdefault(conversation.relation, {"samples": 0, "seconds": 0.0})
            relation["samples"] += 1
            relation["seconds"] += answer.seconds
    return timed
