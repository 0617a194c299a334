"""Precision, recall and F1 from counts, BERTScore (Zhang et al., ICLR 2020; package `bert-score`), and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table
from eval.compare.measures.measure import Measure, measure

# Candidates and references, one to one → F1 of each.
Scorer = Callable[[Sequence[str], Sequence[str]], list[float]]
NOT_COMPUTED = "not computed"
_REMEDY = "pip install 'd2e-sft[openpi2]'"
_AT_ONCE = 20_000  # pairs; the package holds the states of their texts in memory
_LONGEST = 512  # tokens; the positions of the usual scorer models


@dataclass
class PrecisionRecall:
    """Counts of what was predicted and what was to be found; a ratio without anything below is 0.

    The official counts of hits are not always of the same things (see `schemata`), so recall may exceed 1.
    """

    predicted: int = 0
    predicted_right: int = 0
    gold: int = 0
    gold_found: int = 0

    @property
    def precision(self) -> float:
        return self.predicted_right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return self.gold_found / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0

    def count(self, predicted: Set[object], gold: Set[object]) -> None:
        """Add distinct predictions and gold items; items in both are correct and found."""
        shared = len(predicted & gold)
        self.predicted += len(predicted)
        self.predicted_right += shared
        self.gold += len(gold)
        self.gold_found += shared

    def as_json(self) -> dict[str, Any]:
        """Return ratios and counts."""
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1, **vars(self)}


def f1_measure(name: str, gold: str, figures: Mapping[str, PrecisionRecall]) -> list[Measure]:
    """Return F1 procedure by procedure, from the figures of each procedure."""
    counts = {key: (item.predicted, item.predicted_right, item.gold, item.gold_found) for key, item in figures.items()}
    return measure(name, "f1", "procedures", gold, counts)


@lru_cache(maxsize=1)  # several tasks of a run take the same
def bert_scorer(model: str, layers: int | None = None) -> Scorer:
    """Load a scorer by a Hub name or a folder of a model; UserError if the package is missing, or loading fails.

    `layers` is the layer whose states are compared; None is the package's choice for models that it knows.
    """
    try:
        from bert_score import BERTScorer
    except ImportError as error:
        raise UserError(f"bertscore_model={model}: needs the package bert-score ({error})", remedy=_REMEDY) from None
    try:
        scorer: Any = BERTScorer(model_type=model, num_layers=layers)
    except KeyError:
        raise UserError(
            f"bertscore_model={model}: bert-score does not know which of its layers to compare",
            remedy="name one: bertscore_layers=N, counted from 1 (the paper's model takes 40)",
        ) from None
    except (OSError, ValueError, AssertionError) as error:
        raise UserError(f"bertscore_model={model}: cannot be loaded ({error})", "name a model or folder") from None
    # Tokenizers that know no limit say 10^30, on which the package's call of newer transformers fails.
    scorer._tokenizer.model_max_length = min(scorer._tokenizer.model_max_length, _LONGEST)

    def score(candidates: Sequence[str], references: Sequence[str]) -> list[float]:
        # An empty text scores 0, which the package would say too but for transformers that lack a method it calls.
        pairs = list(zip(candidates, references, strict=True))
        unlike = list(dict.fromkeys(pair for pair in pairs if pair[0].strip() and pair[1].strip()))
        known: dict[tuple[str, str], float] = {}
        for start in range(0, len(unlike), _AT_ONCE):
            some = unlike[start : start + _AT_ONCE]
            _, _, f1 = scorer.score([pair[0] for pair in some], [pair[1] for pair in some])
            known |= zip(some, f1.tolist(), strict=True)
        return [known.get(pair, 0.0) for pair in pairs]

    return score


def best_scores(scorer: Scorer, candidates: Sequence[tuple[str, Sequence[str]]]) -> list[float]:
    """Return for each text the best F1 over its references; texts without a reference are left out, as officially."""
    pairs = [(text, reference) for text, references in candidates for reference in references]
    scores = iter(scorer([text for text, _ in pairs], [reference for _, reference in pairs]))
    return [max(next(scores) for _ in references) for _, references in candidates if references]


def mean(scores: Iterable[float]) -> float:
    """Return the mean, 0 without values."""
    values = list(scores)
    return sum(values) / len(values) if values else 0.0


def cell(value: float | None) -> str:
    """Return three decimals, or a note that there is no value."""
    return NOT_COMPUTED if value is None else f"{value:.3f}"


def bertscore_table(title: str, rows: list[tuple[str, float | None, float | None]]) -> Table:
    """Return BERTScore without and with expansion; its title says how to compute it."""
    missing = all(plain is None and expanded is None for _, plain, expanded in rows)
    title = f"{title}: not computed, set bertscore_model=NAME" if missing else title
    lines = [(what, cell(plain), cell(expanded)) for what, plain, expanded in rows]
    return Table.of(("of", "BERTScore", "+ expansion"), lines, title)


def scored(count: int, total: int, what: str = "procedures") -> str:
    """Return how many are scored, for a title."""
    return f"{count} {what}" if count == total else f"{count} of {total} {what}"
