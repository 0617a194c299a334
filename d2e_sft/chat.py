"""`d2e chat`: a conversation about a context, and the lines that a user types.

The context precedes the user's last turn, as in a chat request to `d2e serve`; the imagined prompt is the same
conversation without it. So the context can be replaced between turns, and both prompts hold the turns so far. Lines
that begin with a slash are commands. In a terminal ctrl-C ends an answer and ctrl-D the chat.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from d2e_sft.config.decoding import DecodingConfig, describe, given_decoder
from d2e_sft.config.recipe import EvalSection, ModelSection, Recipe, recipe_of, warn_if_trained_on_texts
from d2e_sft.data.chat_template import ChatEncoder, FormatPrompt, Messages
from d2e_sft.data.prompts import OWN, load_prompt_set
from d2e_sft.decoding.pairs import PromptPair, TokenPair
from d2e_sft.util.errors import UserError, did_you_mean, path_error
from d2e_sft.util.files import surrogate_problem

if TYPE_CHECKING:
    from d2e_sft.model.loading import LoadedModel

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


# Questions as they are, after the context.
PLAIN = FormatPrompt(system="", context="Context: {context}\n", user="{context_block}{question}", response="{answer}")


@dataclass
class ChatSession:
    """A model, a context and the turns so far.

    Attributes:
        decoding: How the debiased answer is decoded; it may be replaced between turns.
        wording: The texts around the turns; an empty `system` means no system message.
        context: The next turn's; if empty, answers are plain.
        turns: Question and answer of each turn, as the user and the model wrote them.
        forgotten: Old turns that the last prompt left out.
    """

    loaded: LoadedModel
    decoding: DecodingConfig
    wording: FormatPrompt = PLAIN
    context: str = ""
    turns: list[tuple[str, str]] = field(default_factory=list)
    forgotten: int = 0

    def __post_init__(self) -> None:
        from d2e_sft.model.loading import shared_positions  # imports torch, which `read_context` does not need

        config = self.loaded.model.config
        self._encoder = ChatEncoder(self.loaded.tokenizer, encoder_decoder=config.is_encoder_decoder)
        self._limit = shared_positions(config)

    def messages(self, question: str, *, context: str, forgotten: int = 0) -> Messages:
        """The conversation up to the answer, without its oldest turns."""
        messages = [{"role": "system", "content": self.wording.system}] if self.wording.system else []
        for past, answer in self.turns[forgotten:]:
            messages.append({"role": "user", "content": self.wording.asked(past, "")})
            messages.append({"role": "assistant", "content": answer})
        return [*messages, {"role": "user", "content": self.wording.asked(question, context)}]

    def ask(self, question: str) -> Iterator[tuple[str, str]]:
        """Answer a turn, and remember it with the debiased answer if there is one.

        Yields "plain" with the pieces of that answer, the first of which is empty, then "debiased" likewise, unless
        there is no context or the decoder is plain. A turn that is interrupted is not remembered. Raises UserError if
        context and question exceed the model's context even without earlier turns.
        """
        prompt = self._fitted(question)
        plainly = replace(self.decoding, decoder="plain", plausibility=0.0)
        answer = yield from self._decode("plain", PromptPair(prompt, name="the conversation"), plainly)
        if self.context.strip() and self.decoding.needs_imagined:
            [imagined] = self._encoder.ids([self.messages(question, context="", forgotten=self.forgotten)])
            pair = PromptPair(prompt, imagined, name="the conversation")
            answer = yield from self._decode("debiased", pair, self.decoding)
        self.turns.append((question, answer))

    def _fitted(self, question: str) -> list[int]:
        """The original prompt's tokens, without as many old turns as needed for the rest to fit."""
        from d2e_sft.model.loading import check_answer_fits

        check_answer_fits(self._limit, self.decoding.max_new_tokens)
        for forgotten in range(len(self.turns) + 1):
            messages = self.messages(question, context=self.context, forgotten=forgotten)
            [prompt] = self._encoder.ids([messages])
            if self._limit is None or len(prompt) + self.decoding.max_new_tokens <= self._limit:
                self.forgotten = forgotten
                return prompt
        room = (self._limit or 0) - self.decoding.max_new_tokens
        raise UserError(
            f"context and question have {len(prompt):,} tokens; expected at most {room:,}, as the model has "
            f"{self._limit:,} and an answer may have {self.decoding.max_new_tokens:,}",
            remedy="shorten the context, or lower --max-new-tokens",
        )

    def _decode(self, name: str, pair: TokenPair, decoding: DecodingConfig) -> Generator[tuple[str, str], None, str]:
        from d2e_sft.decoding import generate, stop_token_ids  # imports torch

        model, shown, text = self.loaded.model, "", ""
        stop_ids = stop_token_ids(model, self._encoder.end_of_turn)
        yield name, ""
        for output in generate(model, self.loaded.tokenizer, [pair], decoding, stop_ids=stop_ids):
            text = output.text.strip() if output.ended else output.text.lstrip()
            # An incomplete character waits for the next token.
            if text.startswith(shown) and text != shown and (output.ended or not text.endswith("\ufffd")):
                yield name, text[len(shown) :]
                shown = text
        return text


def open_session(
    model: str,
    *,
    alpha: float | None = None,
    decoder: str | None = None,
    max_new_tokens: int | None = None,
    wording: Literal["qa", "none"] | None = None,
    prompt_set: str | None = None,
    system: str | None = None,
    dtype: str | None = None,
) -> ChatSession:
    """Load a model for a conversation that has no context yet; UserError if that fails or options are in conflict.

    None is as in the run's recipe, else the default.

    Args:
        alpha: As for `d2e eval`; 0.5 for a model without a run.
        wording: `qa` words questions as the prompt set does, `none` leaves them as they are; None: `qa` for a run,
            unless it was trained on conversations, whose words are their own.
        system: Replaces the prompt set's system message.
        dtype: The weights' data type; `auto` is bfloat16 if this machine computes it fast.
    """
    from d2e_sft.model.loading import load_to_decode

    recipe = recipe_of(model)
    warn_if_trained_on_texts(recipe)
    section, evaluation = (ModelSection(), EvalSection()) if recipe is None else (recipe.model, recipe.eval)
    default = DecodingConfig() if recipe is None else recipe.decoding
    decoding = DecodingConfig(
        **given_decoder(decoder, alpha, default.alpha),
        max_new_tokens=max_new_tokens or evaluation.max_new_tokens,
    )
    texts = _wording(model, recipe, wording, prompt_set, system)
    return ChatSession(load_to_decode(model, section, dtype), decoding, texts)


def _wording(
    model: str, recipe: Recipe | None, wording: str | None, prompt_set: str | None, system: str | None
) -> FormatPrompt:
    from d2e_sft.data.data_record import trained_wording, wording_of

    own = PLAIN.model_copy(update={"system": system or ""})
    if (wording or ("none" if recipe is None else "qa")) == "none":
        if prompt_set is not None:
            raise UserError(
                f"--prompt-set {prompt_set}: has no effect on questions that are sent as they are",
                remedy="drop it, or add --wording qa",
            )
        return own
    if wording is None and prompt_set is None and wording_of(model) == [OWN]:
        return own
    recipe_set = "default" if recipe is None else recipe.data.prompt_set
    prompts = load_prompt_set(prompt_set or trained_wording(model, recipe_set))
    if "qa" not in prompts.zero_shot:
        if wording is None:
            return own
        raise UserError(f"--wording qa: prompt set {prompts.name!r} has no prompt for qa", "use --wording none")
    prompt = prompts.zero_shot["qa"]
    return prompt if system is None else prompt.model_copy(update={"system": system})


def talk(
    session: ChatSession,
    *,
    read: Callable[[], str],
    write: Callable[[str], object],
    write_error: Callable[[str], object],
    interactive: bool,
) -> int:
    """Read lines, run commands and answer turns until the lines end, or /quit; returns the number of failed lines.

    Args:
        read: Returns the next line without its end; raises EOFError after the last, KeyboardInterrupt for ctrl-C.
        write: Gets pieces of output, including line ends.
        interactive: A user types, and ctrl-C ends only an answer.
    """
    failed = 0
    while True:
        try:
            line = _in_utf8(read().strip())
            if line == "/quit":
                return failed
            pieces: Iterator[str] = iter(())
            if line.startswith("/") and not line.startswith("//"):
                name, _, rest = line.partition(" ")
                pieces = iter([_command(session, name, rest.strip(), read) + "\n"])
            elif line:
                pieces = _answer(session, line.removeprefix("/"))
            for piece in pieces:
                write(piece)
        except EOFError:
            if interactive:
                write("\n")
            return failed
        except UserError as error:
            failed += 1
            write_error(str(error))
        except KeyboardInterrupt:
            if not interactive:
                raise
            write("\n(stopped, and not remembered; /quit or ctrl-D ends the chat)\n")


def _command(session: ChatSession, name: str, rest: str, read: Callable[[], str]) -> str:
    match name:
        case "/context" if not rest:
            reply = session.context or "(no context)"
        case "/context" | "/file" | "/paste":
            text = rest if name == "/context" else read_context(Path(rest)) if name == "/file" else _pasted(rest, read)
            reply = f"(context {'replaced' if session.context else 'set'}: {len(text):,} characters)"
            session.context = text
        case "/drop":
            session.context, reply = "", "(no context)"
        case "/turns":
            reply = "\n".join(f"> {question}\n{answer}" for question, answer in session.turns) or "(no turns yet)"
        case "/clear":
            session.turns.clear()
            reply = "(the conversation is forgotten)"
        case "/alpha":
            session.decoding = replace(session.decoding, decoder="d2e", alpha=_number(rest))
            reply = f"(decoded {describe(session.decoding.record())})"
        case "/help":
            reply = HELP
        case _:
            known = re.findall(r"^/\w+", HELP, re.MULTILINE)
            raise UserError(
                f"{name}: no such command; expected {', '.join(known)}.{did_you_mean(name, known)}",
                remedy="write two slashes if a question begins with one",
            )
    return reply


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"/alpha {text}: expected a number, 0 or more", "write /alpha 0.5") from None


def _answer(session: ChatSession, question: str) -> Iterator[str]:
    """The answers to a turn, each on a line of its own, and why there is only one."""
    texts: dict[str, str] = {}
    for name, piece in session.ask(question):
        if name not in texts:
            yield from _ended(texts)
            yield f"{name:<10}"
        texts[name] = texts.get(name, "") + piece
        yield piece
    yield from _ended(texts)
    if "debiased" not in texts and session.context.strip():
        why = "α is 0" if session.decoding.decoder == "d2e" else "the decoder is plain"
        yield f"(decoded plainly: {why})\n"
    elif "debiased" not in texts and len(session.turns) == 1:
        yield "(no context, so nothing to debias: set one with /context TEXT)\n"
    if session.forgotten:
        yield f"(too long for the model: the {session.forgotten} oldest turns were left out)\n"


def _ended(texts: dict[str, str]) -> Iterator[str]:
    if texts:
        yield "\n" if list(texts.values())[-1] else "(an empty answer)\n"


def _pasted(rest: str, read: Callable[[], str]) -> str:
    if rest:
        raise UserError(f"/paste {rest}: expected nothing after it", "write the context on the lines that follow")
    lines: list[str] = []
    try:
        while (line := read()).strip() != "/end":
            lines.append(line)
    except EOFError:
        raise UserError("/paste: the input ended before a line with /end; the context is unchanged") from None
    text = "\n".join(lines).strip()
    if not text:
        raise UserError("/paste: no text before /end; the context is unchanged", "remove it with /drop")
    return _in_utf8(text)


def _in_utf8(text: str) -> str:
    if problem := surrogate_problem(text):  # bytes that are not UTF-8 come as lone surrogates
        raise UserError(f"a text that is not UTF-8: it {problem}", "write it in UTF-8")
    return text


def read_context(path: Path) -> str:
    """The text of a file; UserError if it cannot be read as UTF-8 text, or is empty."""
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path with NUL
        unreadable = UserError(f"context {str(path)!r}: not a text file in UTF-8 ({error})", "give another path")
        raise path_error(error) or unreadable from None
    if not text:
        raise UserError(f"context {str(path)!r}: empty; expected a text")
    return text
