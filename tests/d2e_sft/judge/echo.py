"""Questions to the judge's server of these tests, which repeats what it is asked."""

from d2e_sft.judge.judge import Judge, JudgePrompt

REMINDER = "Begin with echo."


def prompts(count: int) -> list[JudgePrompt]:
    return [JudgePrompt("Repeat.", f"word {number}", label=f"sample s{number}") for number in range(count)]


def read_echo(reply: str) -> str | None:
    return reply.removeprefix("echo: ") if reply.startswith("echo: ") else None


def ask(judge: Judge, asked: list[JudgePrompt]) -> list[str | None]:
    return judge.ask(asked, read_echo, job="echo", reminder=REMINDER)


def words(count: int) -> list[str | None]:
    return [f"word {number}" for number in range(count)]
