"""`d2e serve --engine transformers` over real HTTP: answers and scores are those of decoding in process."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.decoding import DecodingConfig, Output, generate_debiased
from d2e_sft.model.loading import LoadedModel
from d2e_sft.server import app
from d2e_sft.server.queue import BatchQueue
from tests.d2e_sft.server.served import KEY, LIMIT, NAME, Served, sent, serving, tiny
from tests.tiny import tiny_model, tiny_t5_tokenizer

SYSTEM = {"role": "system", "content": "Answer shortly."}
QUESTION, CONTEXT = "What broke?", "The river rose, and the bridge broke."
ORIGINAL = f"Context: {CONTEXT}\n{QUESTION}"
MESSAGES = [SYSTEM, {"role": "user", "content": QUESTION}]


def expected(loaded: LoadedModel, original: str, imagined: str | None = None, **options: Any) -> str:
    """The answer to a question in process."""
    tokenizer = loaded.tokenizer

    def ids(user: str) -> list[int]:
        turns = [SYSTEM, {"role": "user", "content": user}]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    decoding = DecodingConfig(**{"max_new_tokens": 24, "alpha": 0.0 if imagined is None else 0.5, **options})
    others = None if imagined is None else [ids(imagined)]
    [answer] = generate_debiased(loaded.model, [ids(original)], others, decoding, stop_ids=[1])
    return str(tokenizer.decode(answer, skip_special_tokens=True))


def ask(server: Served, **fields: Any) -> httpx.Response:
    given = {"model": NAME, "messages": MESSAGES, "temperature": 0, "max_tokens": 24, **fields}
    return server.post("chat/completions", **given)


def said(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [  # fields of a request, and the same in process
    ({}, {}),
    ({"alpha": 0.9}, {"alpha": 0.9}),
    ({"max_tokens": 7}, {"max_new_tokens": 7}),
    ({"max_tokens": None}, {"max_new_tokens": 30}),
    ({"max_tokens": None, "max_completion_tokens": 9, "alpha": 2.0}, {"max_new_tokens": 9, "alpha": 2.0}),
    ({"decoder": "cad:weight=2"}, {"decoder": "cad:weight=2"}),
    ({"decoder": "adacad"}, {"decoder": "adacad"}),
    ({"plausibility": 0.95}, {"plausibility": 0.95}),
]


def test_requests_at_once_are_answered_as_in_process(server: Served, loaded: LoadedModel) -> None:
    with ThreadPoolExecutor(len(CASES)) as pool:
        found = list(pool.map(lambda case: said(ask(server, context=CONTEXT, **case[0])), CASES))
    answers = [expected(loaded, ORIGINAL, QUESTION, **options) for _, options in CASES]
    assert found == answers
    assert len(set(answers)) == len(CASES)


@pytest.mark.parametrize(
    ("fields", "original", "header"),
    [
        ({}, QUESTION, None),
        ({"context": " \n"}, QUESTION, "plain (empty context)"),
        ({"context": CONTEXT, "alpha": 0}, ORIGINAL, "plain (alpha is 0)"),
        ({"context": CONTEXT, "decoder": "plain"}, ORIGINAL, "plain (decoder is plain)"),
        ({"context": CONTEXT, "alpha": 0, "format": "nli"}, f"Premise: {CONTEXT}\n{QUESTION}", "plain (alpha is 0)"),
        ({"messages": [SYSTEM, {"role": "user", "content": [{"type": "text", "text": QUESTION}]}]}, QUESTION, None),
    ],
)
def test_without_something_to_debias_the_answer_is_plain_and_a_header_says_why(
    server: Served,
    loaded: LoadedModel,
    caplog: pytest.LogCaptureFixture,
    fields: dict[str, Any],
    original: str,
    header: str | None,
) -> None:
    answer = ask(server, **fields)
    assert said(answer) == expected(loaded, original)
    assert ("empty context: decoded plainly" in caplog.text) == ("empty" in (header or ""))
    assert answer.headers.get("x-d2e-decoding") == header


def test_usage_and_the_reason_of_the_end(server: Served, loaded: LoadedModel) -> None:
    text = expected(loaded, QUESTION)
    whole = ask(server).json()
    prompt = len(loaded.tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True))
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 24
    assert prompt > whole["usage"]["prompt_tokens"] > prompt / 4  # bytes, and a token for each special text
    stop = text[5:8]
    cut = ask(server, stop=[stop, "never said"]).json()["choices"][0]
    assert (cut["message"]["content"], cut["finish_reason"]) == (text[: text.index(stop)], "stop")


@pytest.mark.parametrize("fields", [{"context": CONTEXT}, {"stop": ["zq"]}])
def test_a_stream_is_the_answer_in_pieces(server: Served, fields: dict[str, Any]) -> None:
    whole = said(ask(server, **fields))
    lines = ask(server, stream=True, stream_options={"include_usage": True}, **fields).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    *chunks, usage = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas) == whole
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "length"]
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 24)
    assert len(chunks) > 5


@pytest.mark.parametrize("stream", [True, False])
def test_decoding_ends_when_the_client_leaves(server: Served, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    begun, ended = threading.Event(), threading.Event()

    def decode(model: Any, tokenizer: Any, *_: Any, **__: Any) -> Iterator[Output]:
        begun.set()
        output = Output(0, tokenizer)
        while not output.cancelled:
            time.sleep(0.02)
            output.tokens.append(70)
            yield output
        ended.set()

    monkeypatch.setattr("d2e_sft.server.queue.generate", decode)
    with sent(server, "chat/completions", {"messages": MESSAGES, "max_tokens": 900, "stream": stream}):
        assert begun.wait(30)
    assert ended.wait(30)
    monkeypatch.undo()
    assert ask(server).status_code == 200


def test_sampling_follows_the_seed(server: Served) -> None:
    drawn = [said(ask(server, context=CONTEXT, temperature=1.5, seed=seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("extra", [{}, {"context": CONTEXT}, {"context": CONTEXT, "format": "nli"}])
def test_a_run_adds_the_system_message_of_its_training_where_a_request_has_none(extra: dict[str, Any]) -> None:
    own = load_prompt_set("default").zero_shot[extra.get("format", "qa")].system
    question = MESSAGES[1:]

    def asked(server: Served, *system: str) -> str:
        turns = [*({"role": "system", "content": text} for text in system), *question]
        return said(ask(server, messages=turns, model="second", **extra))

    names: Any = {"served_model_name": ("first", "second"), "is_worded": True}
    with serving(tiny(), **names) as server:
        assert asked(server) == asked(server, own) != asked(server, "Answer shortly.")
        answer = ask(server, model="first", **extra).json()
        assert (answer["model"], ask(server).status_code) == ("first", 404)
        listed = httpx.get(f"{server.url}/v1/models", headers={"Authorization": f"Bearer {KEY}"}).json()
        assert [model["id"] for model in listed["data"]] == ["first", "second"]
        with serving(tiny(), **names, system="Answer shortly.") as other, serving(tiny(), **names, system="") as none:
            assert asked(other) == asked(server, "Answer shortly.")
            assert asked(none) not in (asked(server), asked(other))


def test_models_health_and_unknown_routes(server: Served) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    assert httpx.get(f"{server.url}/health").status_code == 200
    listed = httpx.get(f"{server.url}/v1/models", headers=headers).json()
    assert [model["id"] for model in listed["data"]] == [NAME]
    assert "GET /v1/nothing" in httpx.get(f"{server.url}/v1/nothing", headers=headers).json()["error"]["message"]
    wrong = httpx.get(f"{server.url}/v1/completions", headers=headers)
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "BadRequestError")


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"context": CONTEXT, "alpha": -0.5}, 400, "alpha"),
        ({"context": CONTEXT, "alpha": True}, 400, "alpha"),
        ({"alpha": 0.5}, 400, "need a context"),
        ({"context": CONTEXT, "decoder": "adcad"}, 400, "adacad"),
        ({"context": CONTEXT, "decoder": "cad", "alpha": 0.5}, 400, "has no"),
        ({"context": CONTEXT, "decoder": "os:getcwd"}, 400, "custom functions"),
        ({"context": CONTEXT, "format": "essay"}, 400, "format"),
        ({"context": CONTEXT, "messages": [SYSTEM]}, 400, "expected a user message"),
        ({"context": "rain " * 1500}, 400, "1024 positions"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, 400, "text"),
        ({"n": 2}, 400, "n=2"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"alhpa": 0.5}, 400, "alhpa"),
        ({"model": "another"}, 404, "expected 'tiny'"),
    ],
)
def test_an_impossible_request_is_an_error(server: Served, fields: dict[str, Any], status: int, message: str) -> None:
    refused = ask(server, **fields)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (status, status)
    assert message in error["message"]


def test_who_may_ask_is_decided_before_a_body_is_read(server: Served) -> None:
    url, keyed = f"{server.url}/v1/chat/completions", {"Authorization": f"Bearer {KEY}"}
    page, large = {"Origin": "http://evil.example"}, b"x" * (LIMIT + 1)
    for headers, status in (({**keyed, **page}, 403), ({**keyed, "Host": "evil.example"}, 403), (page, 403)):
        assert httpx.post(url, headers=headers, content=large).status_code == status
    for given in ({}, {"Authorization": "Bearer another"}):
        assert httpx.post(url, headers=given, content=large).status_code == 401
    assert httpx.post(url, headers=keyed, content=large).status_code == 413
    assert httpx.post(url, headers=keyed, content=b"{}").status_code == 415
    for body, message in ((b"{", "not valid JSON"), (b"[1]", "expected an object"), (b"", "expected an object")):
        refused = httpx.post(url, headers={**keyed, "Content-Type": "application/json"}, content=body)
        assert (refused.status_code, message in refused.json()["error"]["message"]) == (400, True)


def test_a_browser_may_ask_for_an_allowed_page() -> None:
    page = {"Origin": "https://app.example"}
    question = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    with serving(tiny(), allow_origins=("https://app.example",)) as server:
        url = f"{server.url}/v1/chat/completions"
        first = httpx.options(url, headers={**page, **question})  # a browser sends no key with it
        asked = httpx.post(url, headers={**page, "Authorization": f"Bearer {KEY}"}, json={"messages": MESSAGES})
        assert httpx.options(url, headers={**question, "Origin": "https://evil.example"}).status_code == 403
    assert (first.status_code, asked.status_code) == (200, 200)
    assert first.headers["access-control-allow-headers"] == "authorization,content-type"
    assert (
        first.headers["access-control-allow-origin"] == asked.headers["access-control-allow-origin"] == page["Origin"]
    )


def test_a_refused_request_leaves_the_others_of_its_batch_unharmed(server: Served, loaded: LoadedModel) -> None:
    def refused(context: str) -> httpx.Response:
        body = json.dumps({"messages": MESSAGES, "context": context, "max_tokens": 24})
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        return httpx.post(f"{server.url}/v1/chat/completions", headers=headers, content=body)

    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, server, context=CONTEXT) for _ in range(4)]
        half = [pool.submit(refused, "half \ud800") for _ in range(4)]
        assert {said(answer.result()) for answer in answers} == {expected(loaded, ORIGINAL, QUESTION)}
    assert {answer.result().status_code for answer in half} == {400}


def test_scores_that_are_no_numbers_are_an_error_of_the_server() -> None:
    broken = tiny()
    torch.nn.init.constant_(broken.model.lm_head.weight, float("nan"))
    with serving(broken) as server:
        for _ in range(2):  # the server goes on
            refused = ask(server)
            assert (refused.status_code, "NaN" in refused.json()["error"]["message"]) == (500, True)
        assert '"error"' in ask(server, stream=True).text


def test_texts_are_continued(server: Served, loaded: LoadedModel) -> None:
    prompts = ["The river", "A bridge of stone"]
    ids = loaded.tokenizer(prompts)["input_ids"]
    tokens = generate_debiased(loaded.model, ids, None, DecodingConfig(alpha=0, max_new_tokens=8), stop_ids=[1])
    for prompt in (prompts, ids):
        answer = server.post("completions", prompt=prompt, max_tokens=8, temperature=0).json()
        assert [one["text"] for one in answer["choices"]] == loaded.tokenizer.batch_decode(tokens)


def test_echo_gives_the_log_probability_of_each_token_of_a_prompt(server: Served, loaded: LoadedModel) -> None:
    ids = loaded.tokenizer("The river rose")["input_ids"]
    answer = server.post("completions", prompt=[ids], max_tokens=1, echo=True, logprobs=1).json()
    with torch.no_grad():
        logprobs = loaded.model(torch.tensor([ids])).logits[0].log_softmax(-1)
    exact = [logprobs[place, token].item() for place, token in enumerate(ids[1:])]
    first, *rest = answer["choices"][0]["logprobs"]["token_logprobs"]
    assert first is None
    assert rest == pytest.approx(exact, abs=1e-4)
    for packed in (True, False):  # with a head that is known or not, in parts of the prompt
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(app, "decodes_packed", lambda model, packed=packed: packed)
            patched.setattr(app, "_AT_ONCE", 3)
            assert app.prompt_logprobs(loaded.model, ids)[1:] == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize("echo", [{"echo": True, "logprobs": 1, "max_tokens": 0}, {}])
@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "prompt"),
        ([[]], "0 tokens"),
        ([[5], []], "0 tokens"),
        ([[5] * 1025], "1025 tokens; expected at least 1, and at most 102"),
        ([[5, 99_999]], "token 99999"),
        ([[5]] * 65, "65 prompts in a request; expected at most 64"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(server: Served, echo: dict[str, Any], prompt: Any, message: str) -> None:
    refused = server.post("completions", prompt=prompt, **echo)
    assert (refused.status_code, message in refused.json()["error"]["message"]) == (400, True), refused.text


def test_a_prompt_may_fill_the_positions_if_no_answer_follows(server: Served) -> None:
    full = [[5] * 1024]
    assert server.post("completions", prompt=full, echo=True, logprobs=1, max_tokens=0).status_code == 200
    assert server.post("completions", prompt=full).status_code == 400


def test_a_client_that_has_left_is_not_computed_for(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, release, seen = threading.Event(), threading.Event(), list[int]()

    def slow(model: Any, tokens: list[int]) -> list[float | None]:
        seen.append(tokens[0])
        begun.set()
        release.wait(30)
        return [None]

    def noted(self: BatchQueue, jobs: Any) -> None:
        remove(self, jobs)
        release.set()

    remove = BatchQueue._remove
    asked = {"echo": True, "logprobs": 1, "max_tokens": 0}
    monkeypatch.setattr(app, "prompt_logprobs", slow)
    monkeypatch.setattr(BatchQueue, "_remove", noted)
    with sent(server, "completions", {"prompt": [[5], [6]], **asked}):
        assert begun.wait(30)
    assert server.post("completions", prompt=[[7]], **asked).status_code == 200
    assert seen == [5, 7]


def test_an_encoder_decoder_scores_no_prompt() -> None:
    with serving(LoadedModel(tiny_model("t5"), tiny_t5_tokenizer())) as server:
        refused = server.post("completions", prompt="The river", echo=True, logprobs=1, max_tokens=0)
    assert (refused.status_code, "encoder-decoder" in refused.text) == (400, True)
