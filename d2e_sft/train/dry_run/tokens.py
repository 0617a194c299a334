"""A tokenizer that estimates how many tokens a text has, for a model whose own tokenizer is not here.

Words of up to seven letters are one token and longer ones several, each digit and each punctuation mark is one, as are
scripts without blanks by the character. Prompts get the marks of a common chat template.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample

_NO_BLANKS = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}]"  # scripts
_PIECES = rf"{_NO_BLANKS}| ?(?:(?!{_NO_BLANKS})\p{{L}}){{1,7}}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]|\s+"
_START, _END, _UNKNOWN = "<|start|>", "<|end|>", "<|unknown|>"
_TEMPLATE = (
    "{% for message in messages %}" + _START + "{{ message['role'] }}\n{{ message['content'] }}" + _END + "\n"
    "{% endfor %}{% if add_generation_prompt %}" + _START + "assistant\n{% endif %}"
)


def estimating_tokenizer(recipe: Recipe, samples: Iterable[EventSample]) -> Any:
    """Make a tokenizer whose vocabulary is that of the samples' prompts and answers; other pieces share one id."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    wording = load_prompt_set(recipe.data.prompt_set, recipe.data.form)
    core = Tokenizer(models.WordLevel(unk_token=_UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    core.decoder = decoders.Fuse()  # pieces have their blanks
    trainer = trainers.WordLevelTrainer(
        vocab_size=10**7, special_tokens=[_UNKNOWN, _START, _END], show_progress=False, min_frequency=0
    )
    texts = (
        text
        for sample in samples
        for text in (
            wording.response(sample),
            *(turn["content"] for view in recipe.d2e.views for turn in wording.messages(sample, view)),
        )
    )
    core.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=_END, pad_token=_END, unk_token=_UNKNOWN,
        additional_special_tokens=[_START], chat_template=_TEMPLATE,
    )  # fmt: skip


def per_word(tokenizer: Any, samples: Iterable[EventSample]) -> float:
    """Return the tokens per word of the samples' contexts and questions."""
    texts = [f"{sample.context} {sample.question}" for sample in samples]
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return sum(map(len, ids)) / max(sum(len(text.split()) for text in texts), 1)
