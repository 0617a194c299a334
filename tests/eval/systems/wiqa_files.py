"""Questions and influence graphs in WIQA's file formats, written for the tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from eval.systems.wiqa.benchmark import WIQA, WiqaScoreOptions
from eval.systems.wiqa.gold import WiqaQuestion
from eval.systems.wiqa.graphs import Graph, read_graphs
from tests.eval.systems.files import OFFICIAL, save

STEPS = ["Rain falls on the hill", "Water runs down the hill", "The pond fills", ""]


def question(
    name: str, cause: str, effect: str, answer: str, kind: str, nodes: int, **metadata: Any
) -> dict[str, Any]:
    return {
        "question": {
            "stem": f"suppose {cause} happens, how will it affect {effect}.",
            "para_steps": STEPS,
            "answer_label": answer,
            "answer_label_as_choice": {"more": "A", "less": "B", "no_effect": "C"}[answer],
            "choices": [{"label": "A", "text": "more"}, {"label": "B", "text": "less"}],
        },
        "metadata": {
            "ques_id": name,
            "graph_id": "7",
            "para_id": "31",
            "question_type": kind,
            "path_len": nodes,
            **metadata,
        },
    }


# Z → X → Y → A in texts, with two of them asked in other words; "a moth sits on a leaf" is of another paragraph.
QUESTIONS = [
    question("q1", "dark clouds", "more rain", "more", "EXOGENOUS_EFFECT", 2),
    question("q2", "more rain", "more water on the hill", "more", "INPARA_EFFECT", 2),
    question("q3", "more rain", "less water on the hill", "less", "INPARA_EFFECT", 2),
    question("q4", "dark clouds", "more water on the hill", "more", "EXOGENOUS_EFFECT", 3),
    question("q5", "more rain", "a FULLER pond", "more", "INPARA_EFFECT", 3),
    question("q6", "a moth sits on a leaf", "more rain", "no_effect", "OUTOFPARA_DISTRACTOR", 0),
]

GRAPH, OTHER = OFFICIAL["wiqa_graphs"]


def read_questions(path: Path) -> Sequence[WiqaQuestion]:
    return WIQA.read_gold(path, None)


def graphs(folder: Path, *rows: dict[str, Any]) -> dict[str, Graph]:
    return read_graphs(save(folder / "graphs.jsonl", rows or (GRAPH, OTHER)))


def score(folder: Path, answers: dict[str, Any], questions: Any = QUESTIONS, **options: Any) -> dict[str, Any]:
    lines = [{"ques_id": name, "answer": answer} for name, answer in answers.items()]
    paths = save(folder / "p.jsonl", lines), save(folder / "gold.jsonl", questions)
    return WIQA.score(*paths, WiqaScoreOptions(**options)).scores


WORDS = "pad cls sep unk warm cold rain falls suppose happens how will it affect more less no effect ice"
SPECIALS = {"pad_token": "pad", "cls_token": "cls", "sep_token": "sep", "unk_token": "unk"}


def tiny_bert(folder: Path, positions: int = 64) -> Path:
    """Save a random BERT of two layers whose tokens are words."""
    vocab = {word: place for place, word in enumerate(WORDS.split())}
    core = Tokenizer(models.WordLevel(vocab, unk_token="unk"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.BertProcessing(("sep", vocab["sep"]), ("cls", vocab["cls"]))
    PreTrainedTokenizerFast(tokenizer_object=core, **SPECIALS).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    how = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "initializer_range": 0.2}
    BertModel(BertConfig(vocab_size=len(vocab), max_position_embeddings=positions, **sizes, **how)).save_pretrained(
        folder
    )
    return folder
