"""Random prompts in pairs; some of their answers end early."""

import random
from dataclasses import replace
from typing import Any

import torch

from d2e_sft.decoding import (
    DecodingConfig,
    OptionScore,
    PromptPair,
    finished,
    generate,
    generate_debiased,
    token_pairs,
)
from d2e_sft.decoding import score as option_scores
from tests.tiny import VOCAB_SIZE, tiny_model

NEW_TOKENS = 12
DECODING = DecodingConfig(max_new_tokens=NEW_TOKENS)
PREFIX = list(range(10, 40))
KINDS = ["llama", "mistral-window", "gemma3", "gpt2"]


def generated(model: Any, pairs: Any, *how: Any, tokenizer: Any = None, **stops: Any) -> list[list[int]]:
    return [output.tokens for output in finished(generate(model, tokenizer, pairs, *how, **stops))]


def scored(model: Any, pairs: Any, *how: Any, **kept: Any) -> list[list[OptionScore]]:
    return [scores for _, scores in sorted(option_scores(model, pairs, *how, **kept))]


def random_prompts(count: int, low: int, high: int, seed: int, prefix: list[int] | None = None) -> list[list[int]]:
    """Prompts of `low` to `high` random tokens after a prefix."""
    generator = random.Random(seed)
    return [
        [*(prefix or []), *(generator.randrange(5, VOCAB_SIZE) for _ in range(generator.randint(low, high)))]
        for _ in range(count)
    ]


def frequent_token(model: Any, originals: list[list[int]], imagined: list[list[int]], new_tokens: int) -> int:
    """A token that some answers hold early and some do not, so that pairs finish at different steps."""
    return generate_debiased(model, originals, imagined, DecodingConfig(max_new_tokens=new_tokens), stop_ids=[])[0][3]


def prefixed_case(kind: str, count: int = 8) -> tuple[Any, list[PromptPair[Any]], list[int]]:
    """A model, pairs of different lengths after a common prefix (two share an imagined prompt), and stop tokens."""
    model = tiny_model(kind, seed=1)
    originals = random_prompts(count, 5, 60, seed=3, prefix=PREFIX)
    imagined = random_prompts(count, 3, 9, seed=4, prefix=PREFIX)
    imagined[1] = list(imagined[4])
    return model, token_pairs(originals, imagined), [frequent_token(model, originals, imagined, NEW_TOKENS)]


def decoded_alone(model: Any, pairs: list[PromptPair[Any]], stop_ids: list[int]) -> list[list[int]]:
    """Each pair in a call of its own, its α in the configuration."""
    return [
        generated(
            model,
            [replace(pair, alpha=None)],
            replace(DECODING, alpha=0.5 if pair.alpha is None else pair.alpha),
            stop_ids=stop_ids,
        )[0]
        for pair in pairs
    ]


def watch_inputs(model: Any) -> list[tuple[int, ...]]:
    """The shapes of the model's inputs from now on; its layout must be known already."""
    generate_debiased(model, [[5, 6]], decoding=DecodingConfig(alpha=0, max_new_tokens=1))
    shapes: list[tuple[int, ...]] = []
    model.model.register_forward_pre_hook(
        lambda _, __, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return shapes


def guided(model: Any, pair: PromptPair[Any], stops: list[int], new_tokens: int) -> list[int]:
    """transformers' own guidance, one pair at a time; scale 1/(1−α) has the same argmax."""
    output = model.generate(
        input_ids=torch.tensor([pair.original]),
        attention_mask=torch.ones(1, len(pair.original), dtype=torch.long),
        negative_prompt_ids=torch.tensor([pair.imagined]),
        negative_prompt_attention_mask=torch.ones(1, len(pair.imagined), dtype=torch.long),
        guidance_scale=1 / (1 - pair.alpha),
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=stops,
        pad_token_id=0,
    )[0, len(pair.original) :].tolist()
    return output[:-1] if output and output[-1] in stops else output


@torch.no_grad()
def next_logits(model: Any, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """The logits (V,) of the next token, by one forward over everything."""
    if model.config.is_encoder_decoder:
        decoder = torch.tensor([[model.config.decoder_start_token_id, *answer]])
        return model(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder).logits[0, -1]
    return model(input_ids=torch.tensor([[*prompt, *answer]]), use_cache=False).logits[0, -1]


def encoder_decoder() -> Any:
    """A model whose decoder uses its encoder: an ordinary tiny T5 repeats one token whatever its prompt."""
    model = tiny_model("t5", seed=1)
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.0 if "shared" in name else parameter.shape[-1] ** -0.5)
            if "EncDecAttention" in name:
                parameter.mul_(3)
    return model
