"""States: an attribute before and after a step, entity and attribute given (paper section 3.2, table 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eval.score.statistics import bootstrap_mean
from eval.systems.openpi2.bertscore import Scorer
from eval.systems.openpi2.predictions import StatePair
from eval.systems.openpi2.states_scorer import GoldState, exact_matches, states_bertscore
from eval.systems.openpi2.tables import NOT_COMPUTED, cell, scored
from eval.systems.system import ScoreTable, SystemResult


def states_result(
    gold: Mapping[str, Sequence[Sequence[GoldState]]],
    predictions: Mapping[str, Sequence[Sequence[StatePair]]],
    scorer: Scorer | None,
    seed: int = 0,
) -> SystemResult:
    """Accuracy with its interval, officially and with any accepted state, and BERTScore."""
    official = exact_matches(predictions, gold, any_alternative=False)
    corrected = exact_matches(predictions, gold, any_alternative=True)
    bert = None if scorer is None else states_bertscore(predictions, gold, scorer)
    rows, accuracies = [], {}
    for name, matches in (
        ("first accepted state (official)", official),
        ("any accepted state (corrected)", corrected),
    ):
        found = bootstrap_mean([float(match) for match in matches], seed=seed) if matches else None
        accuracies[name] = {"accuracy": found.mean, "low": found.low, "high": found.high} if found else None
        rows.append((name, *((cell(found.mean), cell(found.low), cell(found.high)) if found else ("", "", ""))))
    total = sum(len(step) for steps in gold.values() for step in steps)
    title = f"States, exact match with 95 % interval ({scored(len(official), total, 'changes')}); BERTScore "
    title += cell(bert) if bert is not None else f"{NOT_COMPUTED}, set bertscore_model=NAME"
    share = sum(official) / len(official) if official else 0.0
    detail = {
        "procedures": len(predictions),
        "changes": len(official),
        "official": accuracies["first accepted state (official)"],
        "corrected": accuracies["any accepted state (corrected)"],
        "bertscore": bert,
    }
    table = ScoreTable(title, ("gold", "accuracy", "low", "high"), rows)
    return SystemResult({"states_accuracy": share, "states_bertscore": bert, "states": detail}, [table])
