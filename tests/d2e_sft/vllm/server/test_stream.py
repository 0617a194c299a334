"""What the caller of a pair sees: pieces that make one answer, cut at its stop strings."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")

from openai import OpenAI

from tests.d2e_sft.vllm.served import ask

pytestmark = pytest.mark.timeout(900)


def test_a_stream_is_one_answer_in_pieces_with_its_usage(client: OpenAI) -> None:
    whole = ask(client)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert sum(bool(piece) for piece in pieces) > 3
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage


def test_stop_strings_end_an_answer_as_in_vllm(client: OpenAI) -> None:
    text = ask(client).choices[0].message.content
    stop = text[8:11]
    for stream in (False, True):
        if stream:
            chunks = [c for c in ask(client, stop=[stop], stream=True) if c.choices]
            cut = "".join(c.choices[0].delta.content or "" for c in chunks)
            reason = chunks[-1].choices[0].finish_reason
        else:
            choice = ask(client, stop=[stop]).choices[0]
            cut, reason = choice.message.content, choice.finish_reason
        assert (cut, reason) == (text[: text.index(stop)], "stop")
