"""Any OpenAI-compatible endpoint, decoding plainly."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import d2e_sft
from d2e_sft.judge.messages import Reply
from d2e_sft.judge.openai_backend import OpenAIBackend
from d2e_sft.judge.options import Caller, EndpointOptions, find_endpoint
from d2e_sft.util.errors import UserError
from eval.run.engines.engine import OnAnswers
from eval.run.engines.task import Task
from eval.run.journal_files import Answer

CALLER = Caller(
    name="model", prefix="--", url="--base-url", model="the name of the model", max_tokens="--max-new-tokens"
)
_ROUNDS = 2


@dataclass(frozen=True)
class Question:
    """A prompt's conversation."""

    messages: list[dict[str, str]]
    label: str


class EndpointEngine:
    """Sends a prompt's messages, and takes the reply for its output.

    Args:
        options: with the model's name; the answers' length comes from the task.

    Raises:
        UserError: the address or the key is missing or malformed, or the `openai` package is not installed.
    """

    name = "openai"

    def __init__(self, options: EndpointOptions) -> None:
        self._options = options
        self._backend = OpenAIBackend(options, CALLER)
        self._questions: list[Question] = []
        self._retried = 0

    def begin(self, task: Task) -> Sequence[int]:
        own: dict[str, Any] = {"max_tokens": task.decoding.max_new_tokens}
        if task.decoding.temperature > 0:
            own["temperature"] = task.decoding.temperature
        self._backend = OpenAIBackend(self._options.model_copy(update=own), CALLER)
        self._questions = [Question(task.messages(place), task.label(place)) for place in range(len(task))]
        self._retried = 0
        return [sum(len(turn["content"]) for turn in question.messages) for question in self._questions]

    def decode(self, places: Sequence[int], on_answers: OnAnswers) -> None:
        left = list(places)
        for _ in range(_ROUNDS):  # a reply that was none (a proxy's page, say) is asked for once more
            listener = _Listener(left, on_answers)
            self._backend.answer([self._questions[i] for i in left], listener)
            self._retried += listener.retries
            left = [i for i in left if i not in listener.answered]
            if not left:
                return
        raise UserError(
            f"{len(left)} of {len(places)} prompts were answered with no chat completion, twice; the first: "
            f"{self._questions[left[0]].label}",
            remedy="run the same command again; if it stays so, look at what the server sends",
        )

    def environment(self) -> dict[str, Any]:
        return {"d2e_sft": d2e_sft.__version__, "endpoint": self._backend.identity["base_url"]}

    def counts(self) -> dict[str, int]:
        return {"retried": self._retried}


def endpoint_identity(options: EndpointOptions) -> str:
    """Which model it is that answers, as far as can be told: its address and name.

    Raises:
        UserError: the address or the key is missing or malformed.
    """
    return f"{options.model} at {find_endpoint(options, CALLER).url}"


class _Listener:
    """Hands replies on as they come."""

    def __init__(self, indices: Sequence[int], on_answers: OnAnswers) -> None:
        self.answered: set[int] = set()
        self.retries = 0
        self._lock = threading.Lock()
        self._indices, self._on_answers = indices, on_answers

    def received(self, index: int, reply: Reply | None) -> None:
        if reply is None:
            return
        place = self._indices[index]
        self._on_answers([Answer(place, reply.text)])
        self.answered.add(place)

    def retried(self) -> None:
        with self._lock:
            self.retries += 1
