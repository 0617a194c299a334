"""Tiny random models, a byte tokenizer and samples: all built in code, no download, fast on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from d2e_sft.sample import EventSample

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIALS = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
VOCAB_SIZE = 256 + len(SPECIALS)

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with a chat template; id 0 pads, id 1 ends a turn."""
    vocab = {token: i for i, token in enumerate(SPECIALS)}
    for symbol in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab[symbol] = len(vocab)
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=SPECIALS[2:],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_model(kind: str = "llama", seed: int = 0) -> Any:
    """A randomly initialised causal language model of a few thousand weights, float32, in eval mode."""
    torch.manual_seed(seed)
    build: dict[str, Any] = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**_SIZES)),
        "mistral": lambda: MistralForCausalLM(MistralConfig(**_SIZES, sliding_window=None)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_SIZES)),
        "gpt2": lambda: GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCAB_SIZE, n_embd=32, n_layer=2, n_head=4, n_positions=1024,
                resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=None, eos_token_id=1,
            )
        ),
    }  # fmt: skip
    model = build[kind]()
    # Random models of the usual scale are almost uniform; sharper ones make greedy choices that a small error
    # cannot flip, and gradients that are not tiny.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return model.eval()


def save_tiny_model(folder: Path, kind: str = "llama", seed: int = 0) -> Path:
    """A tiny model and its tokenizer as a checkpoint folder."""
    tiny_model(kind, seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def make_sample(number: int = 0, **changes: Any) -> EventSample:
    """A qa sample whose context, question and answer lengths vary with `number`."""
    fields: dict[str, Any] = {
        "id": f"s{number}",
        "dataset": "made-up",
        "split": "train",
        "relation": "temporal",
        "format": "qa",
        "context": f"Rain fell for {number} days. " + "Roads stayed dry. " * (number % 3) + "Then the river rose.",
        "refined_context": f"Rain fell for {number} days. Then the river rose.",
        "question": f"What rose after {number} days?",
        "options": [],
        "answers": ["the river" + "!" * (number % 4)],
    }
    return EventSample(**{**fields, **changes})


def make_samples(count: int) -> list[EventSample]:
    """`count` different qa samples."""
    return [make_sample(number) for number in range(count)]
