"""Tiny random models, a byte tokenizer and samples: all built in code, no download, fast on a CPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GPT2Config,
    GraniteConfig,
    GraniteMoeHybridConfig,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3_5TextConfig,
    Qwen3Config,
    RwkvConfig,
    T5Config,
)

from d2e_sft.data.conversation import ContextRule, LossChoice, chat_rows, read_turns
from d2e_sft.data.sample import EventSample

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


def tiny_t5_tokenizer() -> PreTrainedTokenizerFast:
    """The same bytes as T5 has its tokens: no chat template, and id 1 at the end of every text."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|end|>", special_tokens=[("<|end|>", 1)]
    )
    return tokenizer


def _gpt2(dropout: float = 0) -> GPT2Config:
    return GPT2Config(
        vocab_size=VOCAB_SIZE, n_embd=32, n_layer=2, n_head=4, n_positions=1024, resid_pdrop=dropout,
        embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=None, eos_token_id=1,
    )  # fmt: skip


def _granite4(first: str) -> GraniteMoeHybridConfig:
    return GraniteMoeHybridConfig(
        **_SIZES, layer_types=[first, "attention"], position_embedding_type="rope", mamba_n_heads=8, mamba_d_head=8,
        mamba_d_state=4, mamba_n_groups=1, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=48,
    )  # fmt: skip


_GEMMA: dict[str, Any] = {**_SIZES, "query_pre_attn_scalar": 8, "sliding_window": 40}
_WINDOWS = ["sliding_attention", "full_attention"]
_CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_SIZES),
    "qwen2": lambda: Qwen2Config(**_SIZES, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**_SIZES),
    "mistral": lambda: MistralConfig(**_SIZES, sliding_window=None),
    "mistral-window": lambda: MistralConfig(**_SIZES, sliding_window=40),
    # One layer with a window and one without; a head that caps its logits.
    "gemma3": lambda: Gemma3TextConfig(**_GEMMA, layer_types=_WINDOWS, final_logit_softcapping=5.0),
    "gemma2": lambda: Gemma2Config(**_GEMMA),  # caps attention scores too
    "granite": lambda: GraniteConfig(**_SIZES, logits_scaling=3.0),
    # Two layers share keys and values with the two before them; each layer embeds the tokens anew.
    "gemma4": lambda: Gemma4TextConfig(
        **_SIZES | {"num_hidden_layers": 4}, sliding_window=40, global_head_dim=16, layer_types=_WINDOWS * 2,
        num_kv_shared_layers=2, hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCAB_SIZE,
    ),
    "granite4": lambda: _granite4("attention"),
    # Layers with a state in front of one with attention.
    "granite4-hybrid": lambda: _granite4("mamba"),
    "qwen3.5": lambda: Qwen3_5TextConfig(
        **_SIZES, layer_types=["linear_attention", "full_attention"], linear_conv_kernel_dim=4,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
    ),
    "lfm2": lambda: Lfm2Config(**_SIZES, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False),
    # A head with a bias.
    "phi": lambda: PhiConfig(**{name: value for name, value in _SIZES.items() if name != "head_dim"}),
    "gpt2": _gpt2,
    "gpt2-dropout": lambda: _gpt2(dropout=0.1),
    "mamba": lambda: MambaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=2, state_size=4, pad_token_id=0
    ),
    "rwkv": lambda: RwkvConfig(vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=2),
    "bloom": lambda: BloomConfig(
        vocab_size=VOCAB_SIZE, hidden_size=32, n_layer=2, n_head=4, hidden_dropout=0, attention_dropout=0
    ),
    "t5": lambda: T5Config(
        vocab_size=VOCAB_SIZE, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0,
        eos_token_id=1, pad_token_id=0, decoder_start_token_id=0,
    ),
}  # fmt: skip


def tiny_model(kind: str = "llama", seed: int = 0) -> Any:
    """A randomly initialised causal language model of a few thousand weights, float32, in eval mode."""
    torch.manual_seed(seed)
    model = (AutoModelForSeq2SeqLM if kind == "t5" else AutoModelForCausalLM).from_config(_CONFIGS[kind]())
    # Random models of the usual scale are almost uniform; sharper ones make greedy choices that a small error
    # cannot flip, and gradients that are not tiny.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return model.eval()


def overflowing_model(kind: str = "llama") -> Any:
    """A tiny model with finite weights and logits, whose logits exceed float16."""
    model = tiny_model(kind, seed=1)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(5e4)
    return model


def with_lora(model: Any, seed: int = 7, **options: Any) -> Any:
    """The model in an adapter with random weights, so that it shows in the logits and every part has gradients."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    given = {"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM", "init_lora_weights": False, **options}
    return get_peft_model(model, LoraConfig(**given))


def save_tiny_model(folder: Path, kind: str = "llama", seed: int = 0, positions: int | None = None) -> Path:
    """A tiny model and its tokenizer as a checkpoint folder; `positions` replaces the length of its context."""
    model = tiny_model(kind, seed)
    if positions is not None:
        model.config.max_position_embeddings = positions
    model.save_pretrained(folder)
    (tiny_t5_tokenizer() if kind == "t5" else tiny_tokenizer()).save_pretrained(folder)
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
    return [make_sample(number) for number in range(count)]


TURNS = [
    {"role": "user", "content": "<context>Goods are returned within 30 days. Bring the receipt.</context> How long?"},
    {"role": "assistant", "content": "Within 30 days."},
    {"role": "user", "content": "And what do I bring?"},
    {"role": "assistant", "content": "The receipt."},
]


def chat_sample(loss: LossChoice = "last", **changes: Any) -> EventSample:
    """A sample of format chat: two questions on a policy, the second one answered."""
    row = chat_rows(read_turns(TURNS), ContextRule(), loss)[-1]
    fields: dict[str, Any] = {
        "id": "c1",
        "dataset": "chats",
        "split": "train",
        "relation": "none",
        "format": "chat",
        **vars(row),
        "refined_context": "Bring the receipt.",
    }
    return EventSample(**{**fields, **changes})
