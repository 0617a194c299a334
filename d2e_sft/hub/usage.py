"""The Python code in a model card that decodes the model as it was trained: wording, chat template and α."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jinja2

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.chat_template import merged_system
from d2e_sft.data.conversation import CONTEXT, Conversation, Turn, prompt_turns
from d2e_sft.data.prompts import PromptSet
from d2e_sft.data.sample import EventSample, Format, Relation

PLACEHOLDER = "OWNER/NAME"  # in an exported card; a push replaces it by the repository's name
Style = Literal["system", "merged", "plain"]
_TEMPLATE = Path(__file__).with_name("usage.py.jinja")
_CONTEXT = "The dam broke at noon. By one the road was gone."
_EXAMPLES: dict[Format, dict[str, Any]] = {
    "qa": {"question": "Why was the road gone?", "answers": ["the dam broke"]},
    "nli": {"question": "The road was gone before the dam broke.", "answers": ["negative"]},
    "scq": {
        "question": "Why was the road gone?",
        "options": ["The dam broke.", "The road was sold."],
        "answers": ["The dam broke."],
    },
    "mcq": {
        "question": "Which came before the road was gone?",
        "options": ["The dam broke.", "It became noon.", "It became two."],
        "answers": ["The dam broke.", "It became noon."],
    },
}
_POLICY, _ASKED = "Goods may be returned within 30 days.", "How long may I return the lamp?"


@dataclass(frozen=True)
class Usage:
    """The properties of a model that its code depends on.

    Attributes:
        adapter: loaded into its base model, which does not know this repository's `generate`.
        style: how a conversation becomes text.
        fmt: the format of the example.
        relation: of the example; `none` has a wording without events.
        chat: the description of the wording, if the model was trained on conversations (see `OwnSpec` of the data
            builders).
    """

    prompt_set: PromptSet
    fmt: Format
    decoding: DecodingConfig
    adapter: bool
    encoder_decoder: bool
    style: Style
    relation: Relation = "causal"
    chat: Mapping[str, Any] | None = None

    def code(self) -> str:
        """Return the program, which prints the answer to an example."""
        system, prompts = self._conversation() if self.chat is not None else self._question()
        if not self.decoding.alpha:
            del prompts["imagined"]
        environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
        environment.filters["literal"] = lambda value: json.dumps(value, ensure_ascii=False)
        return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
            **{name: getattr(self, name) for name in ("adapter", "encoder_decoder", "style")},
            alpha=self.decoding.alpha,
            max_new_tokens=self.decoding.max_new_tokens,
            placeholder=PLACEHOLDER,
            system=system,
            prompts=prompts,
        )

    def _question(self) -> tuple[str, dict[str, Any]]:
        sample = EventSample(
            id="example", dataset="example", split="test", relation=self.relation, format=self.fmt, context=_CONTEXT,
            refined_context=None, **{"options": [], **_EXAMPLES[self.fmt]},
        )  # fmt: skip
        system, original = (turn["content"] for turn in self.prompt_set.messages(sample, "original"))
        return system, {"original": original, "imagined": self.prompt_set.messages(sample, "imagined")[1]["content"]}

    def _conversation(self) -> tuple[None, dict[str, Any]]:
        conversation = example_conversation(self.chat or {})
        views = {"original": conversation.messages(_POLICY), "imagined": conversation.messages("")}
        if self.style == "merged":
            views = {name: merged_system(turns) for name, turns in views.items()}
        return None, views


def example_conversation(chat: Mapping[str, Any]) -> Conversation:
    """Return a question about a policy, worded as the description of chat data says."""
    if prompt := chat.get("prompt"):
        return prompt_turns(prompt, chat.get("system", ""), _ASKED)
    place = str(chat.get("context_in", "<context>"))
    asked = Turn(role="user", content=_ASKED)
    if "context" in chat.get("columns", {}):
        block = str(chat.get("context_block") or f"{CONTEXT}\n\n").replace("\\n", "\n")
        return Conversation(turns=[asked], context_turn=0, context_block=block)
    if place.startswith("<"):
        return Conversation(turns=[asked], context_turn=0, context_block=f"{place}{CONTEXT}</{place[1:]}\n")
    if place == "none":
        return Conversation(turns=[asked])
    turns = [Turn.model_validate({"role": place, "content": ""}), asked]
    return Conversation(turns=turns, context_turn=0)


def style_of(tokenizer: Any) -> Style:
    """Return how `d2e_sft.data.chat_template` turns a conversation into this tokenizer's prompt."""
    if not getattr(tokenizer, "chat_template", None):
        return "plain"
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "question"}]
    try:
        tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    except jinja2.exceptions.TemplateError:
        return "merged"
    return "system"
