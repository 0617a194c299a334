"""Generated answers: what `compute_metrics` is given, and what `predict` returns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from d2e_sft import D2EConfig, D2ETrainer, DecodingConfig, answer_samples
from d2e_sft.config.recipe import D2ESection
from d2e_sft.util.errors import UserError
from tests.naive import encoded_rows
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


def test_answers_are_scored_however_the_rows_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for user in ("answers", "callbacks"):
        monkeypatch.setattr(f"d2e_sft.train.evaluation.{user}.decode", lambda *given: SAID)
    one = trainer(tmp_path, eval_dataset=ROWS, train_dataset=make_samples(4)).evaluate()
    sets = trainer(tmp_path, eval_dataset={"a": ROWS, "b": ROWS}, train_dataset=make_samples(4)).evaluate()
    later = trainer(tmp_path).evaluate(ROWS)
    for name in ("em", "f1"):
        assert one[f"eval_{name}"] == sets[f"eval_a_{name}"] == sets[f"eval_b_{name}"] == later[f"eval_{name}"]
        assert one[f"eval_{name}"] == pytest.approx(4 / 6)


def test_an_evaluation_decodes_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[tuple[float, str]] = []

    def answer(model: Any, tokenizer: Any, samples: Any, decoding: DecodingConfig, **options: Any) -> list[str]:
        decoded.extend((decoding.alpha, sample.id) for sample in samples)
        return [f"{decoding.alpha} {sample.id}" for sample in samples]

    monkeypatch.setattr("d2e_sft.train.evaluation.answers.answer_samples", answer)
    rows = make_samples(12)
    made = trainer(
        tmp_path, eval_dataset=rows, train_dataset=make_samples(4), compute_metrics=lambda answered: {"own": 1}
    )
    for _ in range(2):
        decoded.clear()
        assert made.evaluate()["eval_own"] == 1
        debiased = [sample for alpha, sample in decoded if alpha]
        plain = {sample for alpha, sample in decoded if not alpha}
        assert debiased == [row.id for row in rows]
        assert (len(plain), len(decoded)) == (8, 12 + 8), "held_out_predictions.jsonl has both answers of eight rows"
    written = [json.loads(line) for line in (tmp_path / "held_out_predictions.jsonl").read_text().splitlines()]
    assert {(row["plain"], row["debiased"]) for row in written} == {(f"0.0 {one}", f"0.3 {one}") for one in plain}


def test_predictions_are_scored_without_the_response_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(tmp_path)
    monkeypatch.setattr("d2e_sft.train.evaluation.answers.decode", lambda *given: SAID)
    found = made.predict(ROWS)
    assert list(found.predictions) == ["The river", "the RIVER!", "the river", "", "wind", "(B) wind"]
    assert found.metrics["test_em"] == pytest.approx(4 / 6)  # punctuation, case and articles do not count
    assert found.metrics["test_f1"] == pytest.approx(4 / 6)
    assert found.metrics["test_loss"] > 0


@pytest.mark.parametrize(
    ("rows", "options", "told"),
    [
        (datasets.Dataset.from_list(encoded_rows(D2ESection(), 2)), {}, "predict and compute_metrics need rows with"),
        (
            [{"question": "What rose?"}],
            {},
            "test_dataset, row 0: no `answer`.*[\\s\\S]*answer_samples takes rows without",
        ),
        (ROWS, {"compute_metrics": lambda answered: None}, "compute_metrics: returned a NoneType; expected a dict"),
    ],
)
def test_what_cannot_be_predicted_is_refused(tmp_path: Path, rows: Any, options: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        trainer(tmp_path, **options).predict(rows)


def test_an_objective_that_looks_rows_up_before_training_wants_them_at_the_start(tmp_path: Path) -> None:
    args = D2EConfig(str(tmp_path), bf16=False, disable_tqdm=True, objective="prefer", max_new_tokens=5)
    options: dict[str, Any] = {"processing_class": tiny_tokenizer(), "eval_dataset": {"mine": ROWS[:3]}}
    made = D2ETrainer(
        tiny_model(), args, train_dataset=[make_sample(n, rejected=["a stone"]) for n in range(4)], **options
    )
    assert len(made.predict("mine").predictions) == 3
    with pytest.raises(UserError, match=r"prefer_reference=base is used before training[\s\S]*predict\('NAME'\)"):
        made.predict(ROWS)
