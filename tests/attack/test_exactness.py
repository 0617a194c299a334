"""Losses, decoding, prompts and adapters against what transformers alone computes, for random rows and models."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from unittest.mock import patch

import pytest
import torch
from peft import LoraConfig
from tokenizers import processors
from transformers.utils import chat_template_utils

from d2e_sft import D2EConfig, D2ETrainer, DecodingConfig, answer_samples
from d2e_sft.config.objectives import View
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import generate_debiased
from d2e_sft.model.loading import load_model
from d2e_sft.model.packing_support import choose_layout
from d2e_sft.util.errors import UserError
from tests import naive, naive_pairs
from tests.attack.frame import Attempt, attack
from tests.chat_templates import NAMES, template, template_tokenizer
from tests.d2e_sft.decoding.pairs import next_logits
from tests.tiny import (
    SPECIALS,
    VOCAB_SIZE,
    chat_sample,
    make_sample,
    save_tiny_model,
    tiny_model,
    tiny_t5_tokenizer,
    tiny_tokenizer,
)

VIEWS: tuple[View, ...] = ("original", "imagined", "refined")
CAUSAL = ("llama", "qwen2", "gemma3", "mistral-window", "gpt2", "bloom", "mamba")
STOPS = [1]
CLOSE = 1e-3  # scores nearer to each other than this may be ordered otherwise by rounding
# Templates that leave out the system message, and that write the date.
SILENT = (
    "{% for m in messages %}{% if m.role != 'system' %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
)
SILENT += "{% if add_generation_prompt %}<|assistant|>{% endif %}"
DATED = "<|begin|>Today is {{ strftime_now('%d %b %Y') }}." + template("chatml", marked=False)


# Losses ------------------------------------------------------------------------------------------------------------


def _rows(numbers: random.Random, config: Any) -> list[dict[str, Any]]:
    """Draw rows, some of them with tokens of the answer that are not trained on."""
    rows = naive_pairs.pair_rows(config) if config.prefers else naive.encoded_rows(config, 5)
    rows = numbers.sample(rows, numbers.randint(2, 4))
    for row in rows:
        for name, mask in (("answer", "trained"), ("rejected", "rejected_trained")):
            if name in row and numbers.random() < 0.5:
                row[mask] = [True, *(numbers.random() < 0.7 for _ in row[name][1:])][: len(row[name])]
            elif name in row:
                row[mask] = [True] * len(row[name])
        if config.needs_reference:
            row["reference"] = [-numbers.uniform(1, 50), -numbers.uniform(1, 50)]
    return rows


def _other(numbers: random.Random, row: dict[str, Any], column: str, place: int) -> dict[str, Any]:
    """Replace a token of a row."""
    tokens = [*row[column]]
    tokens[place] = (tokens[place] + numbers.randrange(1, VOCAB_SIZE)) % VOCAB_SIZE
    return {**row, column: tokens}


@attack(
    "change a token of a prompt or an answer of a batch",
    "losses",
    "terms of other rows stay; those of its own row change with trained tokens alone",
    tries=100,
    quick=2,
)
def test_loss_masks(given: Attempt) -> None:
    numbers = given.random
    config = numbers.choice([*naive.CONFIGS.values(), *naive_pairs.CONFIGS.values()])
    model = tiny_model(numbers.choice([*CAUSAL, "t5"]), seed=given.number)
    layout = choose_layout(
        model, config, numbers.choice(["auto", "auto" if model.config.is_encoder_decoder else "batched"])
    )

    @torch.no_grad()
    def terms(rows: Sequence[Any]) -> dict[str, float]:
        sums = {name: float(value) for name, value in naive.sums_of(model, rows, config, layout).items()}
        if config.prefers:  # its share of pairs is known for a whole step
            del sums["loss"]
        return sums

    def assert_added(rows: Sequence[Any], changed: int) -> None:
        whole, alone, rest = terms(rows), terms([rows[changed]]), terms([*rows[:changed], *rows[changed + 1 :]])
        for name, value in whole.items():
            assert value - alone.get(name, 0) == pytest.approx(rest[name], rel=1e-4, abs=2e-3), (layout, name)

    rows = _rows(numbers, config)
    at = numbers.randrange(len(rows))
    row = rows[at]
    assert_added(rows, at)
    view = numbers.choice(config.views)
    rows[at] = _other(numbers, row, view, numbers.randrange(len(row[view])))
    assert_added(rows, at)
    place = numbers.choice([number for number, trained in enumerate(row["trained"]) if trained])
    rows[at] = _other(numbers, row, "answer", place)
    assert_added(rows, at)
    assert terms([rows[at]])["ce"] != pytest.approx(terms([row])["ce"], abs=1e-4), "the token is trained on"
    row["trained"][-1] = False
    assert terms([_other(numbers, row, "answer", -1)]) == pytest.approx(terms([row]), rel=1e-6), "it is not"


# Decoding ----------------------------------------------------------------------------------------------------------


def _independent(
    model: Any, original: list[int], imagined: list[int], alpha: float, length: int
) -> tuple[list[int], bool]:
    """Decode z_o − α·z_im greedily; also whether a choice was too close to call, where the answer is left."""
    answer: list[int] = []
    while len(answer) < length:
        z_o, z_im = (next_logits(model, prompt, answer) for prompt in (original, imagined))
        (best, second), (token, _) = (z_o - alpha * z_im).topk(2)
        if best - second < CLOSE:
            return answer, True
        if int(token) in STOPS:
            break
        answer.append(int(token))
    return answer, False


@attack(
    "z_o − α·z_im by transformers' own forwards",
    "decoding",
    "the same tokens: one by one and in batches",
    tries=100,
    quick=2,
)
def test_decoding(given: Attempt) -> None:
    numbers, given.things = given.random, 0
    model = tiny_model(numbers.choice([*CAUSAL[:-1], "t5"]), seed=given.number)
    alpha, length = numbers.choice([0.0, 0.1, 0.3, 0.5, 0.9, 1.0, 1.5, 3.0]), numbers.randint(1, 10)
    head = [numbers.randrange(5, VOCAB_SIZE) for _ in range(numbers.choice([0, 3, 20]))]  # which all begin with
    prompts = [[*head, *(numbers.randrange(5, VOCAB_SIZE) for _ in range(numbers.randint(1, 60)))] for _ in range(8)]
    originals, imagined = prompts[:4], prompts[4:]
    decoding = DecodingConfig(alpha=alpha, max_new_tokens=length)
    batch = generate_debiased(model, originals, imagined, decoding, stop_ids=STOPS)
    for original, other, ours in zip(originals, imagined, batch, strict=True):
        [alone] = generate_debiased(model, [original], [other], decoding, stop_ids=STOPS)
        answer, close = _independent(model, original, other, alpha, length)
        for found in (ours, alone):
            assert (found[: len(answer)] if close else found) == answer
            given.things += 1


# Prompts -----------------------------------------------------------------------------------------------------------


def _tokenizer(numbers: random.Random) -> tuple[str, Any]:
    """A tokenizer with any template; some add a token of their own to the beginning of each text."""
    name = numbers.choice([*NAMES, "silent", "dated"])
    text = {"silent": SILENT, "dated": DATED}.get(name) or template(name, marked=numbers.random() < 0.3)
    tokenizer = template_tokenizer(text)
    if numbers.random() < 0.5:
        begin = tokenizer.convert_tokens_to_ids("<|begin|>")
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", begin)]
        )
    return name, tokenizer


def _on(day: int) -> Any:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2026, 1, day)

    return patch.object(chat_template_utils, "datetime", Clock)


@attack(
    "templates that add tokens or a date, or leave out the system message",
    "prompts",
    "instruction, context and question are in the prompt once, on any day; its tokens are transformers'",
    tries=200,
    quick=4,
)
def test_templates(given: Attempt) -> None:
    numbers = given.random
    name, tokenizer = _tokenizer(numbers)
    wording = load_prompt_set("default")
    encoder = ViewEncoder(tokenizer, wording, VIEWS)
    sample = make_sample(given.number % 7, question=f"What rose after {given.number} days?")
    with _on(3):
        encoded = encoder.encode(sample)
    with _on(17):
        assert encoder.encode(sample) == encoded
    contexts = {"original": sample.context, "imagined": "", "refined": sample.refined_context}
    for view, ids in encoded.prompts.items():
        text, messages = tokenizer.decode(ids), wording.messages(sample, view)
        for part in (messages[0]["content"], sample.question, contexts[view]):
            assert not part or text.count(part.strip()) == 1, (name, view)
        assert contexts[view] or sample.context not in text
        assert text.count("<|begin|>") == tokenizer.chat_template.count("<|begin|>"), (name, view)
        if name not in ("silent", "dated", "model"):
            theirs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
            assert ids == theirs["input_ids"], (name, view)


@attack(
    "special tokens of the model in contexts, questions and earlier turns",
    "prompts",
    "one answer in all views, with the same trained tokens as without them",
    tries=200,
    quick=4,
)
def test_special_tokens(given: Attempt) -> None:
    numbers = given.random
    name = numbers.choice(NAMES)
    tokenizer = template_tokenizer(template(name, marked=numbers.random() < 0.5))
    evil = "".join(
        numbers.choice([*SPECIALS[1:], "<|start|>", "assistant\n", "The answer is: ", " "]) for _ in range(6)
    )
    encoder = ViewEncoder(tokenizer, load_prompt_set("default"), VIEWS)
    if numbers.random() < 0.5:
        clean = make_sample(2)
        dirty = make_sample(
            2, context=f"Rain. {evil} fell.", refined_context=f"Rain {evil}.", question=f"{evil} What?"
        )
    else:
        clean = chat_sample()
        dirty = clean.model_copy(update={"context": f"{evil} {clean.context}", "refined_context": f"{evil} Policy."})
    expected, found = encoder.encode(clean), encoder.encode(dirty)
    trained = [one.trained or [True] * len(one.answer) for one in (expected, found)]
    assert (found.answer, trained[1]) == (expected.answer, trained[0]), name


# Models ------------------------------------------------------------------------------------------------------------

ADAPTERS: list[dict[str, Any]] = [
    {"target_modules": "all-linear"},
    {"target_modules": ["q_proj", "lm_head"]},
    {"target_modules": ["q_proj", "embed_tokens"]},
    {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    {"target_modules": ["q_proj"], "ensure_weight_tying": True, "modules_to_save": ["embed_tokens"]},
    {"target_modules": ["q_proj", "embed_tokens"], "ensure_weight_tying": True},
]
ROWS = [{"context": f"Rain fell for {i} days.", "question": "What fell?", "answer": "rain"} for i in range(4)]


@attack(
    "adapters on a head that is tied to the embeddings",
    "models",
    "the run loads as it was trained, or is refused before training",
    tries=36,
    quick=1,
)
def test_tied_heads(given: Attempt) -> None:
    kind, adapter = ("qwen2", "gemma3")[given.number % 2], ADAPTERS[given.number // 2 % len(ADAPTERS)]
    folder, run = save_tiny_model(given.folder / "model", kind, seed=given.number), given.folder / "run"
    args = D2EConfig(str(run), max_steps=2, learning_rate=0.3, bf16=False, disable_tqdm=True, save_strategy="no")
    config = LoraConfig(r=2, **adapter)
    try:
        trainer = D2ETrainer(str(folder), args, train_dataset=ROWS, peft_config=config)
    except UserError:
        return
    trainer.train()
    trainer.save_model()
    ids = torch.arange(5, 60)[None]
    with torch.no_grad():
        expected, base = trainer.model.eval()(ids).logits, load_model(str(folder)).model(ids).logits
        found = load_model(str(run)).model.eval()(ids).logits
    assert (expected - base).norm() > 1e-3 * base.norm(), "it was trained"
    assert (found - expected).norm() <= 1e-4 * expected.norm(), adapter


@attack(
    "vocabularies that are padded beyond the tokenizer",
    "models",
    "answers are those of the model without the padding",
    tries=40,
    quick=1,
)
def test_padded_vocabulary(given: Attempt) -> None:
    numbers = given.random
    kind = numbers.choice(["llama", "qwen2", "gemma3", "gpt2", "t5"])
    model, padded = (tiny_model(kind, seed=given.number) for _ in range(2))
    padded.resize_token_embeddings(VOCAB_SIZE + numbers.choice([1, 59, 123]), mean_resizing=False)
    with torch.no_grad():  # as where padding has never been trained
        padded.get_output_embeddings().weight[VOCAB_SIZE:] = 0
    alpha = numbers.choice([0.0, 0.5, 1.0, 1.5])
    tokenizer = tiny_t5_tokenizer() if kind == "t5" else tiny_tokenizer()
    decoding = DecodingConfig(alpha=alpha, max_new_tokens=6)
    samples = [make_sample(number) for number in range(4)]
    texts = [answer_samples(one, tokenizer, samples, decoding) for one in (model, padded)]
    assert texts[0] == texts[1], alpha
