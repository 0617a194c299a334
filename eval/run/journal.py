"""The files of one pass: answers on disk as they come, and what earlier sessions left of them.

Each process appends to its own journal (`predictions.partial.jsonl`, `predictions.partial.1.jsonl`, …). A session
begins with a header line; each answer is a line with its place among the prompts. A kill can cut off only the last
line; its prompt is decoded again. A complete pass has `predictions.jsonl` (or `without_context.jsonl`) and the record
of how it was decoded, `….decoding.json`, with its SHA-256; the journals are then removed.

A fingerprint says what outputs depend on, without engine, batch size and processes, so that different ones never mix.
"""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from d2e_sft.config.decoding import RECORDED, parse_decoder
from d2e_sft.config.functions import code_of
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import removal
from d2e_sft.util.terminal import say, warn
from eval.run.options import EvalConfig
from eval.run.task import Answer, Task
from eval.score.predictions import DIGEST, SampleKey, refuse_edited
from eval.score.scores import SCORES_FILE

WITH_CONTEXT, WITHOUT_CONTEXT = "predictions", "without_context"
DECODE_AGAIN = "decode again with --overwrite"
_SYNCED_EVERY = 1.0  # seconds: a kill loses no answer, a power cut those of the last second

Fingerprint = dict[str, Any]
# The pass without context belongs to predictions of any decoder and length rule.
_DIFFERS_BETWEEN_PASSES = frozenset({*RECORDED, "decoder_code", "view", "cut_to"})
# Keys that are reported by another key's value, which is not compared.
_REPORTED_AS = {"prompts": "asked"}
# The other keys are options of the command line.
_NAMES = {
    "model": "the model",
    "view": "the view",
    "decoder_code": "the file of the decoder",
    "prompt_set": "the prompt set",
    "demonstrations": "the demonstrations",
    "bench": "the benchmark's rows",
    "subset": "the subset (--max-samples)",
    "prompts": "the prompts",
    "cut_to": "the length that contexts were cut to",
}


@dataclass(frozen=True)
class SessionHeader:
    """The first line of a session, which is one run of the command in one process."""

    fingerprint: Fingerprint
    engine: str
    environment: dict[str, Any]


@dataclass(frozen=True)
class PassFiles:
    """Paths of the files of one pass in the folder RUN/eval/BENCHMARK.

    The stem is `predictions` or `without_context`; in a benchmark with several passes, the name of the pass.
    """

    folder: Path
    stem: str

    @property
    def predictions(self) -> Path:
        return self.folder / f"{self.stem}.jsonl"

    @property
    def record(self) -> Path:
        return self.folder / f"{self.stem}.decoding.json"

    def partial(self, process: int = 0) -> Path:
        return self.folder / (f"{self.stem}.partial.{process}.jsonl" if process else f"{self.stem}.partial.jsonl")

    def partials(self) -> list[Path]:
        paths = self.folder.glob(f"{self.stem}.partial.*.jsonl")
        numbered = [path for path in paths if path.name.split(".")[-2].isdecimal()]
        return [path for path in (self.partial(), *sorted(numbered)) if path.is_file()]

    def finished(self) -> list[Path]:
        """The files of a finished pass, in the order in which they may be removed."""
        scores = [self.folder / SCORES_FILE] if self.stem == WITH_CONTEXT else []
        return [path for path in (self.predictions, *scores, self.record) if path.is_file()]


class Journal:
    """Appends a session's answers to a process's file; each survives a kill as soon as it is written."""

    def __init__(self, path: Path, header: SessionHeader) -> None:
        self._file = path.open("ab", buffering=0)
        self._file.truncate(path.read_bytes().rfind(b"\n") + 1)  # drops a line that was cut off
        self._synced = 0.0
        self._append(vars(header))

    def append(self, answer: Answer) -> None:
        self._append(answer.line())

    def close(self) -> None:
        """Close the file, once it is on the disk."""
        os.fsync(self._file.fileno())
        self._file.close()

    def _append(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, ensure_ascii=False).encode("utf-8", errors="backslashreplace")
        self._file.write(text + b"\n")
        if time.monotonic() - self._synced > _SYNCED_EVERY:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()


@dataclass
class Earlier:
    """What earlier sessions left of a pass, as far as it may be used.

    Attributes:
        answers: By the place of their prompt.
        cut_off: Journals whose last line is incomplete.
        record: Present after a finished pass; None if answers are missing.
        stale: Files to remove before the first answer is written.
    """

    sessions: list[SessionHeader] = field(default_factory=list)
    answers: dict[int, Answer] = field(default_factory=dict)
    cut_off: list[Path] = field(default_factory=list)
    record: dict[str, Any] | None = None
    stale: list[Path] = field(default_factory=list)

    def report(self, files: PassFiles, count: int) -> None:
        if self.stale:
            warn(removal(files.folder, self.stale))
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


def read_journals(files: PassFiles, count: int) -> Earlier:
    """Read the journals of earlier sessions; UserError if a line is damaged in a way that no kill explains."""
    earlier = Earlier()
    for path in files.partials():
        *lines, rest = path.read_bytes().split(b"\n")
        if rest:
            earlier.cut_off.append(path)
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                if "fingerprint" in entry:
                    earlier.sessions.append(SessionHeader(**entry))
                    continue
                answer = Answer(**entry)
                if not (0 <= answer.index < count and isinstance(answer.output, str) and earlier.sessions):
                    raise ValueError(f"expected an output for a prompt from 0 to {count - 1}, after a session's line")
            except (ValueError, TypeError, RecursionError) as error:
                raise UserError(
                    f"{path}, line {number}: neither a session nor an answer ({error})",
                    remedy="the file is damaged or was edited; decode again with --overwrite, or cut the file off "
                    "before this line, and the rest is decoded again",
                ) from None
            earlier.answers[answer.index] = answer
    return earlier


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


def find_earlier(
    files: PassFiles, fingerprint: Fingerprint, keys: Sequence[SampleKey], overwrite: bool, accept_edited: bool
) -> Earlier:
    """Find what can be reused in the folder; changes nothing.

    With `overwrite`, finished passes and results of other options are stale. An interrupted pass with the same
    options is still resumed. UserError for answers of another model or with other options, or a damaged file.
    """
    stale = _stale_companion(files, fingerprint, overwrite=overwrite)
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
        return Earlier(answers=_finished_answers(files, keys), record=record, stale=stale)
    elif files.predictions.is_file() and not files.partials():
        raise UserError(
            f"{files.predictions}: holds predictions, but {files.record.name} is missing, so their model and options "
            "are unknown",
            remedy=f"{DECODE_AGAIN}, or keep them with another --out",
        )
    try:
        earlier = read_journals(files, len(keys))
        for session in earlier.sessions:
            check_fingerprint(session.fingerprint, fingerprint, files.partial())
    except UserError:
        if not overwrite:
            raise
        return Earlier(stale=stale + files.partials())
    earlier.stale = stale
    return earlier


def _stale_companion(files: PassFiles, fingerprint: Fingerprint, *, overwrite: bool) -> list[Path]:
    """Check that the pass with, or without, the context has the same model and benchmark; else its files are stale."""
    stems = {WITH_CONTEXT: WITHOUT_CONTEXT, WITHOUT_CONTEXT: WITH_CONTEXT}
    if files.stem not in stems:
        return []
    companion = PassFiles(files.folder, stems[files.stem])
    try:
        record = read_record(companion) if companion.predictions.is_file() else None
        fingerprints = [record["fingerprint"]] if record is not None else []
        fingerprints += [session.fingerprint for session in read_journals(companion, sys.maxsize).sessions]
        for earlier in fingerprints:
            check_fingerprint(earlier, fingerprint, companion.predictions, companion=True)
    except UserError:
        if not overwrite:
            raise
        return [*companion.finished(), *companion.partials()]
    return []


def _finished_answers(files: PassFiles, keys: Sequence[SampleKey]) -> dict[int, Answer]:
    """The outputs of a finished pass; they are scored again."""
    answers = {}
    lines = files.predictions.read_bytes().splitlines()
    for index, (line, (dataset, name)) in enumerate(zip(lines, keys, strict=False)):
        try:
            row = json.loads(line)
            if (row["dataset"], row["id"]) == (dataset, name):
                options = row.get("likelihoods")
                scores = None if options is None else [(option["logprob"], option["tokens"]) for option in options]
                answers[index] = Answer(index, str(row["output"]), scores=scores)
                continue
            problem = f"is about {row['id']!r} of {row['dataset']!r}; expected {name!r} of {dataset!r}"
        except (ValueError, KeyError, TypeError) as error:
            problem = f"is not a prediction ({error})"
        raise UserError(f"{files.predictions}, line {index + 1}: {problem}", remedy=DECODE_AGAIN)
    if len(lines) != len(keys):
        raise UserError(f"{files.predictions}: holds {len(lines)} predictions; expected {len(keys)}", DECODE_AGAIN)
    return answers


def fingerprint_of(task: Task, identity: str, config: EvalConfig) -> Fingerprint:
    """Everything that the outputs of a task depend on, as flat JSON; the task's `about` says which prompts they are.

    `identity` is that of `d2e_sft.model.storage.folder`; for an endpoint, its address and model.
    """
    options, decoding, endpoint = config.options, task.decoding, config.engine == "openai"
    likelihood: Fingerprint = {"answer": "likelihood"} if task.likelihood else {}
    if likelihood and endpoint:
        likelihood["tokenizer"] = options.tokenizer
    decoder = parse_decoder(decoding.decoder)[0]
    cut_to = options.vllm.get("max_model_len") if options.overlong == "truncate_context" else None
    return {
        "model": identity,
        "view": task.view,
        **({} if config.form == "chat" else {"form": config.form}),
        **decoding.record(),
        **({"decoder_code": code_of(decoder, "decoder")} if ":" in decoder else {}),
        **likelihood,
        "max_new_tokens": None if likelihood else decoding.max_new_tokens,
        "dtype": options.dtype,
        "temperature": decoding.temperature or (options.endpoint.temperature if endpoint else 0.0),
        "seed": decoding.seed if decoding.temperature > 0 else None,
        **({} if cut_to is None else {"cut_to": cut_to}),
        **task.about,
    }


def check_fingerprint(before: Fingerprint, now: Fingerprint, file: Path, *, companion: bool = False) -> None:
    """Check that outputs on disk belong to the same pass as new ones; UserError with everything that differs.

    With `companion` they are of the other pass of the same evaluation, with or without the context.
    """
    changed = []
    for key in {**before, **now}:
        if (companion and key in _DIFFERS_BETWEEN_PASSES) or key in _REPORTED_AS.values():
            continue
        if before.get(key) != now.get(key):
            reported = _REPORTED_AS.get(key, key)
            shown = reported if reported in before and before[reported] != now.get(reported) else key
            name = _NAMES.get(key, f"--{key.replace('_', '-')}")
            changed.append(f"{name}: {_shown(before.get(shown))} → {_shown(now.get(shown))}")
    if changed:
        raise UserError(
            "\n  ".join([f"{file}: was decoded by another model or with other options", *changed]),
            remedy="give the options of that decoding, keep both with another --out, or remove it with --overwrite",
        )


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return f"{text[:60]}…" if len(text) > 60 else text
