"""Ten chat templates in the manner of those that models have, with and without marks on what the assistant writes.

`TRAINED` is what TRL 1.16 trains on with `assistant_only_loss` by the marked form: the labels of its SFTTrainer over
CONVERSATION, as (first token, token behind the last) with `template_tokenizer`; recorded 2026-11-23.
"""

from transformers import PreTrainedTokenizerFast

from tests.tiny import tiny_tokenizer

CONVERSATION = [
    {"role": "user", "content": "The policy: 30 days. How long may I return it?"},
    {"role": "assistant", "content": "Within 30 days."},
    {"role": "user", "content": "And without a receipt?"},
    {"role": "assistant", "content": "No: a receipt is needed."},
]
# [[ … ]] stands where a template of its kind marks the assistant's text.
_TEMPLATES = {
    # every role between the same tokens, a line end behind each turn
    "chatml": "{% for m in messages %}<|start|>{{ m.role }}\n{% if m.role == 'assistant' %}[[{{ m.content }}<|end|>]]"
    "{% else %}{{ m.content }}<|end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}",
    # the mark takes the line ends with it
    "chatml, wide": "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}"
    "[[{{ '\n' + m.content }}<|end|>{{ '\n' }}]]{% else %}\n{{ m.content }}<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}",
    # begins with a token of its own, strips the texts
    "headers": "<|begin|>{% for m in messages %}<|start|>{{ m.role }}<|user|>\n\n{% if m.role == 'assistant' %}"
    "[[{{ m.content | trim }}<|end|>]]{% else %}{{ m.content | trim }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|user|>\n\n{% endif %}",
    # the assistant is called otherwise, and no system message is taken
    "model": "<|begin|>{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}<|start|>model\n[[{{ m.content | trim }}<|end|>]]{{ '\n' }}"
    "{% else %}<|start|>{{ m.role }}\n{{ m.content | trim }}<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>model\n{% endif %}",
    # no prompt of its own before an answer, a blank instead
    "brackets": "<|begin|>{% for m in messages %}{% if m.role == 'assistant' %}[[ {{ m.content }}<|end|>]]"
    "{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}",
    # a token for each role
    "roles": "{% for m in messages %}<|{{ m.role }}|>\n{% if m.role == 'assistant' %}"
    "[[{{ m.content }}<|end|>]]{{ '\n' }}"
    "{% else %}{{ m.content }}<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    # something more at the very end of the text
    "closed": "{% for m in messages %}<|{{ m.role }}|>\n{% if m.role == 'assistant' %}"
    "[[{{ m.content }}<|end|>]]{{ '\n' }}"
    "{% else %}{{ m.content }}<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}<|pad|>{% endif %}",
    # a system message that nobody gave
    "default system": "{% if messages[0].role != 'system' %}<|system|>Be brief.<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}[[{{ m.content }}<|end|>]]"
    "{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    # words in place of tokens
    "words": "{% for m in messages %}{% if m.role == 'assistant' %}Assistant: [[{{ m.content }}<|end|>]]{{ '\n' }}"
    "{% else %}{{ m.role | capitalize }}: {{ m.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant: {% endif %}",
    # empty thoughts before every answer
    "thinking": "{% for m in messages %}<|start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think>\n\n</think>\n\n"
    "[[{{ m.content }}<|end|>]]{% else %}{{ m.content }}<|end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n<think>\n\n</think>\n\n{% endif %}",
}
NAMES = tuple(_TEMPLATES)
# Thoughts before the last answer alone: what stood before an answer goes when a turn is added.
FORGETS_THOUGHTS = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n"
    "{% endif %}{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)


def template(name: str, *, marked: bool) -> str:
    marks = ("{% generation %}", "{% endgeneration %}") if marked else ("", "")
    return _TEMPLATES[name].replace("[[", marks[0]).replace("]]", marks[1])


def template_tokenizer(chat_template: str) -> PreTrainedTokenizerFast:
    """The byte tokenizer with a chat template, and the tokens that these have beside its own."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|start|>", "<|begin|>"]}, False)
    tokenizer.chat_template = chat_template
    return tokenizer


TRAINED: dict[str, list[tuple[int, int]]] = {
    "chatml": [(64, 80), (120, 145)],
    "chatml, wide": [(63, 81), (120, 147)],
    "headers": [(69, 85), (129, 154)],
    "model": [(62, 78), (116, 141)],
    "brackets": [(62, 79), (116, 142)],
    "roles": [(52, 68), (97, 122)],
    "closed": [(52, 68), (97, 122)],
    "default system": [(60, 76), (101, 126)],
    "words": [(64, 80), (121, 146)],
    "thinking": [(83, 99), (158, 183)],
}
