"""Scores of an answer with several contexts, against one forward for each context and option."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ByT5Tokenizer

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from data_builders.refine import likelihood
from data_builders.refine.likelihood import AnswerScorer
from tests.tiny import CHAT_TEMPLATE, make_sample, save_tiny_model, tiny_model, tiny_t5_tokenizer, tiny_tokenizer

TEXT = "Rain fell for days, so the river rose. Roads were closed, which nobody liked."
CONTEXTS = ["", TEXT, "Rain fell for days. Roads were closed.", "The river rose.", TEXT]
OPTIONS = ["the river", "the price", "nobody"]
QA = make_sample(0, context=TEXT, answers=["the river", "a river that rose"])
SCQ = make_sample(1, context=TEXT, format="scq", options=OPTIONS, answers=["the price"])
MCQ = make_sample(2, context=TEXT, format="mcq", options=OPTIONS, answers=["the river", "nobody"])
NLI = make_sample(3, context=TEXT, format="nli", answers=["negative"])


def naive(model: Any, tokenizer: Any, sample: EventSample, context: str) -> float:
    """The score in float64 from the texts of the prompt set, a forward for each response."""
    encodes, in_turns = model.config.is_encoder_decoder, bool(tokenizer.chat_template)
    wording = load_prompt_set("default", "chat" if encodes or in_turns else "completion")
    messages = wording.messages(sample, "original", context=context)
    text = "\n\n".join(turn["content"] for turn in messages)
    if in_turns:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, add_special_tokens=encodes)["input_ids"]
    marker = tokenizer(wording.marker(sample.format), add_special_tokens=False)["input_ids"]
    logprobs = {}
    for answer in sample.candidates or sample.answers:
        response = wording.response(sample.model_copy(update={"answers": [answer]}))
        target = tokenizer(response, add_special_tokens=False)["input_ids"]
        assert target[: len(marker)] == marker
        begin = 0 if encodes or in_turns else len(marker)  # a text to continue ends in the marker
        with torch.no_grad():
            if encodes:
                decoder = torch.tensor([[0, *target[:-1]]])
                logits = model(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder).logits[0]
            else:
                logits = model(torch.tensor([[*prompt, *target[begin:]]])).logits[0, len(prompt) - 1 : -1]
        values = logits.double().log_softmax(-1)[torch.arange(len(target) - begin), torch.tensor(target[begin:])]
        logprobs[answer] = values[len(marker) - begin :].sum().item()
    right = [logprobs[answer] for answer in sample.answers]
    others = [math.exp(value) for answer, value in logprobs.items() if answer not in sample.answers]
    return sum(right) / len(right) - (math.log(sum(others)) if others else 0)


# Padded rows (mamba, t5) round differently; a margin of two large sums shows it.
@pytest.mark.parametrize(
    ("kind", "tolerance"), [("llama", 1e-5), ("gemma3", 1e-5), ("gpt2", 1e-5), ("mamba", 1e-4), ("t5", 1e-4)]
)
def test_packed_scores_equal_a_forward_for_each_context(
    kind: str, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = AnswerScorer(str(save_tiny_model(tmp_path, kind)))
    tokenizer = tiny_t5_tokenizer() if kind == "t5" else tiny_tokenizer()
    for sample in (QA, SCQ, MCQ, NLI):
        expected = [naive(tiny_model(kind), tokenizer, sample, context) for context in CONTEXTS]
        assert scorer.scores(sample, CONTEXTS) == pytest.approx(expected, rel=tolerance)
    monkeypatch.setattr(likelihood, "_AT_ONCE", 1)
    assert scorer.scores(NLI, CONTEXTS) == pytest.approx(expected, rel=tolerance), "one context at a time"


@pytest.mark.parametrize("fast", [False, True])
def test_a_tokenizer_that_is_not_fast_and_a_base_model_give_the_same_scores(fast: bool, tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    for file in [*tmp_path.glob("*token*"), *tmp_path.glob("*.jinja")]:
        file.unlink()
    tokenizer = tiny_tokenizer() if fast else ByT5Tokenizer(extra_ids=0)
    tokenizer.chat_template = None if fast else CHAT_TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    scorer = AnswerScorer(str(tmp_path))
    assert scorer.tokenizer.is_fast == fast
    for sample in (QA, SCQ):
        expected = [naive(tiny_model(), tokenizer, sample, context) for context in CONTEXTS]
        assert scorer.scores(sample, CONTEXTS) == pytest.approx(expected, rel=1e-5)


def test_a_sample_that_is_longer_than_the_model_does_not_fit(tmp_path: Path) -> None:
    scorer = AnswerScorer(str(save_tiny_model(tmp_path, positions=1000)))
    assert scorer.fits(QA)
    assert not scorer.fits(QA.model_copy(update={"context": TEXT * 20}))
