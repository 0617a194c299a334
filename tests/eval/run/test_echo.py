"""Options scored by an endpoint over real HTTP: a server that echoes log-probabilities, and servers that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.model.loading import load_model
from tests.command import d2e, output_of, refusal_of
from tests.factories import ScriptedServer, bench_row, make_world, predictions, scores_of
from tests.tiny import save_tiny_model

FOLDER = "bench-likelihood"
INCOMPLETE = "without a log-probability for each option's tokens"
Reply = tuple[int, dict[str, Any]]


class CompletionServer(ScriptedServer):
    """Scores prompts at `/v1/completions` with a model of this process; `plan` changes the next replies."""

    def __init__(self, model: Any) -> None:
        super().__init__(self._answer)
        self.model = model
        self.plan: list[Callable[[Reply], Reply]] = []

    def _answer(self, path: str, request: dict[str, Any]) -> Reply:
        choices = [{"index": i, "text": "", "logprobs": self._echo(ids)} for i, ids in enumerate(request["prompt"])]
        reply: Reply = (200, {"object": "text_completion", "choices": choices[::-1]})  # in any order
        return self.plan.pop(0)(reply) if self.plan else reply

    def _echo(self, ids: list[int]) -> dict[str, Any]:
        with torch.no_grad():
            logprobs = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        own = [logprobs[place, token].item() for place, token in enumerate(ids[1:])]
        return {"token_logprobs": [None, *own, logprobs[-1].max().item()]}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = ["rain", "a long drought", "snow"]
    rows = [bench_row(i, format="scq", options=options, answers=[options[i % 3]]) for i in range(4)]
    rows += [bench_row(i) for i in (5, 7)]
    return make_world(tmp_path_factory.mktemp("world"), bench=rows, seed=3)


@pytest.fixture
def server(world: Path, judge_environment: None) -> Iterator[CompletionServer]:
    with CompletionServer(load_model(str(world / "model")).model.eval()) as running:
        yield running


def evaluation(world: Path, run: Path, server: CompletionServer, *more: Any) -> list[Any]:
    common = ("--bench", world / "bench", "--out", run, "--base-url", f"{server.url}/v1", "--concurrency", 2)
    return ["eval", "remote-7b", *common, "--answer", "likelihood", "--tokenizer", world / "model", *more]


def test_an_echoing_endpoint_scores_as_in_process(world: Path, tmp_path: Path, server: CompletionServer) -> None:
    output_of(*evaluation(world, tmp_path / "there", server))
    here = ("--bench", world / "bench", "--out", tmp_path / "here", "--answer", "likelihood")
    assert d2e("eval", world / "model", *here) == 0
    there, at_home = (predictions(tmp_path / name, FOLDER) for name in ("there", "here"))
    assert [row["answer"] for row in there] == [row["answer"] for row in at_home]
    for one, other in zip(there, at_home, strict=True):
        for option, expected in zip(one["likelihoods"], other["likelihoods"], strict=True):
            assert option == {**expected, "logprob": pytest.approx(expected["logprob"], rel=1e-5)}
    assert len(server.requests) == 6, "one request a sample"
    for request in server.requests:
        assert (request["path"], request["model"], request["echo"]) == ("/v1/completions", "remote-7b", True)
    scores = scores_of(tmp_path / "there", FOLDER)
    assert (scores["engine"], scores["answer"], scores["model"]) == ("openai", "likelihood", "remote-7b")


def test_what_came_is_kept_and_the_same_command_goes_on(world: Path, tmp_path: Path, server: CompletionServer) -> None:
    server.plan = [lambda reply: reply] * 4 + [lambda _: (503, {"error": {"message": "gone"}})]
    one_by_one = evaluation(world, tmp_path, server, "--attempts", 1, "--concurrency", 1)
    assert "4 of 6 answers are kept" in refusal_of(*one_by_one)
    server.plan = []
    output_of(*evaluation(world, tmp_path, server))
    assert len(server.requests) == 5 + 2


def changed(**changes: Any) -> Callable[[Reply], Reply]:
    """A server whose choices differ in these fields."""
    return lambda reply: (200, {"choices": [{**choice, **changes} for choice in reply[1]["choices"]]})


@pytest.mark.parametrize(
    ("misbehave", "said"),
    [
        (changed(logprobs=None), INCOMPLETE),
        (changed(logprobs={"token_logprobs": [-1.0]}), INCOMPLETE),
        (lambda reply: (200, {"choices": reply[1]["choices"][:1]}), INCOMPLETE),
        (lambda _: (404, {"error": {"message": "no such path"}}), "answered 404: no such path"),
        (lambda _: (400, {"error": {"message": "echo is not supported"}}), "echo is not supported"),
    ],
)
def test_an_endpoint_that_does_not_is_refused_in_one_message(
    world: Path, tmp_path: Path, server: CompletionServer, misbehave: Callable[[Reply], Reply], said: str
) -> None:
    server.plan = [misbehave] * 6
    error = refusal_of(*evaluation(world, tmp_path, server))
    assert said in error
    assert "needs /completions with `echo` and `logprobs`" in error
    assert error.count("error:") == 1


def test_results_depend_on_the_tokenizer(world: Path, tmp_path: Path, server: CompletionServer) -> None:
    save_tiny_model(tmp_path / "other", seed=4)
    output_of(*evaluation(world, tmp_path, server))
    assert "--tokenizer: " in refusal_of(*evaluation(world, tmp_path, server, "--tokenizer", tmp_path / "other"))
