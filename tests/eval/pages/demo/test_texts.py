"""The demo without a browser: what is typed becomes a sample, and what is said about three answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.util.errors import UserError
from eval.pages.demo.page import Answerer, Answers, DemoModel, Opening, find_opening, summarise
from eval.pages.demo.question import OWN_EXAMPLES, Question, as_question, examples_for, without_stale_answer
from tests.factories import bench_rows, save_bench
from tests.tiny import make_sample

GIVEN = {"fmt": "scq", "context": "It was icy.", "question": "What came?", "options": "he fell\nhe flew\n"}


@pytest.mark.parametrize("fmt", ["qa", "nli", "scq", "mcq"])
def test_a_sample_that_is_typed_is_the_sample(fmt: str) -> None:
    options = ["the river", "the sun"] if fmt in ("scq", "mcq") else []
    answers = {"nli": ["negative"], "scq": ["the sun"], "mcq": options, "qa": ["the river", "a river"]}[fmt]
    sample = make_sample(3, format=fmt, options=options, answers=answers)
    typed = as_question(sample).sample()
    same = {"format", "context", "question", "options", "answers"}
    assert typed.model_dump(include=same) == sample.model_dump(include=same)
    asked = Question(**{**GIVEN, "fmt": fmt})
    assert asked.sample().question == "What came?"
    assert not asked.is_answered, "no answer need be expected"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": " \n"}, "The context is empty"),
        ({"fmt": "nli", "question": ""}, "The hypothesis is empty"),
        ({"options": "\n"}, "options: empty for a sample of format scq"),
        ({"expected": "he fel"}, "answers: ['he fel'] not among the options"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_said(changes: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as error:
        Question(**{**GIVEN, **changes}).sample()
    assert message in error.value.message


def test_an_examples_answer_is_forgotten_once_something_else_is_asked() -> None:
    example = OWN_EXAMPLES[0]
    changes = ({"question": "Who ate it?"}, {"context": "Snow fell."}, {"fmt": "nli"})
    others = [replace(example, **change) for change in changes]
    assert [without_stale_answer(typed, example).expected for typed in others] == ["", "", ""]
    same = [example, replace(example, expected="bread"), replace(example, instruction="Be brief.")]
    assert [without_stale_answer(typed, example) for typed in same] == same
    own = replace(example, question="Who ate it?", expected="Ann")
    assert without_stale_answer(own, example) == own


def test_examples_are_drawn_from_the_benchmark_or_the_test_rows_beside_the_training_data(tmp_path: Path) -> None:
    save_bench(tmp_path / "bench", bench_rows(6))
    drawn = set(examples_for("any", str(tmp_path / "bench"), 4, seed=1))
    assert len(drawn) == 4
    assert drawn <= {as_question(row) for row in bench_rows(6)}
    save_bench(tmp_path / "data", bench_rows(2))
    run = tmp_path / "run"
    run.mkdir()
    recipe = {"data": {"train": str(tmp_path / "data/train.parquet")}, "train": {"output_dir": str(run)}}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    assert examples_for(str(run), None, 8, 0) == [as_question(row) for row in bench_rows(2)]
    (tmp_path / "data/test.parquet").unlink()
    assert examples_for(str(run), None, 8, 0) == list(OWN_EXAMPLES)


def summary(
    plain: str, debiased: str, imagined: str, expected: str = "", cut: bool = False, alpha: float = 0.5
) -> str:
    asked = Question("qa", "The dam broke.", "What broke?", expected=expected)
    form = "The answer is: "
    answers = Answers(form + plain, form + debiased, form + imagined, cut=cut, done=True)
    return summarise(asked, load_prompt_set("default"), answers, alpha)


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (("the dam", "The dam.", "dam"), "the same with and without the context, and debiasing at this α does not"),
        (("a cup", "the dam", "a cup"), "The plain answer is the same without the context"),
        (("the dam", "the dam", "a cup"), "The context changes the answer, and debiasing at this α keeps it"),
        (("the dam", "a cup", "a cup"), "the debiased one is the same as without the context"),
        (("the dam", "a car", "a cup"), "and debiasing changes it again"),
    ],
)
def test_a_summary_tells_whether_the_answer_is_a_habit(said: tuple[str, str, str], verdict: str) -> None:
    assert verdict in summary(*said)


def test_a_summary_says_who_is_right_only_where_that_is_known() -> None:
    judged = summary("a cup", "the dam", "a cup", expected="The dam\nthe wall")
    assert [part.count("right") for part in judged.split("<dt>")[1:]] == [0, 2, 0]  # its class, and the word
    assert "Expected: <strong>The dam; the wall</strong>" in judged
    assert "✓" not in summary("a cup", "the dam", "a cup") + summary("a", "b", "c")


EXAMPLES = [Question("qa", "It rained.", f"What {n}?") for n in range(3)]
MODEL = DemoModel("m", cast(Any, None), load_prompt_set("default"), DecodingConfig(alpha=0.5, max_new_tokens=8))


@dataclass
class Said:
    """Stands for the model: its plain and debiased answer to each example; None is one that is too long."""

    answers: list[tuple[str, str] | None]

    def answer(self, question: Question, alpha: float, limit: int) -> Answers:
        assert (alpha, limit) == (0.5, 8)
        said = self.answers[EXAMPLES.index(question)]
        if said is None:
            raise UserError("too long")
        plain, debiased = (f"The answer is: {text}" for text in said)
        return Answers(plain, debiased, "", done=True)


def opening(*answers: tuple[str, str] | None, patience: float = 60.0) -> Opening:
    return find_opening(MODEL, cast(Answerer, Said(list(answers))), EXAMPLES, patience=patience)


def test_the_first_example_with_two_answers_is_shown() -> None:
    found = opening(("barn", "barn"), ("barn", "garage"), ("a", "b"))
    assert (found.place, found.told) == (1, "The first of 2 examples tried whose two answers differ at α = 0.5.")
    assert found.answers.debiased == "The answer is: garage"
    assert opening(None, ("a", "b"), None).place == 1, "one that is too long is passed over"
    assert opening(None, None, None) == Opening(0, None, "")
    assert opening(("barn", "the Barn."), ("a", "a"), ("b", "b")).place == 0, "none differs as they are scored"
    assert opening(("a", "a"), ("a", "b"), None, patience=-1.0).place == 0, (
        "a slow model does not keep anybody waiting"
    )
