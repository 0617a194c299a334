"""`d2e eval --engine openai` over real HTTP: requests, answers kept when the endpoint dies, and resuming."""

import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.judge.options import EndpointOptions
from eval.run.engines.endpoint import EndpointEngine
from eval.run.task import Task, TaskItem
from tests.command import d2e, output_of, refusal_of
from tests.factories import ScriptedServer, bench_rows, predictions, save_bench, scores_of, train_rows
from tests.judge_server import KEY, JudgeServer, Misbehave
from tests.tiny import save_tiny_model, tiny_tokenizer


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    return save_bench(tmp_path / "bench", bench_rows(8), train_rows())


def evaluation(bench: Path, server: JudgeServer, *arguments: str | int) -> list[Any]:
    common = ("--bench", bench, "--base-url", server.url, "--out", bench.parent / "run", "--concurrency", 2)
    return ["eval", "remote-7b", *common, *arguments]


def outputs(bench: Path) -> list[str]:
    return [row["output"] for row in predictions(bench.parent / "run")]


def test_each_sample_is_asked_once_greedily_and_answered_in_file_order(bench: Path, server: JudgeServer) -> None:
    server.reply = lambda user: f"The answer is: {user[:20]}"
    assert "decoded plainly: an endpoint" in output_of(*evaluation(bench, server, "--max-new-tokens", 9))
    prompts = load_prompt_set("default")
    asked = [prompts.messages(sample, "original") for sample in bench_rows(8)]
    assert sorted(str(request["messages"]) for request in server.requests) == sorted(map(str, asked))
    for request in server.requests:
        assert (request["model"], request["max_tokens"], request["temperature"]) == ("remote-7b", 9, 0.0)
    assert set(server.keys) == {f"Bearer {KEY}"}
    assert outputs(bench) == [f"The answer is: {messages[-1]['content'][:20]}" for messages in asked]
    scores = scores_of(bench.parent / "run")
    assert (scores["engine"], scores["alpha"], scores["model"]) == ("openai", 0.0, "remote-7b")
    assert scores["environment"]["endpoint"] == server.url
    assert KEY not in json.dumps(scores)


def test_demonstrations_are_turns_and_the_server_keeps_its_temperature(bench: Path, server: JudgeServer) -> None:
    output_of(*evaluation(bench, server, "--setting", "few_shot", "--temperature", "default"))
    for request in server.requests:
        assert "temperature" not in request
        assert [turn["role"] for turn in request["messages"]] == ["system", *["user", "assistant"] * 3, "user"]


def test_an_endpoint_that_dies_leaves_what_came_for_the_next_call(bench: Path, server: JudgeServer) -> None:
    server.plan = [None] * 5 + [Misbehave(drop=True)] * 3
    error = refusal_of(*evaluation(bench, server, "--attempts", 1, "--concurrency", 1))
    assert f"model 'remote-7b' at {server.url}: cannot be reached" in error
    assert "5 of 8 answers are kept in" in error
    assert "--base-url is right" in error
    assert error.count("error:") == 1
    answered = set(server.users[:5])
    server.plan.clear()
    server.requests.clear()
    output_of(*evaluation(bench, server, "--attempts", 1))
    assert len(server.requests) == 3
    assert not answered & set(server.users)
    assert len(outputs(bench)) == 8
    assert scores_of(bench.parent / "run")["resumed"] == 5


def test_throttled_requests_and_replies_that_are_none_are_sent_again(bench: Path, server: JudgeServer) -> None:
    throttled = Misbehave(429, {"retry-after-ms": "5"})
    server.plan = [Misbehave(body=b"<html>wait</html>"), None, Misbehave(body=b"{}"), throttled]
    output_of(*evaluation(bench, server))
    assert len(server.requests) == 11
    assert scores_of(bench.parent / "run")["engine_counts"] == {"retried": 1}
    assert len(outputs(bench)) == 8


def test_a_refusal_names_the_sample(bench: Path, server: JudgeServer) -> None:
    server.plan = [Misbehave(400, body=b'{"error": {"message": "context length exceeded"}}')]
    error = refusal_of(*evaluation(bench, server, "--concurrency", 1))
    assert "answered 400 to sample 's" in error
    assert "context length exceeded" in error
    assert "--max-new-tokens" in error


def test_answers_of_another_endpoint_or_model_are_refused(bench: Path, server: JudgeServer) -> None:
    output_of(*evaluation(bench, server))
    out = ("--bench", bench, "--out", bench.parent / "run")
    error = refusal_of("eval", "remote-8b", *out, "--base-url", server.url)
    assert f"the model: remote-7b at {server.url} → remote-8b at {server.url}" in error
    with JudgeServer() as other:
        assert d2e("eval", "remote-7b", *out, "--base-url", other.url) == 1
        assert not other.requests


def test_texts_are_sent_to_completions(judge_environment: None) -> None:
    turn = {"role": "user", "content": "Box 0 contains the cup. Statement: Box 0"}
    task = Task(
        name="boxes",
        conversations=[TaskItem("d", f"c{i}", [{**turn, "content": f"{turn['content']} {i}"}], []) for i in "ab"],
        decoding=DecodingConfig(max_new_tokens=7, stop_strings=["\n\n"]),
        as_text=True,
    )

    def reply(path: str, request: dict[str, Any]) -> dict[str, Any]:
        text = f" {request['prompt'][-5:]} and more"
        return unusable.pop() if unusable else {"choices": [{"index": 0, "text": text}]}

    unusable: list[dict[str, Any]] = [{}, {"choices": [{"index": 0, "message": {"content": "in chat form"}}]}]

    with ScriptedServer(reply) as server:
        engine = EndpointEngine(EndpointOptions(model="base", base_url=f"{server.url}/v1", concurrency=1))
        replies = list(engine.generate(engine.prepare(task), task.decoding))
    assert {reply.place: reply.answer for reply in replies} == {0: " x 0 a and more", 1: " x 0 b and more"}
    assert len(server.requests) == 4
    for request in server.requests:
        assert (request["path"], request["model"], request["max_tokens"]) == ("/v1/completions", "base", 7)
        assert request["stop"] == ["\n\n"]


@pytest.mark.parametrize(
    "how",
    [
        ["--max-new-tokens", 12, "--form", "completion"],
        ["--max-new-tokens", 12, "--setting", "few_shot"],
        ["--answer", "likelihood"],
    ],
)
def test_our_own_server_answers_as_decoding_in_process(world: Path, tmp_path: Path, how: list[Any]) -> None:
    from d2e_sft.model.loading import load_model
    from tests.d2e_sft.server.served import serving

    model = str(world / "model")
    common = ["eval", model, "--bench", world / "bench", *how]
    output_of(*common, "--alpha", 0, "--out", tmp_path / "here")
    with serving(load_model(model), name=model, key=None) as server:
        output_of(*common, "--base-url", f"{server.url}/v1", "--out", tmp_path / "there")
    kept = ("id", "output", "answer")
    found = []
    for name in ("here", "there"):
        [file] = tmp_path.glob(f"{name}/eval/*/predictions.jsonl")
        found.append([[json.loads(line)[key] for key in kept] for line in file.read_text("utf-8").splitlines()])
    assert found[0] == found[1]
    assert len(found[0]) == (4 if "--answer" in how else 8)  # half of the rows have options


INCOMPLETE = "without a log-probability for each option's tokens"


def echoed(path: str, request: dict[str, Any]) -> dict[str, Any]:
    """Log-probabilities that depend on the token alone, of choices in any order."""
    values = [[None, *(-token / 100 for token in ids[1:]), 0.0] for ids in request["prompt"]]
    choices = [{"index": i, "logprobs": {"token_logprobs": row}} for i, row in enumerate(values)]
    return {"choices": choices[::-1]}


def by_options(world: Path, server: ScriptedServer, run: Path, *more: Any) -> list[Any]:
    common = ("--bench", world / "bench", "--out", run, "--base-url", f"{server.url}/v1", "--answer", "likelihood")
    return ["eval", "remote-7b", *common, "--tokenizer", world / "model", *more]


def test_options_are_scored_by_what_a_server_echoes(world: Path, tmp_path: Path, judge_environment: None) -> None:
    save_tiny_model(tmp_path / "other", seed=4)
    with ScriptedServer(echoed) as server:
        output_of(*by_options(world, server, tmp_path))
        assert len(server.requests) == 4, "one request a sample"
        other = ("--tokenizer", tmp_path / "other")
        assert "--tokenizer: " in refusal_of(*by_options(world, server, tmp_path, *other))
    encoder = ViewEncoder(tiny_tokenizer(), load_prompt_set("default"), ("original",))
    samples = [sample for sample in bench_rows() if sample.candidates]
    for sample, row in zip(samples, predictions(tmp_path, "bench-likelihood"), strict=True):
        options, given = encoder.option_ids(sample)
        sums = [-sum(option[given:]) / 100 for option in options]
        assert [option["logprob"] for option in row["likelihoods"]] == pytest.approx(sums)
        assert row["answer"] == [sample.candidates[sums.index(max(sums))]]


def with_logprobs(logprobs: Any) -> Any:
    return lambda path, request: {
        "choices": [{**one, "logprobs": logprobs} for one in echoed(path, request)["choices"]]
    }


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (with_logprobs(None), INCOMPLETE),
        (with_logprobs({"token_logprobs": [-1.0]}), INCOMPLETE),
        (lambda *asked: {"choices": echoed(*asked)["choices"][:1]}, INCOMPLETE),
        (lambda *_: (404, {"error": {"message": "no such path"}}), "answered 404: no such path"),
        (lambda *_: (400, {"error": {"message": "echo is not supported"}}), "echo is not supported"),
    ],
)
def test_a_server_that_does_not_echo_is_refused_in_one_message(
    world: Path, tmp_path: Path, judge_environment: None, reply: Any, said: str
) -> None:
    with ScriptedServer(reply) as server:
        error = refusal_of(*by_options(world, server, tmp_path))
    assert said in error
    assert "needs /completions with `echo` and `logprobs`" in error
    assert error.count("error:") == 1
