"""The example of the Python code in a model card: worded as in training, with and without its context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import jinja2

from d2e_sft.config.recipe import View
from d2e_sft.data.chat_template import CUED, Form, check_template, merged_system
from d2e_sft.data.conversation import CONTEXT, Conversation, Turn, prompt_turns
from d2e_sft.data.prompts import PromptSet
from d2e_sft.data.sample import EventSample, Format
from d2e_sft.hub.training import TrainingData

PLACEHOLDER = "OWNER/NAME"  # in an exported card; a push replaces it by the repository's name
Style = Literal["system", "merged", "plain"]
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
_POLICIES = {"original": "Goods may be returned within 30 days.", "imagined": ""}
_ASKED = "How long may I return the lamp?"


def example_prompts(
    prompt_set: PromptSet, data: TrainingData, fmt: Format, style: Style
) -> tuple[str | None, dict[str, Any]]:
    """Return the system message and both views' user messages; of chats and texts, conversations without a system."""
    if data.chat is not None:
        conversation = example_conversation(data.chat)
        form: Form = "completion" if prompt_set.as_text else "chat"
        prompts = {name: CUED.shaped(conversation.messages(text), form) for name, text in _POLICIES.items()}
        return None, {name: merged_system(turns) if style == "merged" else turns for name, turns in prompts.items()}
    sample = EventSample(
        id="example", dataset="example", split="test", relation="none" if data.relations == {"none"} else "causal",
        format=fmt, context=_CONTEXT, **_EXAMPLES[fmt],
    )  # fmt: skip
    views: tuple[View, View] = ("original", "imagined")
    original, imagined = (prompt_set.messages(sample, view) for view in views)
    if prompt_set.as_text:
        return None, {"original": original, "imagined": imagined}
    return original[0]["content"], {"original": original[1]["content"], "imagined": imagined[1]["content"]}


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
    return Conversation(turns=[Turn.model_validate({"role": place, "content": ""}), asked], context_turn=0)


def style_of(tokenizer: Any) -> Style:
    """Return how `d2e_sft.data.chat_template` turns a conversation into this tokenizer's prompt."""
    if not getattr(tokenizer, "chat_template", None):
        return "plain"
    check_template(tokenizer)
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "question"}]
    try:
        tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    except jinja2.exceptions.TemplateError:
        return "merged"
    return "system"
