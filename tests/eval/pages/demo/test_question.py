"""What a visitor types is checked, and becomes the sample that it was where it came from one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from d2e_sft.util.errors import UserError
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
