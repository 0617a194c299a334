"""`d2e demo` answers as `d2e eval` does, token by token."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path

import pytest

from d2e_sft.data.sample import EventSample
from d2e_sft.server.queue import BatchQueue
from d2e_sft.util.errors import UserError
from eval.pages.demo.page import Answerer, Answers, DemoModel, load_demo_model
from eval.pages.demo.question import Question, as_question
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


def test_a_run_is_asked_as_its_rows_were_worded(tmp_path: Path) -> None:
    run = make_run(tmp_path, "llama")
    for wording in ("neutral", "default"):
        write_data_record(run, wording)
        assert load_demo_model(str(run), EvalOptions()).prompt_set.name == wording


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
    async def collect() -> list[Answers]:
        return [state async for state in answering(load(world)).stream(ASKED, ALPHA, TOKENS)]

    states = asyncio.run(collect())
    assert [state.done for state in states] == [False] * (len(states) - 1) + [True]
    assert len(states) > 1
    for earlier, later in pairwise(states):
        assert later.debiased.startswith(earlier.debiased)


def test_a_long_context_is_cut_and_a_long_question_refused(world: Path) -> None:
    answerer = answering(load(world, "short"))
    assert not answerer.answer(Question("qa", "Rain.", "What?"), ALPHA, TOKENS).cut
    assert answerer.answer(Question("qa", "Rain fell. " * 100, "What?"), ALPHA, TOKENS).cut
    with pytest.raises(UserError, match="does not fit the model's 400 tokens beside 8 new ones"):
        answerer.answer(Question("qa", "Rain.", "What? " * 100), ALPHA, TOKENS)


def test_an_instruction_of_ones_own_takes_the_place_of_the_wording(world: Path) -> None:
    model = load(world)
    asked = Question("qa", ASKED.context, ASKED.question, instruction="Answer in French.")
    [system, user] = asked.wording(model.prompt_set).messages(asked.sample(), "original")
    assert system["content"] == "Answer in French."
    assert user == model.prompt_set.messages(ASKED.sample(), "original")[1]
    answerer = answering(model)
    assert answerer.answer(asked, ALPHA, TOKENS) != answerer.answer(ASKED, ALPHA, TOKENS)


def test_the_ratio_is_the_one_asked_for_else_one_half(world: Path) -> None:
    assert load(world).alpha == ALPHA
    assert load(world, alpha=None).alpha == 0.5
    said = answering(load(world)).answer(ASKED, 0.0, TOKENS)
    assert said.plain != said.imagined
    assert said.debiased == "", "at α = 0 it is the plain one"


def test_the_command_serves_the_page_with_its_ratio(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("eval.pages.demo.page.run", lambda app, sock, message: said.append(message))
    output_of("demo", world / "llama", "--port", free_port(), "--alpha", "0.3", "--max-new-tokens", 4)
    assert "α = 0.3" in said[0]
