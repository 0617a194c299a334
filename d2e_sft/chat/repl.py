"""The lines of `d2e chat`: commands begin with a slash, everything else is a turn to answer.

In a terminal ctrl-C ends an answer and ctrl-D the chat. From a pipe, failed lines are counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from d2e_sft.config.decoding import describe
from d2e_sft.util.errors import UserError, did_you_mean, path_error

if TYPE_CHECKING:
    from d2e_sft.chat.conversation import Conversation

HELP = """\
/context [TEXT]  show the context, or set another one
/paste           set a context of several lines; a line with /end ends it
/file PATH       set the context from a text file
/drop            remove the context: answers are then plain
/turns           show the conversation so far
/clear           forget the conversation; the context stays
/alpha NUMBER    set the debias ratio
/help            this list
/quit            end (or ctrl-D; ctrl-C ends an answer)
Everything else is a question. It is answered plainly and, if there is a context, debiased; the conversation continues
with the debiased answer. Write two slashes if a question begins with one."""


class Repl:
    """Reads lines, runs commands and answers turns.

    Args:
        read: Returns the next line without its end; raises EOFError after the last, KeyboardInterrupt for ctrl-C.
        write: Gets pieces of output, including line ends.
        write_error: Gets a message about a line that failed.
        interactive: A user types, and ctrl-C ends only an answer.
    """

    def __init__(
        self,
        conversation: Conversation,
        *,
        read: Callable[[], str],
        write: Callable[[str], object],
        write_error: Callable[[str], object],
        interactive: bool,
    ) -> None:
        self._conversation = conversation
        self._read, self._write, self._write_error = read, write, write_error
        self._interactive = interactive

    def run(self) -> int:
        """Run until the lines end, or /quit; returns the number of failed lines."""
        failed = 0
        while True:
            try:
                line = self._read().strip()
                if line == "/quit":
                    return failed
                if line.startswith("/") and not line.startswith("//"):
                    name, _, rest = line.partition(" ")
                    self._command(name, rest.strip())
                elif line:
                    self._answer(line.removeprefix("/"))
            except EOFError:
                if self._interactive:
                    self._line("")
                return failed
            except UserError as error:
                failed += 1
                self._write_error(str(error))
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                self._line("\n(stopped, and not remembered; /quit or ctrl-D ends the chat)")

    def _command(self, name: str, rest: str) -> None:
        conversation = self._conversation
        match name:
            case "/context" if not rest:
                self._line(conversation.context or "(no context)")
            case "/context" | "/file":
                self._set(rest if name == "/context" else read_context(Path(rest)))
            case "/paste":
                self._paste(rest)
            case "/drop":
                conversation.context = ""
                self._line("(no context)")
            case "/turns":
                self._line("\n".join(f"> {asked}\n{said}" for asked, said in conversation.turns) or "(no turns yet)")
            case "/clear":
                conversation.turns.clear()
                self._line("(the conversation is forgotten)")
            case "/alpha":
                conversation.decoding = replace(conversation.decoding, decoder="d2e", alpha=_number(rest))
                self._line(f"(decoded {describe(conversation.decoding.record())})")
            case "/help":
                self._line(HELP)
            case _:
                known = re.findall(r"^/\w+", HELP, re.MULTILINE)
                raise UserError(
                    f"{name}: no such command; expected {', '.join(known)}.{did_you_mean(name, known)}",
                    remedy="write two slashes if a question begins with one",
                )

    def _answer(self, question: str) -> None:
        conversation = self._conversation
        begun: set[str] = set()

        def write_as(name: str, text: str) -> None:
            if name not in begun:
                self._write(f"{chr(10) if begun else ''}{name:<10}")
                begun.add(name)
            self._write(text)

        reply = conversation.ask(question, write_as)
        for name, text in (("plain", reply.plain), ("debiased", reply.debiased)):
            if text == "":
                write_as(name, "(an empty answer)")
        self._line("")
        if reply.debiased is None and conversation.context.strip():
            why = "α is 0" if conversation.decoding.decoder == "d2e" else "the decoder is plain"
            self._line(f"(decoded plainly: {why})")
        elif reply.debiased is None and len(conversation.turns) == 1:
            self._line("(no context, so nothing to debias: set one with /context TEXT)")
        if reply.forgotten:
            self._line(f"(too long for the model: the {reply.forgotten} oldest turns were left out)")

    def _paste(self, rest: str) -> None:
        if rest:
            raise UserError(f"/paste {rest}: expected nothing after it", "write the context on the lines that follow")
        lines: list[str] = []
        try:
            while (line := self._read()).strip() != "/end":
                lines.append(line)
        except EOFError:
            raise UserError("/paste: the input ended before a line with /end; the context is unchanged") from None
        text = "\n".join(lines).strip()
        if not text:
            raise UserError("/paste: no text before /end; the context is unchanged", "remove it with /drop")
        self._set(text)

    def _set(self, text: str) -> None:
        replaced = "replaced" if self._conversation.context else "set"
        self._conversation.context = text
        self._line(f"(context {replaced}: {len(text):,} characters)")

    def _line(self, text: str) -> None:
        self._write(text + "\n")


def read_context(path: Path) -> str:
    """The text of a file.

    Raises:
        UserError: it cannot be read as UTF-8 text, or is empty.
    """
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path with NUL
        unreadable = UserError(f"context {str(path)!r}: not a text file in UTF-8 ({error})", "give another path")
        raise path_error(error) or unreadable from None
    if not text:
        raise UserError(f"context {str(path)!r}: empty; expected a text")
    return text


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"/alpha {text}: expected a number, 0 or more", "write /alpha 0.5") from None
