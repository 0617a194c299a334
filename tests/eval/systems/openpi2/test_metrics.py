"""BERTScore by the package, with a tiny random model."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizer

from d2e_sft.util.errors import UserError
from eval.systems.openpi2.metrics import bert_scorer, best_scores, mean


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny BERT whose vocabulary is letters."""
    pytest.importorskip("bert_score", reason="the extra openpi2 is not installed")
    folder = tmp_path_factory.mktemp("bert")
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(vocabulary), **sizes)).save_pretrained(folder)
    return str(folder)


def test_scores_are_the_packages_own_and_one_for_the_same_text(model: str) -> None:
    scorer = bert_scorer(model, 2)
    same, other, empty, no_reference, again = scorer(
        ["hot", "cold water", "", "hot", "hot"], ["hot", "hot tea", "hot", " ", "hot"]
    )
    assert math.isclose(same, 1, abs_tol=1e-5)
    assert 0 < other < 1
    assert (empty, no_reference) == (0, 0)
    assert again == same
    from bert_score import BERTScorer

    direct = BERTScorer(model_type=model, num_layers=2)
    direct._tokenizer.model_max_length = 512
    assert math.isclose(other, direct.score(["cold water"], ["hot tea"])[2].item(), abs_tol=1e-6)


def test_a_layer_must_be_named_for_an_unknown_model(model: str) -> None:
    with pytest.raises(UserError, match="does not know which of its layers"):
        bert_scorer(model)


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("bert_score", reason="the extra openpi2 is not installed")
    with pytest.raises(UserError, match="cannot be loaded"):
        bert_scorer(str(tmp_path / "absent"), 2)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bert_score", None)
    with pytest.raises(UserError, match="needs the package bert-score") as refused:
        bert_scorer("any")
    assert "d2e-sft[openpi2]" in str(refused.value)


def test_the_best_of_several_references_counts_and_texts_without_one_do_not() -> None:
    lengths = [("abc", ["a", "abcd"]), ("x", []), ("ab", ["ab"])]
    scores = best_scores(lambda texts, references: [len(r) / 10 for r in references], lengths)
    assert scores == [0.4, 0.2]
    assert mean([]) == 0
