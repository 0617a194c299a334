"""The text of each view of a sample, in each setting.

The three views (PIPER paper, section 3) differ only in the context line. The three settings (its appendix B) are
zero-shot, which training uses; few-shot, with solved samples first; and chain of thought. The forms are those of
`chat_template.py`. The wording is data (`prompt_sets/*.yaml`), so users can bring their own. A chat sample contains
its own wording.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, Protocol, get_args

import yaml
from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from d2e_sft.config.recipe import View
from d2e_sft.data.chat_template import CUE, CUED, Continuation, Form, FormatPrompt, fill
from d2e_sft.data.sample import EventSample, Format
from d2e_sft.util.errors import UserError, describe_validation_error
from d2e_sft.util.files import load_yaml

Setting = Literal["zero_shot", "few_shot", "cot"]
SETTINGS: tuple[Setting, ...] = get_args(Setting)
Demonstrate = Callable[[EventSample], Sequence[EventSample]]
_BUNDLED = Path(__file__).resolve().parent / "prompt_sets"
MCQ_SEPARATOR, DEFAULT, NEUTRAL, OWN = "; ", "default", "neutral", "the rows' own"
_REASONING = "Reasoning:"  # the cue of a chain of thought
NOT_OF_EVENTS = ("none", "factual")  # relations
# Published rows about facts keep the words in which they were measured.
_MEASURED_AS_EVENTS = frozenset({"kre_squad", "nq_swap", "faitheval", "memotrap", "cpi_facts"})


class SampleKind(Protocol):
    """What decides which prompt set words a sample: also known of its answer, and of the scores of its group."""

    @property
    def dataset(self) -> str: ...
    @property
    def relation(self) -> str: ...
    @property
    def format(self) -> str: ...


class PromptSet(BaseModel):
    """A named wording for all formats except chat, in a setting and a form (zero-shot and chat if not chosen).

    The bundled set `default` mentions events. For rows whose relation is `none` or `factual` it uses `neutral`, except
    for the published datasets about facts.

    Attributes:
        zero_shot: also the wording of training.
        few_shot: None for the zero-shot wording.
        cot: asks for reasoning before the response form.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    zero_shot: dict[Format, FormatPrompt]
    few_shot: dict[Format, FormatPrompt] | None = None
    cot: dict[Format, FormatPrompt] | None = None
    _setting: Setting = PrivateAttr("zero_shot")
    _form: Form = PrivateAttr("chat")
    _demonstrations: Demonstrate | None = PrivateAttr(None)

    def in_setting(self, setting: Setting, demonstrations: Demonstrate | None = None) -> PromptSet:
        """Return the same set in another setting; UserError if the set has no wording for it.

        `demonstrations` gives the solved samples that are shown before a sample, as turns of the conversation. They
        keep their contexts in every view: the imagined view only removes the context of the sample itself.
        """
        if setting == "cot" and self.cot is None:
            raise UserError(
                f"prompt set {self.name!r}: has no wording for the setting 'cot'",
                remedy="add a section `cot` to it, with the keys of `zero_shot`, or use --prompt-set default",
            )
        prompt_set = self.model_copy()
        prompt_set._setting, prompt_set._demonstrations = setting, demonstrations
        return prompt_set

    @property
    def as_text(self) -> bool:
        """Whether prompts are texts that are continued, without a chat template."""
        return self._form == "completion"

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end an answer, which is continued: the beginnings of another sample's context line."""
        if not self.as_text:
            return ()
        heads = (prompt.context.partition("{")[0].strip() for prompt in self._prompts.values())
        return tuple(dict.fromkeys(f"\n{head}" for head in heads if head))

    def messages(self, sample: EventSample, view: View, *, context: str | None = None) -> list[dict[str, str]]:
        """Return the prompt up to the answer: system message, demonstrations and user message of a view.

        `context` replaces the view's own, to shorten it.
        """
        text = view_context(sample, view) if context is None else context
        if sample.conversation is not None:
            if self._setting != "zero_shot":
                raise UserError(
                    f"sample {sample.id!r} of {sample.dataset!r}: a conversation has no wording for {self._setting}",
                    remedy="use it without --setting",
                )
            return CUED.shaped(sample.conversation.messages(text), self._form)
        turns = []
        for shown in self._demonstrations(sample) if self._demonstrations is not None else ():
            response = self.response(shown) if self._form == "chat" else _answer(shown)
            turns += [self._user(shown, view_context(shown, "original")), {"role": "assistant", "content": response}]
        system = {"role": "system", "content": self._prompt(sample.format, sample).system}
        cue = _REASONING if self._setting == "cot" else self.marker(sample.format)
        return Continuation(cue).shaped([system, *turns, self._user(sample, text)], self._form)

    def response(self, sample: EventSample) -> str:
        """Return the target text: the response form with the sample's answer."""
        if self.as_text:
            return f"{self.marker(sample.format)} {_answer(sample)}"
        if sample.conversation is not None:
            return sample.answers[0]
        return fill(self._prompt(sample.format, sample).response, {"answer": _answer(sample)})

    def answer_start(self, sample: EventSample) -> int:
        """Return where the answer begins in the `response` of a sample, in characters."""
        return len(self.response(sample)) - len(_answer(sample))

    def marker(self, fmt: Format) -> str:
        """Return the text before the answer in the response form; without one nothing, or in one text a cue."""
        marker = "" if fmt == "chat" else self._prompt(fmt).marker
        return marker or ("" if self._form == "chat" else CUE)

    def given(self, fmt: Format) -> str:
        """Return the marker if prompts end in it, so that outputs lack it."""
        return self.marker(fmt) if self.as_text and self._setting != "cot" else ""

    def set_for(self, sample: SampleKind) -> PromptSet:
        """Return the set that words a sample: this one, or `neutral` in the same setting."""
        is_of_events = sample.relation not in NOT_OF_EVENTS or sample.dataset in _MEASURED_AS_EVENTS
        if not is_of_events and vars(self) == vars(load_prompt_set(DEFAULT)):
            return load_prompt_set(NEUTRAL).in_setting(self._setting)
        return self

    def names_for(self, samples: Iterable[SampleKind]) -> str:
        """Name the sets that word samples, or this one; conversations have their own wording."""
        names = dict.fromkeys(OWN if sample.format == "chat" else self.set_for(sample).name for sample in samples)
        return ", ".join(names) or self.name

    def digest(self) -> str:
        """Return the SHA-256 of the wording in this setting."""
        if self._setting != "zero_shot":
            prompts = {fmt: prompt.model_dump() for fmt, prompt in sorted(self._prompts.items())}
            return hashlib.sha256(repr((self.name, prompts)).encode()).hexdigest()
        return hashlib.sha256(self.model_dump_json(include={"name", "zero_shot"}).encode()).hexdigest()

    @property
    def _prompts(self) -> dict[Format, FormatPrompt]:
        return {"few_shot": self.few_shot, "cot": self.cot}.get(self._setting) or self.zero_shot

    def _prompt(self, fmt: Format, sample: EventSample | None = None) -> FormatPrompt:
        if sample is not None and (prompt_set := self.set_for(sample)) is not self:
            return prompt_set._prompt(fmt)
        if fmt not in self._prompts:
            raise UserError(f"prompt set {self.name!r}: has no {self._setting} prompt for format {fmt!r}")
        return self._prompts[fmt]

    def _user(self, sample: EventSample, context: str) -> dict[str, str]:
        options = "\n".join(render_option(i, option) for i, option in enumerate(sample.options))
        prompt = self._prompt(sample.format, sample)
        return {"role": "user", "content": prompt.asked(sample.question, context, options)}


def _answer(sample: EventSample) -> str:
    """Return the sample's answer without the response form."""
    if not sample.options:
        return sample.answers[0]
    chosen = [i for i, option in enumerate(sample.options) if option in sample.answers]
    return MCQ_SEPARATOR.join(render_option(i, sample.options[i]) for i in chosen)


def candidate_responses(wording: PromptSet, sample: EventSample) -> list[str]:
    """Return the response form with each of the sample's candidates as the answer."""
    return [wording.response(sample.model_copy(update={"answers": [option]})) for option in sample.candidates]


def view_context(sample: EventSample, view: View) -> str:
    """Return the context that a view of the sample shows; empty for the imagined view."""
    context = {"imagined": "", "original": sample.context, "refined": sample.refined_context}[view]
    if context is None:
        raise UserError(
            f"sample {sample.id!r} of {sample.dataset!r}: refined_context is missing, and the refined view needs it",
            remedy="build the data with a refiner, or train without that view: d2e.distill=false, or --method sft",
        )
    return context


def render_option(index: int, option: str) -> str:
    """Return `(A) text` for the option at a position."""
    if index >= len(string.ascii_uppercase):
        raise UserError(f"option {option!r}: position {index + 1}; expected at most 26 options")
    return f"({string.ascii_uppercase[index]}) {option}"


@lru_cache(maxsize=8)
def _bundled(name: str) -> PromptSet:
    return _read(_BUNDLED / f"{name}.yaml")


def load_prompt_set(name: str, form: Form = "chat") -> PromptSet:
    """Load a bundled prompt set by name, or one from a YAML file by path; UserError if that fails."""
    bundled = sorted(file.stem for file in _BUNDLED.glob("*.yaml"))
    if name not in bundled and (not name.endswith((".yaml", ".yml")) or not Path(name).is_file()):
        raise UserError(f"prompt set {name!r}: not found", remedy=f"give a YAML file or one of: {', '.join(bundled)}")
    prompt_set = (_bundled(name) if name in bundled else _read(Path(name))).model_copy()
    prompt_set._form = form
    return prompt_set


def _read(path: Path) -> PromptSet:
    try:
        return PromptSet.model_validate(load_yaml(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise UserError(f"{path}: {describe_validation_error(error)}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: not a YAML file ({error})") from None
