"""Which text each view of a sample gets, in each setting: the only place that decides it.

The three views (PIPER paper, section 3) differ in the context line alone: the original has the context, the
imagined has none, the refined has the refined context. The three settings (its appendix B) are zero-shot, in which
models are also trained; few-shot, with solved samples as earlier turns of the conversation; and chain of thought.
Wording is data (`prompt_sets/*.yaml`), so that a user can bring another. A chat sample brings its own.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from d2e_sft.config.recipe import View
from d2e_sft.data.sample import EventSample, Format
from d2e_sft.util.errors import UserError, describe_validation_error
from d2e_sft.util.files import load_yaml

Setting = Literal["zero_shot", "few_shot", "cot"]
SETTINGS: tuple[Setting, ...] = get_args(Setting)
_BUNDLED = Path(__file__).resolve().parent / "prompt_sets"
MCQ_SEPARATOR = "; "
DEFAULT, NEUTRAL = "default", "neutral"


class FormatPrompt(BaseModel):
    """The wording of one format: `system` and `user` messages, the context line and the response form."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str
    context: str
    user: str
    response: str

    @field_validator("response")
    @classmethod
    def _ends_with_answer(cls, value: str) -> str:
        if not value.endswith("{answer}") or value.count("{answer}") != 1:
            raise ValueError("must hold {answer} once, at its end: what stands before it marks the answer")
        return value

    @property
    def marker(self) -> str:
        """The text before the answer, for example `The answer is:`."""
        return self.response.removesuffix("{answer}").strip()


class PromptSet(BaseModel):
    """A named wording for all formats but chat.

    The bundled set `default` speaks of events; rows whose relation is `none` get the words of `neutral` from it.

    Attributes:
        zero_shot: of training, too.
        few_shot: None takes the zero-shot wording, as the demonstrations are what differs.
        cot: asks for the reasoning before the response form; None where the set has no such wording.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    zero_shot: dict[Format, FormatPrompt]
    few_shot: dict[Format, FormatPrompt] | None = None
    cot: dict[Format, FormatPrompt] | None = None

    def messages(
        self, sample: EventSample, view: View, *, context: str | None = None, setting: Setting = "zero_shot"
    ) -> list[dict[str, str]]:
        """The system and user messages of one view, without demonstrations.

        Args:
            context: replaces the view's own context (used to shorten one that is too long).

        Raises:
            UserError: the refined view of a sample that has no refined context, or a format or setting without
                wording.
        """
        text = view_context(sample, view) if context is None else context
        if sample.conversation is not None:
            _refuse_setting(sample, setting)
            return sample.conversation.messages(text)
        prompt = self._prompt(sample.format, setting, sample)
        block = _fill(prompt.context, {"context": text}) if text.strip() else ""
        fields = {
            "context_block": block,
            "question": sample.question,
            "options": "\n".join(render_option(i, option) for i, option in enumerate(sample.options)),
        }
        return [
            {"role": "system", "content": prompt.system},
            {"role": "user", "content": _fill(prompt.user, fields)},
        ]

    def response(self, sample: EventSample, setting: Setting = "zero_shot") -> str:
        """The target text: the response form with the sample's answer in it."""
        if sample.conversation is not None:
            return sample.answers[0]
        if sample.options:
            chosen = [i for i, option in enumerate(sample.options) if option in sample.answers]
            answer = MCQ_SEPARATOR.join(render_option(i, sample.options[i]) for i in chosen)
        else:
            answer = sample.answers[0]
        return _fill(self._prompt(sample.format, setting, sample).response, {"answer": answer})

    def answer_start(self, sample: EventSample, setting: Setting = "zero_shot") -> int:
        """Where in the `response` of a sample the answer begins, in characters."""
        if sample.conversation is not None:
            return 0
        return len(self._prompt(sample.format, setting, sample).response.removesuffix("{answer}"))

    def marker(self, fmt: Format, setting: Setting = "zero_shot") -> str:
        """The text that precedes the answer in the response form of a format; a conversation has none."""
        return "" if fmt == "chat" else self._prompt(fmt, setting).marker

    def digest(self, setting: Setting = "zero_shot") -> str:
        """SHA-256 of the wording of one setting: what other settings say has no part in it."""
        if setting != "zero_shot":
            prompts = {fmt: self._prompt(fmt, setting).model_dump() for fmt in sorted(self._prompts(setting))}
            return hashlib.sha256(repr((self.name, prompts)).encode()).hexdigest()
        return hashlib.sha256(self.model_dump_json(include={"name", "zero_shot"}).encode()).hexdigest()

    def _prompts(self, setting: Setting) -> dict[Format, FormatPrompt]:
        if setting == "cot":
            if self.cot is None:
                raise UserError(
                    f"prompt set {self.name!r}: has no wording for the setting 'cot'",
                    remedy="add a section `cot` to it, with the keys of `zero_shot`, or use --prompt-set default",
                )
            return self.cot
        return self.few_shot or self.zero_shot if setting == "few_shot" else self.zero_shot

    def _prompt(self, fmt: Format, setting: Setting, sample: EventSample | None = None) -> FormatPrompt:
        if sample is not None and sample.relation == "none" and self == load_prompt_set(DEFAULT):
            return load_prompt_set(NEUTRAL)._prompt(fmt, setting)
        prompts = self._prompts(setting)
        if fmt not in prompts:
            raise UserError(f"prompt set {self.name!r}: has no {setting} prompt for format {fmt!r}")
        return prompts[fmt]


@dataclass(frozen=True)
class SettingPrompts:
    """A prompt set in one setting.

    Attributes:
        demonstrations: the solved samples that come before a sample, as turns of the conversation; with their
            contexts in every view, since the imagined view is about the asked sample's context alone.
    """

    prompt_set: PromptSet
    setting: Setting = "zero_shot"
    demonstrations: Callable[[EventSample], Sequence[EventSample]] = lambda sample: ()

    def messages(self, sample: EventSample, view: View, *, context: str | None = None) -> list[dict[str, str]]:
        """The conversation up to the answer; arguments as for `PromptSet.messages`."""
        if sample.conversation is not None:
            return self.prompt_set.messages(sample, view, context=context, setting=self.setting)
        system, user = self.prompt_set.messages(sample, view, context=context, setting=self.setting)
        turns = [turn for shown in self.demonstrations(sample) for turn in self._solved(shown)]
        return [system, *turns, user]

    def response(self, sample: EventSample) -> str:
        """The response form with the sample's answer in it."""
        return self.prompt_set.response(sample, self.setting)

    def answer_start(self, sample: EventSample) -> int:
        """Where in the `response` of a sample the answer begins, in characters."""
        return self.prompt_set.answer_start(sample, self.setting)

    def marker(self, fmt: Format) -> str:
        """The text that precedes the answer in the response form of a format."""
        return self.prompt_set.marker(fmt, self.setting)

    def _solved(self, sample: EventSample) -> list[dict[str, str]]:
        _, user = self.prompt_set.messages(sample, "original", setting=self.setting)
        return [user, {"role": "assistant", "content": self.response(sample)}]


Wording = PromptSet | SettingPrompts  # what a prompt is made from; a prompt set alone: zero-shot


def candidate_responses(wording: Wording, sample: EventSample) -> list[str]:
    """The response form with each of the sample's candidates as the one answer in it."""
    return [wording.response(sample.model_copy(update={"answers": [option]})) for option in sample.candidates]


def view_context(sample: EventSample, view: View) -> str:
    """The context that a view of the sample shows; empty for the imagined view."""
    if view == "imagined":
        return ""
    if view == "original":
        return sample.context
    if sample.refined_context is None:
        raise UserError(
            f"sample {sample.id!r} of {sample.dataset!r}: refined_context is missing, and the refined view needs it",
            remedy="build the data with a refiner, or set d2e.distill=false (d2e.objective: one without that view)",
        )
    return sample.refined_context


def render_option(index: int, option: str) -> str:
    """`(A) text` for the option at a position."""
    if index >= len(string.ascii_uppercase):
        raise UserError(f"option {option!r}: position {index + 1}; expected at most 26 options")
    return f"({string.ascii_uppercase[index]}) {option}"


def _refuse_setting(sample: EventSample, setting: Setting) -> None:
    if setting != "zero_shot":
        raise UserError(
            f"sample {sample.id!r} of {sample.dataset!r}: a conversation has its own words, and none for {setting}",
            remedy="ask it without --setting",
        )


def load_prompt_set(name: str) -> PromptSet:
    """Load a bundled prompt set by name, or one from a YAML file by path.

    Raises:
        UserError: no such set, not YAML, or a field is missing or unknown.
    """
    return _bundled(name) if (_BUNDLED / f"{name}.yaml").is_file() else _read(name)


@lru_cache(maxsize=8)
def _bundled(name: str) -> PromptSet:
    return _read(name)


def _read(name: str) -> PromptSet:
    path = Path(name) if name.endswith((".yaml", ".yml")) else _BUNDLED / f"{name}.yaml"
    if not path.is_file():
        bundled = ", ".join(sorted(file.stem for file in _BUNDLED.glob("*.yaml")))
        raise UserError(f"prompt set {name!r}: not found", remedy=f"give a YAML file or one of: {bundled}")
    try:
        content: Any = load_yaml(path.read_text(encoding="utf-8"))
        return PromptSet.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{path}: {describe_validation_error(error)}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: not a YAML file ({error})") from None


def _fill(template: str, fields: dict[str, str]) -> str:
    # One pass: a brace in a user's text is text, never a placeholder.
    return re.sub(r"\{(\w+)\}", lambda match: fields.get(match[1], match[0]), template)
