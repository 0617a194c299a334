"""Any OpenAI-compatible endpoint, decoding plainly: conversations by `/chat/completions`, texts by `/completions`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from d2e_sft.data.chat_template import plain_text
from d2e_sft.judge.messages import Conversation, Reply
from d2e_sft.judge.openai_backend import OpenAIBackend
from d2e_sft.judge.options import Caller, EndpointOptions
from d2e_sft.util.errors import UserError
from eval.run.engines.engine import OnAnswers, Task
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
        self._questions: Sequence[Conversation] = []
        self.counts = {"retried": 0}

    def begin(self, task: Task) -> Sequence[int]:
        own: dict[str, Any] = {"max_tokens": task.decoding.max_new_tokens}
        if task.decoding.temperature > 0:
            own["temperature"] = task.decoding.temperature
        backend = _TextBackend if task.as_text else OpenAIBackend
        self._backend = backend(self._options.model_copy(update=own), CALLER)
        questions = [Question(task.messages(place), task.label(place)) for place in range(len(task))]
        self._questions, self.counts = questions, {"retried": 0}
        return [sum(len(turn["content"]) for turn in question.messages) for question in questions]

    def decode(self, places: Sequence[int], on_answers: OnAnswers) -> None:
        left = list(places)
        for _ in range(_ROUNDS):  # a reply that was none (a proxy's page, say) is asked for once more
            listener = _Listener(left, self._answer, on_answers, self.counts)
            self._backend.answer([self._questions[i] for i in left], listener)
            left = [i for i in left if i not in listener.answered]
            if not left:
                return
        raise UserError(
            f"{len(left)} of {len(places)} prompts were answered with no chat completion, twice; the first: "
            f"{self._questions[left[0]].label}",
            remedy="run the same command again; if it stays so, look at what the server sends",
        )

    def environment(self) -> dict[str, Any]:
        return {"endpoint": self._backend.identity["base_url"]}

    def _answer(self, place: int, reply: Reply) -> Answer:
        return Answer(place, reply.text)


class _TextBackend(OpenAIBackend):
    """Sends a prompt's text to `/completions`, which knows no chat template."""

    def _post(self, client: Any, prompt: Conversation) -> bytes:
        sampling = self._options.temperature
        raw = client.completions.with_raw_response.create(
            model=self.model,
            prompt=plain_text(prompt.messages),
            max_tokens=self._options.max_tokens,
            **({} if sampling is None else {"temperature": sampling}),
        )
        content: bytes = raw.http_response.content
        return content

    def _read(self, body: bytes, prompt: Conversation) -> Reply | None:
        try:
            return Reply(text=_Completion.model_validate_json(body).choices[0].text)
        except ValidationError:
            return None


class _Choice(BaseModel):
    text: str


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)


class _Listener:
    """Hands replies on as they come."""

    def __init__(
        self,
        places: Sequence[int],
        answer: Callable[[int, Reply], Answer],
        on_answers: OnAnswers,
        counts: dict[str, int],
    ) -> None:
        self.answered: set[int] = set()
        self._lock = threading.Lock()
        self._places, self._answer, self._on_answers, self._counts = places, answer, on_answers, counts

    def received(self, index: int, reply: Reply | None) -> None:
        if reply is not None:
            self._on_answers([self._answer(self._places[index], reply)])
            self.answered.add(self._places[index])

    def sending(self, index: int) -> None:
        """No limit on the cost of an evaluation."""

    def refused(self, index: int) -> None:
        """Nothing to count."""

    def retried(self) -> None:
        with self._lock:
            self._counts["retried"] += 1
