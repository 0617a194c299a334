"""`/v1/completions` over real HTTP: texts are continued, and given answers scored."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from d2e_sft.decoding import DecodingConfig, generate_debiased
from d2e_sft.model.loading import LoadedModel
from d2e_sft.server import app
from d2e_sft.server.queue import BatchQueue
from tests.d2e_sft.server.served import Served, sent, serving
from tests.tiny import tiny_model, tiny_t5_tokenizer


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
def test_prompts_that_do_not_fit_the_model_are_refused_with_and_without_echo(
    server: Served, echo: dict[str, Any], prompt: Any, message: str
) -> None:
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
