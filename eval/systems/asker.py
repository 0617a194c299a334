"""Asking a model what a benchmark wants to know: one pass after another, each kept on disk as its answers come."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from d2e_sft.data.chat_template import CUED, Continuation
from d2e_sft.util.files import write_whole
from eval.run.engines.engine import Engine, identity_of, make_engine
from eval.run.fingerprint import common_fingerprint
from eval.run.journal import CompletedPass, DecodingPass
from eval.run.journal_files import Answer, Fingerprint, PassFiles
from eval.run.options import EvalConfig
from eval.run.processes import Processes
from eval.run.task import Conversation, Task
from eval.score.predictions import ScoredOption
from eval.score.scoring import likeliest
from eval.systems.files import json_lines


@dataclass
class Asker:
    """A model that answers conversations, pass after pass.

    A pass writes `FOLDER/PASS.jsonl` (dataset, id and output of each conversation) and `PASS.decoding.json`. It is
    resumed after a kill, and answers of other prompts, models or options are never mixed. The model is loaded when
    there is something to decode.

    Attributes:
        config: how; α subtracts what the imagined conversation says.
        records: of the passes so far: what they were decoded with.
    """

    model: str
    config: EvalConfig
    processes: Processes
    folder: Path
    records: dict[str, dict[str, Any]] = field(default_factory=dict)

    def ask(
        self,
        name: str,
        conversations: Sequence[Conversation],
        *,
        max_new_tokens: int | None = None,
        style: Continuation = CUED,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[str]:
        """Return the answer to each conversation, in order.

        Args:
            name: of the pass, which names its files.
            max_new_tokens: limit if `--max-new-tokens` is not given; None is the general default.
            style: how the conversations become one text, in other forms than chat.
            temperature: 0 is greedy; `seed` is for the draws.

        Raises:
            UserError: a prompt exceeds the model's context, the engine fails, or the folder has other answers.
        """
        limit = self.config.options.max_new_tokens or max_new_tokens or self.config.decoding.max_new_tokens
        decoding = replace(self.config.decoding, max_new_tokens=limit, temperature=temperature, seed=seed)
        if self.config.form == "completion":
            decoding = replace(decoding, stop_strings=style.stops)
        task = Task(name=name, conversations=conversations, decoding=decoding)
        return self._run(task, style, lambda answer: {"output": answer.output})

    def choose(self, name: str, conversations: Sequence[Conversation], style: Continuation = CUED) -> list[str]:
        """Return the likeliest option of each conversation, in order, by `--normalise`; errors as in `ask`."""
        task = Task(name=name, conversations=conversations, decoding=self.config.decoding, likelihood=True)

        def chosen(answer: Answer) -> dict[str, Any]:
            assert answer.scores is not None
            scored = [
                ScoredOption(option=option, logprob=logprob, tokens=tokens, characters=len(option))
                for option, (logprob, tokens) in zip(conversations[answer.index].options, answer.scores, strict=True)
            ]
            best = scored[likeliest(scored, self.config.options.normalise)].option
            return {"output": best, "likelihoods": [option.model_dump() for option in scored]}

        return self._run(task, style, chosen)

    def _run(self, task: Task, style: Continuation, said: Callable[[Answer], dict[str, Any]]) -> list[str]:
        """Run a pass and return its outputs; `said` turns an answer into the fields of its line."""
        form, conversations = self.config.form, task.conversations
        task = replace(
            task,
            conversations=[chat.shaped(form, style) for chat in conversations],
            without_context=self.config.options.without_context,
            as_text=form == "completion",
        )
        assert len({(chat.dataset, chat.id) for chat in conversations}) == len(conversations), "names of their own"
        if not conversations:
            return []
        keys = [(chat.dataset, chat.id) for chat in conversations]
        files = PassFiles(self.folder, task.name)

        def write(completed: CompletedPass) -> tuple[CompletedPass, list[str]]:
            lines = list(map(said, completed.answers))
            rows = ({"dataset": dataset, "id": id_, **line} for (dataset, id_), line in zip(keys, lines, strict=True))
            write_whole(files.predictions, json_lines(rows))
            return completed, [line["output"] for line in lines]

        completed, outputs = DecodingPass(
            task,
            files,
            self.processes,
            fingerprint=lambda: self._fingerprint(task),
            load_engine=lambda: self._engine,
            overwrite=self.config.options.overwrite,
            accept_edited=self.config.options.accept_edited,
        ).run(write)
        self.records[task.name] = completed.record
        return outputs

    @cached_property
    def _identity(self) -> str:
        """Hashes the weights, which many passes need not wait for again."""
        return identity_of(self.model, self.config)

    def _fingerprint(self, task: Task) -> Fingerprint:
        own = self.config.options.endpoint.temperature if self.config.engine == "openai" else 0.0
        limit, seed = self.config.max_samples, self.config.options.seed
        chosen = "all" if limit is None else f"--max-samples {limit} --seed {seed}"
        return {
            **common_fingerprint(self._identity, self.config, task.decoding),
            "prompts": f"sha256 {_digest(task)}",
            # Also how the prompts were chosen, because another subset may be the same prompts.
            "asked": f"{len(task.conversations):,} prompts ({chosen})",
            "dtype": self.config.options.dtype,
            "temperature": task.decoding.temperature or own,
            "seed": task.decoding.seed if task.decoding.temperature > 0 else None,
        }

    @cached_property
    def _engine(self) -> Engine:
        return make_engine(self.model, self.config, self.processes)


def _digest(task: Task) -> str:
    """Return the SHA-256 of the prompts, including the imagined view if it is decoded."""
    asked = [
        (
            *(chat.dataset, chat.id, messages),
            chat.imagined if task.decoding.needs_imagined else None,
            *([chat.options] if chat.options else []),
        )
        for chat, messages in zip(task.conversations, task.messages(), strict=True)
    ]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()
