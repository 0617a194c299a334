"""The paper's trained baselines on questions whose answers follow from words, or from the paragraph only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForMultipleChoice, BertModel, PreTrainedTokenizerFast

from tests.command import call, output_of, refusal_of
from tests.eval.systems.files import save
from tests.eval.systems.wiqa.files import question
from tests.tiny import save_tiny_model

WORDS = "pad cls sep unk warm cold rain falls suppose happens how will it affect more less no effect ice"
SPECIALS = {"pad_token": "pad", "cls_token": "cls", "sep_token": "sep", "unk_token": "unk"}


def tiny_bert(folder: Path, kind: Any = BertModel, positions: int = 64) -> Path:
    """Save a random BERT of two layers whose tokens are words."""
    vocab = {word: place for place, word in enumerate(WORDS.split())}
    core = Tokenizer(models.WordLevel(vocab, unk_token="unk"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.BertProcessing(("sep", vocab["sep"]), ("cls", vocab["cls"]))
    PreTrainedTokenizerFast(tokenizer_object=core, **SPECIALS).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    how = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "initializer_range": 0.2}
    kind(BertConfig(vocab_size=len(vocab), max_position_embeddings=positions, **sizes, **how)).save_pretrained(folder)
    return folder


def asked(name: str, step: str, answer: str) -> dict[str, Any]:
    """A question about ice that only the paragraph's step decides."""
    row = question(name, "rain falls", "more ice", answer, "INPARA_EFFECT", 2)
    return {**row, "question": {**row["question"], "para_steps": [step]}}


BY_STEP = [asked(f"q{n}", step, answer) for n, (step, answer) in enumerate([("warm", "less"), ("cold", "more")] * 8)]
FAST = ("--epochs", 30, "--batch-size", 8, "--learning-rate", 1e-3)


def scores_in(run: Path, variant: str = "") -> dict[str, Any]:
    return json.loads((run / "eval" / f"wiqa{variant}" / "scores.json").read_text())


def test_an_encoder_learns_what_the_paragraph_says_and_cannot_without_it(tmp_path: Path) -> None:
    bert, file = tiny_bert(tmp_path / "bert"), save(tmp_path / "train.jsonl", BY_STEP)
    command = ("wiqa-baseline", bert, "--train", file, "--data", file, *FAST)
    printed = output_of(*command, "--out", tmp_path / "with")
    assert "WIQA, train.jsonl" in printed
    assert scores_in(tmp_path / "with")["accuracy"] == 1
    output_of(*command, "--out", tmp_path / "without", "--without-paragraph")
    assert scores_in(tmp_path / "without", "-paragraph=no")["accuracy"] == 0.5
    again = ("wiqa-baseline", tmp_path / "with", "--data", file, "--out", tmp_path / "again")
    output_of(*again)
    assert scores_in(tmp_path / "again")["accuracy"] == 1
    assert "was trained with the paragraph" in refusal_of(*again, "--without-paragraph")
    rescored = output_of("score", "wiqa", tmp_path / "with", "--gold", file, "--json", "-")
    assert json.loads(rescored)["accuracy"] == 1
    assert "with" in output_of("compare", tmp_path / "with", tmp_path / "again", "--bench", "wiqa")


def test_adaboost_reads_the_words_of_cause_and_effect_apart(tmp_path: Path) -> None:
    # The two questions have the same words, so that only their places tell.
    rows = [
        question(*words, "INPARA_EFFECT", 2) for words in (("1", "hot", "cold", "less"), ("2", "cold", "hot", "more"))
    ]
    file = save(tmp_path / "train.jsonl", rows)
    command = ("wiqa-baseline", "adaboost", "--train", file, "--data", file, "--out", tmp_path / "run")
    assert "warning: 2 of the 2 questions of" in call(*command).err  # they were trained on
    assert scores_in(tmp_path / "run")["accuracy"] == 1
    assert "holds results already" in refusal_of(*command)


def test_what_cannot_be_trained_or_answered_is_refused(tmp_path: Path) -> None:
    file = save(tmp_path / "test.jsonl", BY_STEP)
    short = tiny_bert(tmp_path / "short", positions=8)
    common = ("--data", file, "--out", tmp_path / "run")
    for model, options, message in (
        ("adaboost", (), "adaboost: needs questions to train on"),
        (
            "adaboost",
            ("--train", file, "--without-paragraph"),
            "--without-paragraph with adaboost: it is for encoders",
        ),
        (tiny_bert(tmp_path / "bert"), (), "has no trained head for multiple choice"),
        (tmp_path / "bert", ("--epochs", 2), "nothing is trained without --train"),
        (tmp_path / "bert", ("--train", file, "--out", tmp_path / "bert"), "holds a model already"),
        (short, ("--train", file), "expected at most the model's 8 positions"),
        (tmp_path / "none", ("--train", file), "none"),
        ("adabost", ("--train", file), "no such baseline. Did you mean 'adaboost'?"),
        (save_tiny_model(tmp_path / "decoder"), ("--train", file), "is a llama; expected an encoder such as BERT"),
        (tmp_path / "bert", ("--train", tmp_path / "no.jsonl"), "no.jsonl: cannot be read"),
    ):
        assert message in refusal_of("wiqa-baseline", model, *common, *options)
    trained = tiny_bert(tmp_path / "head", BertForMultipleChoice)
    assert "accuracy" in output_of("wiqa-baseline", trained, *common)
