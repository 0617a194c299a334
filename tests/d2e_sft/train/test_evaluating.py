"""Generated answers: what `compute_metrics` is given, and what `predict` returns."""

from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft import D2EConfig, D2ETrainer, DecodingConfig, answer_samples
from d2e_sft.util.errors import UserError
from tests.tiny import make_sample, make_samples, tiny_model, tiny_tokenizer

ROWS = [*make_samples(5), make_sample(5, format="scq", options=["rain", "wind"], answers=["wind"])]
SAID = [
    "The answer is: The river",
    "So I say: The answer is: the RIVER!",
    "the river",
    "",
    "wind",
    "The correct option is: (B) wind",
]


def trainer(folder: Path, **options: Any) -> D2ETrainer:
    args = D2EConfig(str(folder), bf16=False, disable_tqdm=True, decoding_alpha=0.3, max_new_tokens=5)
    return D2ETrainer(tiny_model(seed=3), args, processing_class=tiny_tokenizer(), **options)


def test_compute_metrics_gets_answers_and_references_of_each_set_in_order(tmp_path: Path) -> None:
    given: list[Any] = []

    def own(answered: Any) -> dict[str, Any]:
        texts, references = answered
        given.append((texts, references))
        return {"length": torch.tensor(float(len(texts))), "eval_named": 1}

    made = trainer(tmp_path, eval_dataset={"a": ROWS[:2], "b": ROWS[2:]}, compute_metrics=own)
    found = made.evaluate()
    assert (found["eval_a_length"], found["eval_b_length"], found["eval_b_eval_named"]) == (2, 4, 1)
    decoding = DecodingConfig(alpha=0.3, max_new_tokens=5)
    expected = answer_samples(tiny_model(seed=3), tiny_tokenizer(), ROWS, decoding)
    assert [text for texts, _ in given for text in texts] == [text.strip() for text in expected]
    assert [one for _, references in given for one in references] == [
        *(sample.answers for sample in ROWS[:-1]),
        ["(B) wind", "wind"],
    ]
    other = made.predict([{"question": "What rose?", "answer": "the river"}])
    assert (other.label_ids, other.metrics["test_length"]) == ([["the river"]], 1)
    assert made.predict("b").predictions == given[1][0], "a set of the trainer by its name"


def test_the_best_step_may_be_that_of_one_of_several_sets(tmp_path: Path) -> None:
    args = D2EConfig(
        str(tmp_path), bf16=False, disable_tqdm=True, max_steps=2, eval_steps=1, save_steps=1,
        metric_for_best_model="b_loss",
    )  # fmt: skip
    sets = {"a": ROWS[:2], "b": ROWS[2:]}
    made = D2ETrainer(
        tiny_model(seed=3), args, processing_class=tiny_tokenizer(), train_dataset=ROWS, eval_dataset=sets
    )
    made.train()
    losses = [entry["eval_b_loss"] for entry in made.state.log_history if "eval_b_loss" in entry]
    assert made.state.best_metric == min(losses)


@pytest.mark.parametrize(
    ("metric", "greater"),
    [("loss", False), ("eval_mine_loss", False), ("mine_refined_ce", False), ("loss_em", True), ("mine_em", True)],
)
def test_a_loss_of_one_of_several_sets_is_better_if_it_is_less(tmp_path: Path, metric: str, greater: bool) -> None:
    for more in ({"load_best_model_at_end": True}, {"early_stopping_patience": 2}):
        args = D2EConfig(str(tmp_path), bf16=False, eval_steps=1, metric_for_best_model=metric, **more)
        assert args.greater_is_better == greater


@pytest.mark.parametrize(
    ("said", "fmt", "right"),
    [
        ("The correct option is: -5", "scq", 1),
        ("The correct option is: (A) -5", "scq", 1),
        ("The correct option is: 5", "scq", 0),
        ("The correct option is: (A) 5", "scq", 0),
        ("The correct options are: (A) -5; (C) ten", "mcq", 1),
        ("The correct options are: (A) -5", "mcq", 0),
    ],
)
def test_an_option_is_right_only_if_it_is_the_correct_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, fmt: str, right: float
) -> None:
    monkeypatch.setattr(D2ETrainer, "decode", lambda *given: [said])
    answers = ["-5", "ten"] if fmt == "mcq" else ["-5"]
    metrics = trainer(tmp_path).predict([make_sample(format=fmt, options=["-5", "5", "ten"], answers=answers)]).metrics
    assert metrics["test_em"] == right
    assert (metrics["test_f1"] == 1) == bool(right)


def test_predictions_are_scored_without_the_response_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(tmp_path)
    monkeypatch.setattr(D2ETrainer, "decode", lambda *given: SAID)
    found = made.predict(ROWS)
    assert list(found.predictions) == ["The river", "the RIVER!", "the river", "", "wind", "(B) wind"]
    assert found.metrics["test_em"] == pytest.approx(4 / 6)  # punctuation, case and articles do not count
    assert found.metrics["test_f1"] == pytest.approx(4 / 6)
    assert found.metrics["test_loss"] > 0


def test_an_objective_that_looks_rows_up_before_training_wants_them_at_the_start(tmp_path: Path) -> None:
    args = D2EConfig(str(tmp_path), bf16=False, disable_tqdm=True, objective="prefer", max_new_tokens=5)
    options: dict[str, Any] = {"processing_class": tiny_tokenizer(), "eval_dataset": {"mine": ROWS[:3]}}
    made = D2ETrainer(
        tiny_model(), args, train_dataset=[make_sample(n, rejected=["a stone"]) for n in range(4)], **options
    )
    assert len(made.predict("mine").predictions) == 3
    with pytest.raises(UserError, match=r"prefer_reference=base is used before training[\s\S]*predict\('NAME'\)"):
        made.predict(ROWS)
