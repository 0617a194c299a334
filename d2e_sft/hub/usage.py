"""The Python code of a model card that decodes the model as it was trained: wording, chat template and α."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.chat_template import merged_system
from d2e_sft.data.conversation import CONTEXT, Conversation, Turn, prompt_turns
from d2e_sft.data.prompts import PromptSet
from d2e_sft.data.sample import EventSample, Format, Relation

# Written into the card by the export; the push puts the repository's name in its place.
PLACEHOLDER = "OWNER/NAME"
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
_MESSAGES: dict[Style, str] = {
    "system": '[{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]',
    "merged": '[{"role": "user", "content": f"{SYSTEM}\\n\\n{text}"}]',  # the template takes no system message
}
_POLICY, _ASKED = "Goods may be returned within 30 days.", "How long may I return the lamp?"


@dataclass(frozen=True)
class Usage:
    """What the code depends on.

    Attributes:
        adapter: loaded into its base model, which does not know this repository's `generate`.
        style: how the conversation becomes text.
        fmt: of the example.
        relation: of the example; `none` has the words of rows of no relation of events.
        chat: of a model trained on conversations: how they are worded, see `OwnSpec` of the data builders.
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
        """The program, which prints the answer to an example."""
        return "\n".join([*self._loading(), "", *self._prompting(), "", *self._generating()])

    def _loading(self) -> list[str]:
        kind = "AutoModelForSeq2SeqLM" if self.encoder_decoder else "AutoModelForCausalLM"
        names = [kind, "AutoTokenizer", *(["GenerationConfig"] if self.adapter else [])]
        trusted = ", trust_remote_code=True" if self.decoding.alpha and not self.adapter else ""
        return [
            f"from transformers import {', '.join(names)}",
            "",
            f'NAME = "{PLACEHOLDER}"  # or a folder that holds these files',
            "tokenizer = AutoTokenizer.from_pretrained(NAME)",
            f"model = {kind}.from_pretrained(NAME{trusted})",
        ]

    def _prompting(self) -> list[str]:
        if self.chat is not None:
            return self._conversing(example_conversation(self.chat))
        sample = EventSample(
            id="example", dataset="example", split="test", relation=self.relation, format=self.fmt, context=_CONTEXT,
            refined_context=None, **{"options": [], **_EXAMPLES[self.fmt]},
        )  # fmt: skip
        system, original = (turn["content"] for turn in self.prompt_set.messages(sample, "original"))
        imagined = self.prompt_set.messages(sample, "imagined")[1]["content"]
        lines = [f"SYSTEM = {_literal(system)}", "", "def tokens(text):"]
        if self.style == "plain":
            lines.append('    return tokenizer([f"{SYSTEM}\\n\\n{text}"], return_tensors="pt").to(model.device)')
        else:
            lines += [
                f"    messages = {_MESSAGES[self.style]}",
                '    options = {"add_generation_prompt": True, "tokenize": False, "enable_thinking": False}',
                "    text = tokenizer.apply_chat_template(messages, **options)",
                '    return tokenizer([text], add_special_tokens=False, return_tensors="pt").to(model.device)',
            ]
        lines += ["", f"original = tokens({_literal(original)})"]
        return [*lines, f"imagined = tokens({_literal(imagined)})"] if self.decoding.alpha else lines

    def _conversing(self, conversation: Conversation) -> list[str]:
        lines = ["def tokens(messages):"]
        if self.style == "plain":
            lines += [
                '    text = "\\n\\n".join(turn["content"] for turn in messages)',
                '    return tokenizer([text], return_tensors="pt").to(model.device)',
            ]
        else:
            lines += [
                '    options = {"add_generation_prompt": True, "tokenize": False, "enable_thinking": False}',
                "    text = tokenizer.apply_chat_template(messages, **options)",
                '    return tokenizer([text], add_special_tokens=False, return_tensors="pt").to(model.device)',
            ]
        for name, context in (("original", _POLICY), *([("imagined", "")] if self.decoding.alpha else [])):
            turns = conversation.messages(context)
            said = merged_system(turns) if self.style == "merged" else turns
            lines += ["", f"{name} = tokens([", *(f"    {_literal(turn)}," for turn in said), "])"]
        return lines

    def _generating(self) -> list[str]:
        arguments = ["input_ids=original.input_ids", "attention_mask=original.attention_mask"]
        if self.decoding.alpha:
            arguments += [
                "imagined_input_ids=imagined.input_ids",
                "imagined_attention_mask=imagined.attention_mask",
                f"alpha={self.decoding.alpha:g}",
            ]
        arguments += ["do_sample=False", f"max_new_tokens={self.decoding.max_new_tokens}"]
        if self.adapter:
            arguments.append("generation_config=GenerationConfig.from_pretrained(NAME)")
            if self.decoding.alpha:
                arguments += ["custom_generate=NAME", "trust_remote_code=True"]
        answer = "output" if self.encoder_decoder else "output[:, original.input_ids.shape[1] :]"
        return [
            "output = model.generate(",
            *(f"    {argument}," for argument in arguments),
            ")",
            f"print(tokenizer.batch_decode({answer}, skip_special_tokens=True)[0])",
        ]


def example_conversation(said: Mapping[str, Any]) -> Conversation:
    """A question on a policy in the wording of a description of chat data."""
    if prompt := said.get("prompt"):
        return prompt_turns(prompt, said.get("system", ""), _ASKED)
    place = str(said.get("context_in", "<context>"))
    asked = Turn(role="user", content=_ASKED)
    if "context" in said.get("columns", {}):
        block = str(said.get("context_block") or f"{CONTEXT}\n\n").replace("\\n", "\n")
        return Conversation(turns=[asked], context_turn=0, context_block=block)
    if place.startswith("<"):
        return Conversation(turns=[asked], context_turn=0, context_block=f"{place}{CONTEXT}</{place[1:]}\n")
    if place == "none":
        return Conversation(turns=[asked])
    turns = [Turn.model_validate({"role": place, "content": ""}), asked]
    return Conversation(turns=turns, context_turn=0)


def style_of(tokenizer: Any) -> Style:
    """How `d2e_sft.data.chat_template` turns a conversation into this tokenizer's prompt."""
    from jinja2.exceptions import TemplateError

    if not getattr(tokenizer, "chat_template", None):
        return "plain"
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "question"}]
    try:
        tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    except TemplateError:
        return "merged"
    return "system"


def _literal(value: str | Mapping[str, str]) -> str:
    return json.dumps(value, ensure_ascii=False)
