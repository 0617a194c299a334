"""Lines of `d2e chat`: commands, questions, interruptions, and what a script gets to know of a line that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from d2e_sft.chat.conversation import Conversation
from d2e_sft.chat.repl import Repl
from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.model.loading import LoadedModel
from tests.tiny import tiny_model, tiny_tokenizer


@pytest.fixture
def conversation() -> Conversation:
    return Conversation(LoadedModel(tiny_model(seed=3), tiny_tokenizer()), DecodingConfig(max_new_tokens=6))


def typed(lines: Iterable[str | type[BaseException]]) -> Callable[[], str]:
    """Lines one after the other, then the end of the input; an exception in their place is raised."""
    left = iter(lines)

    def read() -> str:
        line = next(left, EOFError)
        if isinstance(line, str):
            return line
        raise line

    return read


def talk(
    conversation: Conversation, *lines: str | type[BaseException], interactive: bool = False
) -> tuple[str, str, int]:
    """What was said, what was complained about, and how many lines failed."""
    said: list[str] = []
    complaints: list[str] = []
    repl = Repl(
        conversation, read=typed(lines), write=said.append, write_error=complaints.append, interactive=interactive
    )
    failed = repl.run()
    return "".join(said), "\n".join(complaints), failed


def test_a_context_is_set_shown_replaced_and_removed(conversation: Conversation, tmp_path: Path) -> None:
    (tmp_path / "story.txt").write_text("\ufeffThe dam broke.\n")
    said, _, failed = talk(
        conversation,
        "/context",
        "/context It rained.",
        "/context",
        f"/file {tmp_path / 'story.txt'}",
        "/context",
        "/paste", "First.", "", "/context of the storm", "/end",
        "/context",
        "/drop",
        "/context",
    )  # fmt: skip
    assert failed == 0
    assert said.splitlines() == [
        "(no context)",
        "(context set: 10 characters)",
        "It rained.",
        "(context replaced: 14 characters)",
        "The dam broke.",
        "(context replaced: 29 characters)",
        "First.", "", "/context of the storm",
        "(no context)",
        "(no context)",
    ]  # fmt: skip


def test_a_question_gets_both_answers_and_the_next_turn_knows_it(conversation: Conversation) -> None:
    said, _, _ = talk(conversation, "/context It rained.", "Why?", "//etc?", "/turns", "/clear", "/turns")
    lines = said.splitlines()
    assert lines[1].startswith("plain     ")
    assert lines[2].startswith("debiased  ")
    (first, reply), (second, other) = [line.split("\n", 1) for line in said.split("> ")[1:]]
    assert (first, second) == ("Why?", "/etc?")
    assert reply.strip() == lines[2].removeprefix("debiased  ").strip()
    assert other.splitlines()[-1] == "(no turns yet)"
    assert conversation.turns == []


def test_without_a_context_or_with_an_alpha_of_0_the_one_answer_says_why(conversation: Conversation) -> None:
    said, _, _ = talk(conversation, "Why?", "/context It rained.", "/alpha 0", "Why?")
    assert "debiased" not in said
    assert "(no context, so nothing to debias: set one with /context TEXT)" in said
    assert "(decoded plainly)" in said
    assert "(decoded plainly: α is 0)" in said


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["/contxt A."], "Did you mean '/context'?"),
        (["/alpha much"], "/alpha much: expected a number, 0 or more"),
        (["/alpha -1"], "alpha=-1.0: not a debias ratio"),
        (["/alpha"], "expected a number"),
        (["/file nowhere.txt"], "nowhere.txt: does not exist"),
        (["/paste", "half a text"], "/paste: the input ended before a line with /end"),
        (["/paste", "/end"], "/paste: no text before /end"),
        (["x" * 2000], "expected at most 1,018, as the model has 1,024"),
    ],
)
def test_a_line_that_fails_is_named_and_the_others_go_on(
    conversation: Conversation, lines: list[str], message: str
) -> None:
    said, complaint, failed = talk(conversation, *lines, "/context It rained.")
    assert message in complaint
    assert failed == 1
    assert conversation.turns == []
    assert "(context set" in said or lines == ["/paste", "half a text"]


def test_ctrl_c_ends_an_answer_and_not_the_chat(conversation: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = Conversation.ask, 0

    def ask(self: Conversation, *arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        return real(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Conversation, "ask", ask)
    said, _, failed = talk(conversation, "Why?", KeyboardInterrupt, "And then?", interactive=True)
    assert said.count("(stopped, and not remembered; /quit or ctrl-D ends the chat)") == 2
    assert [question for question, _ in conversation.turns] == ["And then?"]
    assert failed == 0
    calls = 0
    with pytest.raises(KeyboardInterrupt):  # from a pipe it ends the command
        talk(conversation, "Why?")


def test_quit_ends_before_the_lines_that_follow(conversation: Conversation) -> None:
    said, _, _ = talk(conversation, "/help", "/quit", "Why?")
    assert "/context [TEXT]" in said
    assert conversation.turns == []
