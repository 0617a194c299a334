"""Run folders as `d2e eval` leaves them, made up from a few predictions; for the tests of compare and report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.score.metrics import exact_match, token_f1
from eval.score.predictions import Prediction, write_predictions
from eval.score.scores import score_predictions


def prediction(number: int, right: bool, **changes: Any) -> Prediction:
    """An nli prediction whose gold label is positive."""
    answer = "positive" if right else "negative"
    fields: dict[str, Any] = {
        "id": f"s{number}",
        "dataset": "stories",
        "relation": "temporal",
        "format": "nli",
        "context": f"Context {number}: the kettle boiled and the tea was poured.",
        "question": f"Question {number}: the tea was poured after the kettle boiled.",
        "options": [],
        "gold": ["positive"],
        "output": f"The answer is: {answer}",
        "answer": [answer],
        "extraction": "strict",
        "exact_match": float(right),
        "f1": float(right),
    }
    return Prediction(**{**fields, **changes})


def choice(number: int, right: bool, **changes: Any) -> Prediction:
    """An scq prediction between a cup and a spoon; the cup is right."""
    answer = "a cup" if right else "a spoon"
    fields: dict[str, Any] = {
        "dataset": "kitchen",
        "relation": "causal",
        "format": "scq",
        "options": ["a cup", "a spoon"],
        "gold": ["a cup"],
        "output": f"The correct option is: {answer}",
        "answer": [answer],
    }
    return prediction(number, right, **{**fields, **changes})


def story(
    number: int, subset: str, said: str, *, habit: str | Sequence[str] = "kitchen", **changes: Any
) -> Prediction:
    """A qa prediction of a tagged row: the key is in the garage, and unread one would say `habit`."""
    fields: dict[str, Any] = {
        "dataset": "habit",
        "format": "qa",
        "context": f"Story {number}: Felix takes the key from the barn to the garage.",
        "question": f"Story {number}: where is the key now?",
        "gold": ["garage"],
        "output": f"The answer is: {said}",
        "answer": [said] if said else [],
        "extraction": "strict" if said else "none",
        "exact_match": exact_match(said, ["garage"]),
        "f1": token_f1(said, ["garage"]),
        "subset": subset,
        "habit": [habit] if isinstance(habit, str) else list(habit),
    }
    return prediction(number, False, **{**fields, **changes})


def reply(number: int, said: str, **changes: Any) -> Prediction:
    """A free answer to a context of a conversation, which says 30 days and a receipt."""
    fields: dict[str, Any] = {
        "dataset": "returns",
        "relation": "none",
        "format": "chat",
        "context": "Goods may be returned within 30 days. A receipt is needed.",
        "question": f"How long may I return my lamp number {number}?",
        "gold": ["Within 30 days."],
        "output": said,
        "answer": [said],
        "exact_match": exact_match(said, ["Within 30 days."]),
        "f1": token_f1(said, ["Within 30 days."]),
    }
    return prediction(number, False, **{**fields, **changes})


def make_run(
    folder: Path,
    predictions: Sequence[Prediction],
    *,
    bench: str = "mini",
    sha256: str = "ab" * 32,
    recipe: str | None = None,
    history: list[dict[str, Any]] | None = None,
    **changes: Any,
) -> Path:
    """Write a run folder and return it; `changes` replace fields of its scores.json."""
    results = folder / "eval" / bench
    write_predictions(predictions, results / "predictions.jsonl")
    scores = {
        **score_predictions(predictions).content(),
        "model": f"model of {folder.name}",
        "alpha": 0.5,
        "bench": {"name": bench, "file": f"data/{bench}/test.parquet", "sha256": sha256},
        "prompt_set": "default",
        "subset": None,
        "seconds": 12.5,
        "environment": {"torch": "2.9.0", "device": "cpu"},
        **changes,
    }
    (results / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    if recipe is not None:
        (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
    if history is not None:
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}), encoding="utf-8")
    return folder
