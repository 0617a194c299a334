"""Questions to the judge's server of these tests, which repeats what it is asked."""

from __future__ import annotations

from d2e_sft.judge.judge import Judge, Prompt

REMINDER = "Begin with echo."


def prompts(count: int) -> list[Prompt]:
    return [Prompt("Repeat.", f"word {number}", label=f"sample s{number}") for number in range(count)]


def read_echo(reply: str) -> str | None:
    return reply.removeprefix("echo: ") if reply.startswith("echo: ") else None


def ask(judge: Judge, asked: list[Prompt]) -> list[str | None]:
    return judge.ask(asked, read_echo, what="echo", reminder=REMINDER)


def words(count: int) -> list[str | None]:
    return [f"word {number}" for number in range(count)]
