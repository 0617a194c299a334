"""Runs with scores of the paper's tables, and `d2e table` as the tests call it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from d2e_sft.config.recipe import load_recipe
from tests.command import output_of
from tests.factories import choice, make_run

# The paper's Table 4, row "Qwen1.5-7b (D²E-SFT)", with the averages that it prints.
PAPER: dict[tuple[str, str], float] = {
    ("tempreason", "temporal"): 65.6, ("timeqa", "temporal"): 68.5, ("tracie", "temporal"): 76.0,
    ("mctaco", "temporal"): 69.2, ("cider", "temporal"): 72.1,
    ("cster", "causal"): 79.2, ("cosmosqa", "causal"): 79.3, ("ecare", "causal"): 83.7, ("cider", "causal"): 73.5,
    ("cster", "counterfactual"): 79.3, ("cosmosqa", "counterfactual"): 82.8, ("ifqa", "counterfactual"): 68.9,
    ("wiqa", "counterfactual"): 60.6,
    ("ester", "subevent_conditional"): 36.6, ("cider", "subevent_conditional"): 60.1,
}  # fmt: skip

AVERAGES = {"temporal": 70.3, "causal": 78.9, "counterfactual": 72.9, "subevent_conditional": 48.4}

SFT = {**PAPER, ("tracie", "temporal"): 50.0, ("cider", "temporal"): 50.7, ("timeqa", "temporal"): 68.54}


def run(folder: Path, scores: Mapping[tuple[str, str], float] = PAPER, **changes: Any) -> Path:
    """A run with two samples a row, whose EM and F1 have the given mean, in percent."""
    rows = [
        choice(n, False, id=f"{relation}{n}", dataset=dataset, relation=relation, exact_match=0.0, f1=2 * value / 100)
        if value <= 50
        else choice(n, True, id=f"{relation}{n}", dataset=dataset, relation=relation, f1=2 * value / 100 - 1)
        for (dataset, relation), value in scores.items()
        for n in range(2)
    ]
    return make_run(folder, rows, **{"bench": "piper", **changes})


def trained(folder: Path, d2e: str, scores: Mapping[tuple[str, str], float] = PAPER, **changes: Any) -> Path:
    """A run with a recipe that has these `d2e` keys."""
    recipe = f"model: {{name: models/Qwen1.5-7b}}\ndata: {{train: t.parquet}}\nd2e: {d2e}\ntrain: {{output_dir: o}}\n"
    path = run(folder, scores, recipe=recipe, **changes)
    load_recipe(path / "recipe.yaml")  # it is valid
    return path


def printed(*arguments: object) -> str:
    """What is printed, as Markdown where nothing else is asked for."""
    given = [str(argument) for argument in arguments]
    form = [] if {"--format", "--out"} & set(given) else ["--format", "markdown"]
    return output_of("table", *given, *form)


def cells(markdown: str) -> list[list[str]]:
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
