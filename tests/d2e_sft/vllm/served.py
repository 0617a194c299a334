"""What is asked of a served SmolLM2: a question, its context, and the request that carries both."""

from __future__ import annotations

from typing import Any

from openai import OpenAI

from d2e_sft.model.loading import BUILTIN

KEY, LIMIT = "a-key-of-the-test", 20_000
SYSTEM = {"role": "system", "content": "Answer shortly."}
CONTEXT = "Rain fell for nine days on the hills. Then the river rose, and the old stone bridge broke."
QUESTION = "Question: What broke after the river rose?"


def ask(client: OpenAI, *, question: str = QUESTION, extra: dict[str, Any] | None = None, **options: Any) -> Any:
    """The reply to a question, debiased by a context unless `extra` says otherwise."""
    messages: list[Any] = [SYSTEM, {"role": "user", "content": question}]
    body = {"context": CONTEXT, "alpha": 0.5} if extra is None else extra
    given: dict[str, Any] = {"temperature": 0, "max_tokens": 24, **options}
    return client.chat.completions.create(model=BUILTIN, messages=messages, extra_body=body, **given)
