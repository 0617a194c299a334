"""`d2e demo` without a browser: it answers as `d2e eval` does, what is typed becomes a sample, and its words."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.server.queue import BatchQueue
from d2e_sft.util.errors import UserError
from eval.pages.demo.page import (
    Answerer,
    Answers,
    DemoModel,
    Opening,
    find_opening,
    load_demo_model,
    page_of,
    summarise,
)
from eval.pages.demo.question import OWN_EXAMPLES, Question, as_question, examples_for, without_stale_answer
from eval.run.options import EvalOptions
from tests.command import d2e, output_of
from tests.d2e_sft.hub.runs import make_run, write_data_record
from tests.factories import bench_rows, save_bench
from tests.servers import free_port
from tests.tiny import make_sample, save_tiny_model

ALPHA, TOKENS = 0.7, 8
ASKED = Question("qa", "Rain fell. Then the river rose.", "What rose?")


def rows() -> list[EventSample]:
    """All formats; the last context is long."""
    options = {"options": ["the river", "the sun", "the rent"]}
    return [
        *bench_rows(4),
        make_sample(4, split="test", format="scq", **options, answers=["the sun"]),
        make_sample(5, split="test", format="mcq", **options, answers=["the sun", "the rent"]),
    ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    save_tiny_model(folder / "llama", seed=3)
    save_tiny_model(folder / "t5", "t5")
    save_tiny_model(folder / "short", seed=3, positions=400)
    save_bench(folder / "bench", rows())
    return folder


def load(world: Path, kind: str = "llama", alpha: float | None = ALPHA) -> DemoModel:
    return load_demo_model(str(world / kind), EvalOptions(alpha=alpha, max_new_tokens=TOKENS))


def test_a_run_is_asked_as_its_rows_were_worded_and_the_page_says_where_its_alpha_comes_from(
    world: Path, tmp_path: Path
) -> None:
    trained, plain = make_run(tmp_path / "d2e", "llama"), make_run(tmp_path / "sft", "llama", "d2e.objective=sft")
    for wording in ("neutral", "default"):
        write_data_record(trained, wording)
        assert load_demo_model(str(trained), EvalOptions()).prompt_set.name == wording
    alphas = {str(trained): 0.5, str(plain): 0, str(world / "llama"): 0.5}
    models = {name: load_demo_model(name, EvalOptions()) for name in alphas}
    assert {name: model.alpha for name, model in models.items()} == alphas
    said = [model.alpha_is for model in (*models.values(), load(world))]
    assert len(set(said)) == 4
    assert "Opens at 0, the run" in page_of(models[str(plain)], OWN_EXAMPLES, Opening(0, None, ""))


def answering(model: DemoModel) -> Answerer:
    return Answerer(model, BatchQueue(model.loaded, 9))


def outputs(world: Path, kind: str, folder: Path, *options: str, bench: Path | None = None) -> dict[str, str]:
    """What `d2e eval` decodes, by sample."""
    how = ("--max-new-tokens", TOKENS, "--batch-size", 1, *options)
    arguments = ["--bench", bench or world / "bench", "--out", folder, *how]
    assert d2e("eval", world / kind, *arguments) == 0
    (file,) = folder.rglob("predictions*.jsonl")
    return {row["id"]: row["output"] for row in map(json.loads, file.read_text("utf-8").splitlines())}


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_all_three_answers_are_those_of_eval(world: Path, tmp_path: Path, kind: str) -> None:
    plain = outputs(world, kind, tmp_path / "plain", "--alpha", "0")
    debiased = outputs(world, kind, tmp_path / "debiased", "--alpha", str(ALPHA))
    assert plain != debiased
    imagined: dict[str, str] = {}
    for row in rows():
        blank = save_bench(tmp_path / row.id, [row.model_copy(update={"context": ""})])
        imagined |= outputs(world, kind, tmp_path / f"out-{row.id}", "--alpha", "0", bench=blank)
    answerer = answering(load(world, kind))
    for row in rows():
        said = answerer.answer(as_question(row), ALPHA, TOKENS)
        assert (said.plain, said.debiased, said.imagined) == (plain[row.id], debiased[row.id], imagined[row.id])
        assert said.done


def test_answers_grow_token_by_token_and_end_complete(world: Path) -> None:
    async def collect(alpha: float) -> list[Answers]:
        return [state async for state in answering(load(world)).stream(ASKED, alpha, TOKENS)]

    states = asyncio.run(collect(ALPHA))
    assert [state.done for state in states] == [False] * (len(states) - 1) + [True]
    assert len(states) > 1
    assert all(later.debiased.startswith(earlier.debiased) for earlier, later in pairwise(states))
    assert asyncio.run(collect(0.0))[-1] == replace(states[-1], debiased=""), "at α = 0 it is the plain one"


def test_a_long_context_is_cut_and_a_long_question_refused(world: Path) -> None:
    answerer = answering(load(world, "short"))
    assert not answerer.answer(Question("qa", "Rain.", "What?"), ALPHA, TOKENS).cut
    assert answerer.answer(Question("qa", "Rain fell. " * 100, "What?"), ALPHA, TOKENS).cut
    with pytest.raises(UserError, match="does not fit the model's 400 tokens beside 8 new ones"):
        answerer.answer(Question("qa", "Rain.", "What? " * 100), ALPHA, TOKENS)


def test_an_instruction_of_ones_own_takes_the_place_of_the_wording(world: Path) -> None:
    wording, asked = load(world).prompt_set, replace(ASKED, instruction="Answer in French.")
    [system, user] = asked.wording(wording).messages(asked.sample(), "original")
    assert system["content"] == "Answer in French."
    assert user == wording.messages(ASKED.sample(), "original")[1]


def test_the_command_serves_the_page_with_its_ratio(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("eval.pages.demo.page.run", lambda app, sock, message: said.append(message))
    output_of("demo", world / "llama", "--port", free_port(), "--alpha", "0.3", "--max-new-tokens", 4)
    assert "α = 0.3" in said[0]


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
    assert [judged.count(mark) for mark in ("not as expected", "wrong, as expected of a guess")] == [1, 1]
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
