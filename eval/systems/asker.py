"""Asking a model what a benchmark wants to know: one pass after another, each kept on disk as its answers come."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from d2e_sft.util.files import write_whole
from eval.run.decode import Decoded, Spent, clear_parts, decode_rest, gather, make_room, say_what_was_found
from eval.run.engines.choose import identity_of, make_engine
from eval.run.engines.conversation_task import Conversation, ConversationTask
from eval.run.engines.engine import Engine
from eval.run.fingerprint import plausibility_of
from eval.run.options import Decoding, EvalOptions
from eval.run.processes import Processes
from eval.run.progress import Fingerprint
from eval.run.results import Found, PassFiles, find_earlier, write_record


@dataclass
class Asker:
    """A model that answers conversations, pass after pass.

    A pass writes `FOLDER/PASS.jsonl` (dataset, id and output of each conversation) and `PASS.decoding.json`. It is
    taken up again after a kill, and answers of other prompts, models or options are never mixed. The model is loaded
    when first there is something to decode.

    Attributes:
        decoding: how; `alpha` subtracts what the imagined conversation says.
        records: of the passes so far: what they were decoded with.
    """

    model: str
    decoding: Decoding
    options: EvalOptions
    processes: Processes
    folder: Path
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    _engine: Engine | None = None

    def ask(
        self,
        name: str,
        conversations: Sequence[Conversation],
        *,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[str]:
        """The answer to each conversation, in order.

        Args:
            name: of the pass, which names its files.
            max_new_tokens: at most, where `--max-new-tokens` does not say; None is the general default.
            temperature: 0 is greedy.
            seed: of the draws.

        Raises:
            UserError: a prompt exceeds the model's context, the engine cannot go on, or the folder holds answers to
                other prompts.
        """
        assert len({(chat.dataset, chat.id) for chat in conversations}) == len(conversations), "names of their own"
        if not conversations:
            return []
        task = ConversationTask(
            name=name,
            conversations=conversations,
            alpha=self.decoding.alpha,
            plausibility=self.decoding.plausibility,
            without_context=self.decoding.without_context,
            max_new_tokens=self.options.max_new_tokens or max_new_tokens or self.decoding.max_new_tokens,
            batch_size=self.decoding.batch_size,
            temperature=temperature,
            seed=seed,
        )
        files = PassFiles(self.folder, name)
        now, found = self.processes.decided_by_main(lambda: self._look(task, files))
        if self.processes.is_main:
            say_what_was_found(found, files, len(task))
        spent = self._decode(task, now, files, found)
        decoded = self.processes.decided_by_main(lambda: self._finish(task, now, files, found, spent))
        self.records[name] = decoded.record
        return decoded.outputs

    def _look(self, task: ConversationTask, files: PassFiles) -> tuple[Fingerprint, Found]:
        now = self._fingerprint(task)
        return now, find_earlier(files, now, task.conversations, overwrite=self.options.overwrite)

    @cached_property
    def _identity(self) -> str:
        """Hashes the weights, which many passes need not wait for again."""
        return identity_of(self.model, self.decoding, self.options)

    def _fingerprint(self, task: ConversationTask) -> Fingerprint:
        own = self.options.endpoint.temperature if self.decoding.engine == "openai" else 0.0
        return {
            "model": self._identity,
            "view": "imagined" if task.without_context else "original",
            "alpha": task.alpha,
            **plausibility_of(self.decoding),
            "max_new_tokens": task.max_new_tokens,
            "prompts": f"sha256 {_digest(task)}",
            "dtype": self.decoding.dtype,
            "temperature": task.temperature or own,
            "seed": task.seed if task.temperature > 0 else None,
        }

    def _decode(self, task: ConversationTask, now: Fingerprint, files: PassFiles, found: Found) -> Spent:
        if len(found.kept.answers) == len(task):
            self.processes.decided_by_main(lambda: make_room(files, found))
            return Spent()
        if self._engine is None:
            self._engine = make_engine(self.model, self.decoding, self.options, self.processes)
        return decode_rest(self._engine, task, now, files, found, self.processes)

    def _finish(
        self, task: ConversationTask, now: Fingerprint, files: PassFiles, found: Found, spent: Spent
    ) -> Decoded:
        decoded = gather(files, found, now, len(task), spent)
        rows = (
            {"dataset": chat.dataset, "id": chat.id, "output": output}
            for chat, output in zip(task.conversations, decoded.outputs, strict=True)
        )
        write_whole(files.predictions, _lines(rows))
        write_record(files, decoded.record)
        clear_parts(files)
        return decoded


def _digest(task: ConversationTask) -> str:
    """SHA-256 of what is asked; without debiasing what would be subtracted is no part of it."""
    asked = [
        (chat.dataset, chat.id, task.messages(place), chat.imagined if task.alpha > 0 else None)
        for place, chat in enumerate(task.conversations)
    ]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
