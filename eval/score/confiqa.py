"""ConFiQA's measures of one answer, by the rules of its authors' program (Bi et al., "Context-DPO", 2025).

Answers are compared as SQuAD normalises them, and an output contains an answer if it has its characters.

- **P_c**: the output contains an accepted answer, no known one and no negation word.
- **P_o**: the output contains the known answer, whatever else it contains.
- **EM**: the answer is an accepted one, without a negation word.
- **In-Acc**: the output contains an accepted answer, whatever else it contains (as OCC-RAG reports it).

The memorisation ratio M_R of several answers is P_o / (P_c + P_o). In contrast to the program, thoughts of a reasoning
model do not count, EM is about the extracted answer, and an alias that normalises to nothing is never contained.
"""

from __future__ import annotations

from collections.abc import Iterable

from d2e_sft.util.answers import normalise
from eval.score.extract import without_thoughts
from eval.score.predictions import Prediction

DATASETS = ("confiqa_qa", "confiqa_mr", "confiqa_mc")
MEASURES = {f"confiqa {name}": name for name in ("P_c", "P_o", "M_R", "In-Acc", "EM")}  # in the frame → in tables
RATIO = ("confiqa P_o", "confiqa P_c", "confiqa M_R")  # part, rest and name of the memorisation ratio
_NEGATION_WORDS = "no not never none cannot nobody nothing nowhere neither nor without hardly"
_NEGATIONS = frozenset(_NEGATION_WORDS.split())


def confiqa_measures(prediction: Prediction) -> dict[str, float]:
    """Return `confiqa` and measure → value of a conflict row, without M_R; nothing of other rows."""
    if prediction.dataset not in DATASETS or prediction.subset != "conflict":
        return {}
    output, answer = normalise(without_thoughts(prediction.output)), " ".join(prediction.answer)
    gold, known = _is_in(output, prediction.gold), _is_in(output, prediction.habit)
    values = {
        "P_c": gold and not known and _NEGATIONS.isdisjoint(output.split()),
        "P_o": known,
        "In-Acc": gold,
        "EM": normalise(answer) in map(normalise, prediction.gold) and _NEGATIONS.isdisjoint(answer.split()),
    }
    return {f"confiqa {name}": float(value) for name, value in values.items()}


def _is_in(text: str, answers: Iterable[str]) -> bool:
    return any(key in text for answer in answers if (key := normalise(answer)))
