"""Conversations → text and tokens, by a model's chat template; without one (T5), plain text with its own ending.

A prompt has one of three forms: turns of a chat, one turn with all demonstrations in it, or one text that a base model
continues. In a text the instruction and each question with its answer are paragraphs, as in lm-evaluation-harness.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any, Literal, get_args

from jinja2.exceptions import TemplateError
from pydantic import BaseModel, ConfigDict, field_validator

from d2e_sft.data.template_trial import try_template
from d2e_sft.util.errors import UserError
from d2e_sft.util.progress import Progress

Messages = list[dict[str, str]]
Form = Literal["chat", "one_turn", "completion"]
FORMS: tuple[Form, ...] = get_args(Form)
EndOfTurn = Literal["token", "template"]
CUE = "Answer:"
_SEVERAL = 100  # prompts, whose progress is shown
# Templates that write the date (Llama 3) get the one that theirs has without a clock, so that a run resumes on another
# day with the tokens that it began with.
_CODES = ("a", "A", "b", "B", "d", "e", "H", "I", "j", "m", "M", "p", "S", "y", "Y")
_REPLACED = "".join(f" | replace('%{code}', '{date(2024, 7, 26):%{code}}')" for code in _CODES)
_FIXED_DATE = f"{{% macro strftime_now(form) %}}{{{{ form{_REPLACED} }}}}{{% endmacro %}}"
_TAKES_SYSTEM: dict[str, bool] = {}  # by chat template
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class FormatPrompt(BaseModel):
    """The wording of a format: `system` and `user` messages, the context line and the response form."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str
    context: str
    user: str
    response: str

    @field_validator("response")
    @classmethod
    def _ends_with_answer(cls, value: str) -> str:
        if not value.endswith("{answer}") or value.count("{answer}") != 1:
            raise ValueError("must contain {answer} once, at its end: the text before it marks the answer")
        return value

    @property
    def marker(self) -> str:
        """The text before the answer, for example `The answer is:`."""
        return self.response.removesuffix("{answer}").strip()

    def asked(self, question: str, context: str, options: str = "") -> str:
        """Return the user message of a question; a blank context has no line."""
        block = fill(self.context, {"context": context}) if context.strip() else ""
        return fill(self.user, {"context_block": block, "question": question, "options": options})


def fill(template: str, fields: dict[str, str]) -> str:
    # One pass: a brace in a user's text is never a placeholder.
    return re.sub(r"\{(\w+)\}", lambda match: fields.get(match[1], match[0]), template)


@dataclass(frozen=True)
class Continuation:
    """How turns become one text.

    Attributes:
        cue: The line on which an answer begins; empty: an answer begins with a line break, which the model writes
            since tokenizers join it with what follows; None: it continues the question's last line.
        stops: Texts that end an answer, which are no part of it.
        comment: What precedes the instruction, such as `# ` in front of code.
    """

    cue: str | None = CUE
    stops: Sequence[str] = ("\n\n",)
    comment: str = ""

    def text(self, messages: Messages) -> str:
        """Return the turns as one text, up to where the next answer begins."""
        opened, joint = f"\n{self.cue}" if self.cue else "", "\n" if self.cue == "" else " "
        paragraphs: list[str] = []
        for place, message in enumerate(messages):
            content = message["content"]
            if message["role"] == "system":
                paragraphs.append(self.comment + content)
            elif message["role"] != "assistant":
                paragraphs.append(content + opened)
            elif place and messages[place - 1]["role"] not in ("system", "assistant"):
                paragraphs[-1] += joint + content
            else:
                paragraphs.append(content)
        return "\n\n".join(paragraphs)

    def shaped(self, messages: Messages, form: Form) -> Messages:
        """Return the messages of a chat in another form; in one turn, the system message stays."""
        if form == "chat" or not messages:
            return messages
        kept = messages[:1] if form == "one_turn" and messages[0]["role"] == "system" else []
        return [*kept, {"role": "user", "content": self.text(messages[len(kept) :])}]


CUED, LINES, BEGUN = Continuation(), Continuation(cue=""), Continuation(cue=None)


def cut(output: str, stops: Sequence[str]) -> str:
    """Return an output up to the first text that ends an answer."""
    return output[: min((place for stop in stops if (place := output.find(stop)) >= 0), default=len(output))]


class ChatEncoder:
    """Turns conversations into the tokens of a prompt.

    Raises UserError if the tokenizer of a causal model has no chat template, or no token ends an answer.

    Args:
        encoder_decoder: The prompt goes to an encoder, the answer to a decoder.
        as_text: Use no chat template; a base model continues the text.
    """

    def __init__(self, tokenizer: Any, *, encoder_decoder: bool = False, as_text: bool = False) -> None:
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if not (encoder_decoder or as_text or has_template):
            raise UserError(
                f"tokenizer of {tokenizer.name_or_path!r}: has no chat template, and the form of the prompts is chat",
                remedy="give a base model texts to continue: --form completion of d2e eval and d2e predict, "
                "data.form=completion of d2e train; or use the model's -Instruct or -Chat variant, or add "
                "chat_template.jinja to its folder",
            )
        self.plain = as_text or not has_template
        self.end_of_turn = _end_of_text_id(tokenizer) if self.plain else end_of_turn_id(tokenizer)
        self._tokenizer = tokenizer

    def ids(self, conversations: Sequence[Messages]) -> list[list[int]]:
        """Return the prompt of each conversation, up to where the answer begins; all at once, which is faster."""
        render = plain_text if self.plain else partial(rendered, self._tokenizer, add_generation_prompt=True)
        shown = len(conversations) > _SEVERAL
        progress = Progress(conversations, desc="prompts", unit="prompt") if shown else conversations
        texts = [render(turns) for turns in progress]
        # The template writes the BOS token if the model needs one; adding special tokens would double it.
        return list(self._tokenizer(texts, add_special_tokens=self.plain)["input_ids"]) if texts else []


def end_of_turn_id(tokenizer: Any) -> int:
    """Return the token with which the chat template ends an assistant's turn, by default `eos_token_id`."""
    # An end-of-turn token may be a special added token that is not listed among the special tokens.
    added = {token for token, entry in tokenizer.added_tokens_decoder.items() if entry.special}
    special = added | set(tokenizer.all_special_ids)
    tail = tokenizer(_end_of_turn(tokenizer), add_special_tokens=False)["input_ids"]
    closing: int | None = next((token for token in tail if token in special), tokenizer.eos_token_id)
    return _end_of_text_id(tokenizer) if closing is None else closing


def ending_ids(tokenizer: Any, closing: int, end: EndOfTurn) -> list[int]:
    """Return the tokens that end a trained answer: `closing`, or all that the template writes after it.

    Like TRL's, the second may end in a line break. If the template does not write `closing`, that is all.
    """
    if end == "token":
        return [closing]
    written = list(tokenizer(_end_of_turn(tokenizer), add_special_tokens=False)["input_ids"])
    return written if closing in written else [closing]


def _end_of_turn(tokenizer: Any) -> str:
    """Return what the chat template writes after the last answer."""
    probe = "reply"
    text: str = rendered(tokenizer, [{"role": "user", "content": "question"}, {"role": "assistant", "content": probe}])
    if probe not in text:
        raise UserError(
            f"tokenizer of {tokenizer.name_or_path!r}: its chat template omits the messages",
            remedy="use a chat template that writes each message's content",
        )
    return text[text.rindex(probe) + len(probe) :]


def merged_stop_ids(configured: int | list[int] | None, end_of_turn: int | None) -> list[int]:
    """Return the end-of-turn token and the `eos_token_id` of a generation config, sorted."""
    configured_ids = configured if isinstance(configured, list) else [configured]
    return sorted({token for token in (end_of_turn, *configured_ids) if token is not None})


def pad_id(tokenizer: Any) -> int:
    """Return an id for padding; it is always masked, so any will do."""
    return tokenizer.pad_token_id if tokenizer.pad_token_id is not None else (tokenizer.eos_token_id or 0)


def rendered(tokenizer: Any, messages: Messages, **options: Any) -> Any:
    """Render the messages by the chat template, as text or as tokens by the options; UserError if it rejects them."""
    try:
        return _rendered(tokenizer, messages if takes_system(tokenizer) else merged_system(messages), **options)
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"tokenizer of {tokenizer.name_or_path!r}: its chat template rejects the messages ({error})",
            remedy="use a chat template that supports user and assistant messages",
        ) from None


def check_template(tokenizer: Any) -> None:
    """Raise a UserError if the chat template takes too much time or memory; only its first use costs anything."""
    render = partial(_rendered, tokenizer)
    try_template(str(tokenizer.chat_template), render, tokenizer.name_or_path)


def _rendered(tokenizer: Any, messages: Messages, **options: Any) -> Any:
    # enable_thinking: hybrid models (Qwen3) are to answer directly; other templates ignore the name.
    fixed: dict[str, Any] = {"tokenize": False, "enable_thinking": False}
    if "strftime_now" in (template := str(tokenizer.chat_template)):
        fixed["chat_template"] = _FIXED_DATE + template
    return tokenizer.apply_chat_template(messages, **{**fixed, **options})


def takes_system(tokenizer: Any) -> bool:
    """Whether the chat template writes a system message; others reject it (the first Gemma models) or leave it out."""
    check_template(tokenizer)
    template, instruction = str(tokenizer.chat_template), "an-instruction-7f3a"
    if template not in _TAKES_SYSTEM:
        turns = [{"role": "system", "content": instruction}, {"role": "user", "content": "question"}]
        try:
            _TAKES_SYSTEM[template] = instruction in _rendered(tokenizer, turns)
        except TemplateError:
            _TAKES_SYSTEM[template] = False
    return _TAKES_SYSTEM[template]


def merged_system(messages: Messages) -> Messages:
    """Move the system message into the first user message, for templates without one."""
    if messages[0]["role"] != "system":
        return messages
    return [{"role": "user", "content": plain_text(messages[:2])}, *messages[2:]]


def plain_text(messages: Messages) -> str:
    """Join the texts of the messages by empty lines."""
    return "\n\n".join(message["content"] for message in messages)


def _end_of_text_id(tokenizer: Any) -> int:
    end: int | None = tokenizer.eos_token_id
    if end is None:
        raise UserError(
            f"tokenizer of {tokenizer.name_or_path!r}: has neither an end-of-turn nor an end-of-text token"
        )
    return end


def marks_turns(tokenizer: Any) -> bool:
    template = getattr(tokenizer, "chat_template", None)
    return isinstance(template, str) and _GENERATION.search(template) is not None


def turn_tokens(
    tokenizer: Any, messages: Messages, *, only_last: bool, end_of_turn: EndOfTurn = "token"
) -> tuple[list[int], list[bool]]:
    """Return the tokens of a conversation and whether each is trained on, up to the last trained token.

    Its last turn is an assistant's; `only_last` trains only on that one. A template that marks answers decides which
    tokens end a turn; otherwise `end_of_turn` does, see `ending_ids`. Raises UserError if the template omits an
    assistant turn or changes it when a turn is added, or the tokenizer is slow.
    """
    if not tokenizer.is_fast:
        raise UserError(
            f"tokenizer of {tokenizer.name_or_path!r}: a slow one, which does not report the positions of tokens",
            remedy="use the model's fast tokenizer (tokenizer.json)",
        )
    if marks_turns(tokenizer):
        options = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
        encoded = rendered(tokenizer, messages, **options)
        ids, marks = list(encoded["input_ids"]), [bool(mark) for mark in encoded["assistant_masks"]]
    else:
        ids, marks = _found(tokenizer, messages, end_of_turn)
    if True not in marks:
        raise _unfit(tokenizer, len(messages))
    end = len(marks) - marks[::-1].index(True)
    if only_last:
        start = end
        while start and marks[start - 1]:
            start -= 1
        marks = [place >= start for place in range(end)]
    return ids[:end], marks[:end]


def _found(tokenizer: Any, messages: Messages, end_of_turn: EndOfTurn) -> tuple[list[int], list[bool]]:
    text = rendered(tokenizer, messages)
    turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    written = _end_of_turn(tokenizer) if end_of_turn == "template" else ""
    spans = [_span(tokenizer, messages, number, text, written) for number in turns]
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    marks = [any(end > first and start < last for first, last in spans) for start, end in encoded["offset_mapping"]]
    return list(encoded["input_ids"]), marks


def _span(tokenizer: Any, messages: Messages, number: int, text: str, written: str) -> tuple[int, int]:
    """Return where in the text an assistant turn begins (after its prompt) and ends.

    It ends with what the template has `written` after the last answer if that follows, or with the end-of-turn token.
    """
    content = messages[number]["content"].strip()
    prompt = rendered(tokenizer, messages[:number], add_generation_prompt=True)
    cut = rendered(tokenizer, messages[: number + 1])
    start = len(prompt)
    for whole in (cut, text):
        place = whole.find(content, start) if whole.startswith(prompt) else -1
        if place < 0 or whole[start:place].strip():
            raise _unfit(tokenizer, number + 1)
    end = place + len(content)
    if written and text.startswith(written, end):
        return start, end + len(written)
    closing = tokenizer.convert_ids_to_tokens(end_of_turn_id(tokenizer))
    if text[end:].lstrip().startswith(closing):
        end = text.index(closing, end) + len(closing)
    return start, end


def _unfit(tokenizer: Any, turn: int) -> UserError:
    return UserError(
        f"tokenizer of {tokenizer.name_or_path!r}: its chat template omits assistant turn {turn}, or changes the text "
        "before it when a turn is added",
        remedy="use a chat template that writes each message as it is, whatever follows; or write `loss: each` (one "
        "sample per assistant turn) or `loss: last` in the data's YAML and build again",
    )
