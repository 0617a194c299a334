"""Training curves from the trainer's `trainer_state.json`, and their charts; a base model has none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from markupsafe import Markup
from pydantic import BaseModel

from d2e_sft.config.d2e import D2ESection
from d2e_sft.config.recipe import recipe_of
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_json_as
from eval.pages.report.plots import Curve, line_chart

CURVES = {
    "loss": "Loss",
    "ce": "Cross-entropy (CE)",
    "kl": "KL between original and refined",
    "preference": "Loss of a pair of answers",
    "rewards/margins": "Reward of the gold answer minus that of the rejected one",
    "debiased_accuracy": "Debiased token accuracy",
    "plain_accuracy": "Plain token accuracy",
    "bias_share": "Bias share: answer tokens guessed without the context",
}
LOSSES = ("loss", "ce", "kl", "preference")  # their terms depend on the objective


@dataclass(frozen=True)
class Training:
    """The log of a training.

    Attributes:
        curves, held_out: Key of `CURVES` → (step, finite value).
        steps: The last logged step.
        tokens_per_second: Median of the logged values.
        terms: The objective with its ratios; losses are only comparable if these are equal.
    """

    curves: dict[str, list[tuple[int, float]]]
    held_out: dict[str, list[tuple[int, float]]]
    steps: int
    tokens_per_second: float | None
    terms: str = ""


class _State(BaseModel):
    log_history: list[dict[str, Any]]


def read_training(run: Path) -> Training | None:
    """Read a run's training log, None without one; UserError if it is not JSON with a list `log_history`."""
    path = run / "trainer_state.json"
    if not path.is_file():
        return None
    remedy = "copy it again from the run's last checkpoint, or remove it to report without curves"
    history = read_json_as(_State, path, "a trainer state", remedy).log_history
    entries = [(int(entry["step"]), entry) for entry in history if "step" in entry]

    def values(name: str) -> list[tuple[int, float]]:
        found = [(step, entry.get(name)) for step, entry in entries]
        return sorted((step, float(x)) for step, x in found if isinstance(x, int | float) and math.isfinite(x))

    def series(prefix: str) -> dict[str, list[tuple[int, float]]]:
        found = {key: points for key in CURVES if (points := values(prefix + key))}
        # Plain SFT logs a KL of 0 and the plain accuracy once more.
        if not any(value for _, value in found.get("kl", ())):
            found.pop("kl", None)
        if _equal(found.get("debiased_accuracy"), found.get("plain_accuracy")):
            found.pop("debiased_accuracy", None)
        return found

    speeds = [value for _, value in values("tokens_per_second")]
    return Training(
        curves=series(""),
        held_out=series("eval_"),
        steps=max((step for step, _ in entries), default=0),
        tokens_per_second=median(speeds) if speeds else None,
        terms=_terms(run),
    )


def _equal(one: Sequence[tuple[int, float]] | None, other: Sequence[tuple[int, float]] | None) -> bool:
    """Whether two curves are the same up to rounding."""
    if not one or not other or len(one) != len(other):
        return one == other
    return all(a[0] == b[0] and math.isclose(a[1], b[1], rel_tol=1e-4) for a, b in zip(one, other, strict=True))


def _terms(run: Path) -> str:
    """The objective in words; empty without a valid recipe."""
    try:
        recipe = recipe_of(str(run))
    except UserError:
        return ""
    if recipe is None:
        return ""
    parts = recipe.d2e.of_training()
    name, views = parts.pop("objective"), parts.pop("views", None)
    parts.pop("view_gradients", None)  # affects gradients, not the loss
    if parts.get("kl_direction") == D2ESection.model_fields["kl_direction"].default:
        del parts["kl_direction"]
    ratios = [f"{key} {value}" for key, value in parts.items() if value]
    return ", ".join(["sft" if name == "d2e" and views == ("original",) else name, *ratios])


def curves(labels: Sequence[str], trainings: Sequence[Training | None]) -> list[Markup]:
    """A chart for each logged value; losses with different terms get separate charts."""
    charts = []
    runs = [(index, label, one) for index, (label, one) in enumerate(zip(labels, trainings, strict=True)) if one]
    # A cross-entropy that is the whole loss is drawn once.
    repeats = [all(_equal(own.get("ce"), own.get("loss")) for own in (one.curves, one.held_out)) for _, _, one in runs]
    every_term = list(dict.fromkeys(training.terms for _, _, training in runs))
    for key, title in CURVES.items():
        separate = key in LOSSES and len(every_term) > 1
        for terms in every_term if separate else [None]:
            drawn = [
                Curve(index, label + suffix, points[key], marked=bool(suffix))
                for (index, label, training), is_loss in zip(runs, repeats, strict=True)
                if (terms is None or training.terms == terms) and not (key == "ce" and is_loss)
                for suffix, points in (("", training.curves), (", held out", training.held_out))
                if key in points
            ]
            if drawn:
                charts.append(line_chart(f"{title} ({terms})" if terms else title, drawn))
    return charts
