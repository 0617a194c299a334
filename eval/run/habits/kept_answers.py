"""A model that is asked without contexts; its answers are kept in the cache by model, decoding and prompt.

No question is asked twice, whichever file its row is in. An interrupted call resumes from its journal, like an
evaluation.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.prompts import PromptSet
from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_whole
from d2e_sft.util.paths import cache_dir
from eval.run.engines.engine import Engine, identity_of, make_engine
from eval.run.fingerprint import common_fingerprint
from eval.run.journal import CompletedPass, DecodingPass
from eval.run.journal_files import Answer, Fingerprint, PassFiles
from eval.run.options import EvalConfig
from eval.run.processes import Processes
from eval.run.task import sample_task
from eval.score.predictions import refuse_edited

_RECORD = ".decoding.json"


@dataclass
class Questioner:
    """Asks samples without their contexts; the model is loaded when there is something to decode."""

    model: str
    config: EvalConfig
    processes: Processes

    @cached_property
    def identity(self) -> str:
        """The model by its content, or an endpoint's by address and name."""
        return identity_of(self.model, self.config)

    def ask(
        self,
        samples: Sequence[EventSample],
        wording: PromptSet,
        *,
        likelihood: bool = False,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[Answer]:
        """Return the answer to each sample, kept or decoded now.

        Args:
            likelihood: score the candidates, or the accepted answers of a sample without any, instead of generating.
            temperature: 0 is greedy; `seed` is for the draws.

        Raises:
            UserError: a prompt exceeds the model's context, the engine stops, or the kept answers are damaged.
        """
        if not samples:
            return []
        decoding = replace(self.config.decoding, temperature=temperature, seed=seed)
        how: Any = {"likelihood": likelihood, "without_context": True}
        chats = sample_task(samples, wording, decoding, **how).conversations
        responses = [
            [wording.response(sample.model_copy(update={"answers": [option]})) for option in chat.options]
            for sample, chat in zip(samples, chats, strict=True)
        ]
        keys = [
            _digest([chat.imagined, *wording.stops, *([own] if likelihood else [])])
            for chat, own in zip(chats, responses, strict=True)
        ]
        fingerprint = self._fingerprint(decoding, likelihood=likelihood)
        folder = cache_dir() / "closed-book" / _digest(fingerprint)[:16]
        kept = self.processes.broadcast_from_main(lambda: _read(folder))
        missing = {key: sample for key, sample in zip(keys, samples, strict=True) if key not in kept}
        before = sum(key in kept for key in keys)
        if before and self.processes.is_main:
            print(f"asked before: {before:,} of {len(keys):,} questions", file=sys.stderr)
        if missing:
            names = list(missing)
            files = PassFiles(folder, _digest(names)[:16])

            def write(completed: CompletedPass) -> dict[str, Answer]:
                found = dict(zip(names, completed.answers, strict=True))
                lines = [json.dumps({"key": key, **one.line()}) for key, one in found.items()]
                write_whole(files.predictions, "\n".join(lines) + "\n")
                return found

            kept |= DecodingPass(
                replace(sample_task(list(missing.values()), wording, decoding, **how), name=self.model),
                files,
                self.processes,
                fingerprint=lambda: {**fingerprint, "prompts": f"sha256 {_digest(names)}"},
                load_engine=lambda: self._engine,
            ).run(write)
        return [kept[key] for key in keys]

    def _fingerprint(self, decoding: DecodingConfig, *, likelihood: bool) -> Fingerprint:
        options = self.config.options
        asked = replace(self.config, options=replace(options, answer="likelihood" if likelihood else "generate"))
        own = options.endpoint.temperature if self.config.engine == "openai" else 0.0
        return {
            **common_fingerprint(self.identity, asked, decoding),
            "dtype": options.dtype,
            "temperature": decoding.temperature or own,
            "seed": decoding.seed if decoding.temperature > 0 else None,
        }

    @cached_property
    def _engine(self) -> Engine:
        return make_engine(self.model, self.config, self.processes)


def _read(folder: Path) -> dict[str, Answer]:
    """The answers of finished passes by their keys."""
    kept: dict[str, Answer] = {}
    for record in sorted(folder.glob(f"*{_RECORD}")):
        file = record.with_name(f"{record.name.removesuffix(_RECORD)}.jsonl")
        try:
            refuse_edited(file)
            lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        except (UserError, OSError) as error:
            raise UserError(f"{file}: kept answers are damaged ({error})", f"remove {folder} to ask again") from None
        kept |= {line.pop("key"): Answer(**line) for line in lines}
    return kept


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
