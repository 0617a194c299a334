"""One pass over the samples: what is left of it is decoded, and every answer is on the disk as soon as it is there."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from d2e_sft.util.errors import UserError
from eval.run.engines.engine import Engine
from eval.run.engines.task import Task
from eval.run.processes import Processes, share
from eval.run.progress import Answer, Fingerprint, Session, Writer, part_file, read_kept, remove_parts
from eval.run.results import Found, PassFiles


@dataclass(frozen=True)
class Spent:
    """What this session's decoding took, over all processes.

    Attributes:
        environment: None where nothing was left to decode.
        counts: the engine's own, of this process.
    """

    seconds: float = 0.0
    environment: dict[str, Any] | None = None
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Decoded:
    """A complete pass.

    Attributes:
        outputs: of all samples, in their order.
        record: what they were decoded with: fingerprint, engine, environment, its counts and seconds (of the last
            session), and how many were `resumed` (decoded by earlier sessions) and `truncated`.
    """

    outputs: list[str]
    record: dict[str, Any]


def decode_rest(
    engine: Engine, task: Task, fingerprint: Fingerprint, files: PassFiles, found: Found, processes: Processes
) -> Spent:
    """Decode this process's share of what is left.

    Raises:
        UserError: the engine cannot go on; says how many answers are kept.
    """
    lengths = engine.begin(task)
    environment = {**engine.environment(), "processes": processes.count}
    processes.decided_by_main(lambda: make_room(files, found))
    todo = share(
        lengths,
        found.kept.answers.keys(),
        groups=task.groups,
        batch_size=task.batch_size,
        process=processes.index,
        processes=processes.count,
    )
    started = time.perf_counter()
    path = part_file(files.folder, files.stem, processes.index)
    session = Session(fingerprint, engine.name, environment)
    with Writer(path, session) as writer, _bar(task, len(todo), processes) as bar:

        def on_answers(answers: list[Answer]) -> None:
            writer.write(answers)
            bar.update(len(answers))

        try:
            engine.decode(todo, on_answers)
        except UserError as error:
            kept = len(read_kept(files.folder, files.stem).answers)
            raise UserError(
                f"{error.message}; {kept:,} of {len(task):,} answers are kept in {path}, and the same command "
                "goes on from there",
                error.remedy,
            ) from error
    processes.wait()
    return Spent(time.perf_counter() - started, environment, engine.counts())


def gather(files: PassFiles, found: Found, fingerprint: Fingerprint, count: int, spent: Spent) -> Decoded:
    """The answers of all processes and sessions, once all have come.

    Args:
        count: of samples.
    """
    if found.record is not None:
        answers = found.kept.answers
        return Decoded([answers[i].output for i in range(count)], found.record)
    kept = read_kept(files.folder, files.stem)
    missing = [i for i in range(count) if i not in kept.answers]
    if missing:
        raise UserError(
            f"{files.folder}: {len(missing)} of {count} answers are missing after decoding",
            remedy="run the same command again; if it stays so, it is a defect of d2e-sft",
        )
    engines = dict.fromkeys(session.engine for session in kept.sessions)
    record = {
        "fingerprint": fingerprint,
        "engine": ", ".join(engines),
        "environment": spent.environment or kept.sessions[-1].environment,
        "engine_counts": spent.counts,
        "seconds": round(spent.seconds, 2),
        "resumed": len(found.kept.answers),
        "truncated": sum(kept.answers[i].truncated for i in range(count)),
    }
    return Decoded([kept.answers[i].output for i in range(count)], record)


def say_what_was_found(found: Found, files: PassFiles, count: int) -> None:
    """Tell the user what is used of earlier evaluations."""
    for path in found.kept.cut_off:
        print(f"warning: {path}: its last line was cut off, so that sample is decoded again", file=sys.stderr)
    if found.record is not None:
        print(f"decoded before, and only scored again: {files.predictions}", file=sys.stderr)
    elif found.kept.answers:
        print(f"resumed: {len(found.kept.answers):,} of {count:,} samples were decoded before", file=sys.stderr)


def clear_parts(files: PassFiles) -> None:
    """Remove the part files, whose answers are in the predictions now."""
    remove_parts(files.folder, files.stem)


def make_room(files: PassFiles, found: Found) -> None:
    """Make the folder, and remove what has to go from it.

    To be called once whatever was wrong with the call has been said, so that nothing was touched for it.
    """
    files.folder.mkdir(parents=True, exist_ok=True)
    for path in found.removed:
        path.unlink(missing_ok=True)


def _bar(task: Task, count: int, processes: Processes) -> Any:
    return tqdm(total=count, desc=f"decoding ({task.title})", unit="sample", disable=not processes.is_main)
