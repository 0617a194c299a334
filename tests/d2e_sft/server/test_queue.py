"""The queue of `d2e serve`: what is decoded together, what is sent of it, what is refused, and when decoding ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding import Output, PromptPair
from d2e_sft.model.loading import LoadedModel
from d2e_sft.server import queue as queues
from d2e_sft.server.context import RequestError
from d2e_sft.server.queue import BatchQueue, Piece, Prompt, QueuedJob
from tests.tiny import tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return LoadedModel(tiny_model("llama", seed=4).eval(), tiny_tokenizer())


def prompt(**options: Any) -> Prompt:
    decoding = DecodingConfig(**{"alpha": 0.5, "max_new_tokens": 4, **options})
    alpha = decoding.alpha if decoding.decoder == "d2e" else None
    return Prompt(PromptPair([5, 6, 7], [5, 7], alpha=alpha), decoding, (1,))


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The longest answers of the prompts of each batch."""
    found: list[list[int]] = []
    real = BatchQueue._decode

    def noted(self: BatchQueue, jobs: list[Any]) -> None:
        found.append([job.prompt.decoding.max_new_tokens for job in jobs])
        real(self, jobs)

    monkeypatch.setattr(BatchQueue, "_decode", noted)
    return found


async def whole(queue: BatchQueue, *prompts: Prompt) -> list[int]:
    """The number of tokens of each answer."""
    tokens = [0] * len(prompts)
    async for piece in queue.answers(prompts):
        tokens[piece.index] = piece.tokens
    return tokens


def test_prompts_of_one_decoder_are_one_batch_and_sampled_ones_are_alone(
    loaded: LoadedModel, batches: list[list[int]]
) -> None:
    async def asked() -> list[int]:
        return await whole(
            BatchQueue(loaded, 9),
            prompt(max_new_tokens=2),
            prompt(max_new_tokens=3, decoder="cad"),
            prompt(max_new_tokens=4, temperature=1.0),
            prompt(max_new_tokens=5, alpha=0.1),
            prompt(max_new_tokens=6, temperature=1.0),
            prompt(max_new_tokens=7, decoder="cad"),
        )

    assert asyncio.run(asked()) == [2, 3, 4, 5, 6, 7]
    assert batches == [[2, 5], [3, 7], [4], [6]]


@pytest.fixture
def held(loaded: LoadedModel) -> Iterator[BatchQueue]:
    """A queue with room for two prompts, whose thread waits until the test ends."""
    release, queue = threading.Event(), BatchQueue(loaded, 2)
    with queue._entered([release.wait]):
        while queue._waiting:
            pass
        yield queue
        release.set()


def test_a_full_queue_refuses_with_429_and_too_many_prompts_of_a_request_with_400(held: BatchQueue) -> None:
    async def full() -> None:
        waiting = [asyncio.create_task(whole(held, prompt())) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="2 prompts are waiting") as refused:
            await whole(held, prompt())
        assert refused.value.status == 429
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(full())
    held.check_room(2)  # they no longer wait
    with pytest.raises(RequestError, match="3 prompts in a request; expected at most 2") as refused:
        asyncio.run(whole(held, *[prompt()] * 3))
    assert refused.value.status == 400


@pytest.mark.parametrize("place", ["generate", "budget_of"])
def test_an_error_of_a_batch_reaches_its_requests_and_the_next_batch_is_decoded(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise MemoryError("no room")

    queue = BatchQueue(loaded, 9)
    with monkeypatch.context() as patched:
        patched.setattr(queues, place, fail)
        with pytest.raises(RequestError, match="MemoryError: no room"):
            asyncio.run(whole(queue, prompt(), prompt()))
    assert "MemoryError" in capsys.readouterr().err
    assert asyncio.run(whole(queue, prompt())) == [4]


def test_the_first_forwards_are_those_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = LoadedModel(tiny_model("llama", seed=5).eval(), tiny_tokenizer())

    def fail(*_: Any, **__: Any) -> Any:
        raise MemoryError("no room for a first forward")

    monkeypatch.setattr("d2e_sft.model.packing_support.choose_layout", fail)
    with pytest.raises(MemoryError, match="first forward"):
        BatchQueue(fresh, 9)


class Texts:
    """Decodes a token as one of the given texts."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "".join(self._texts[token] for token in tokens)


STOP = "\n\nQuestion:"
ANSWERS = [  # the decoded text, what is sent of it, and why it ends
    (f"Paris{STOP} Who?", "Paris", "stop"),
    (STOP, "", "stop"),
    ("Paris\n\nQuestions", "Paris\n\nQuestions", "stop"),
    ("Oui", "Oui", "stop"),
]


@pytest.mark.parametrize(("text", "sent", "finish"), ANSWERS)
def test_nothing_of_a_stop_text_is_sent_wherever_the_tokens_part(text: str, sent: str, finish: str) -> None:
    cuts = [
        [text[:place], text[place:middle], text[middle:]] for middle in range(1, len(text)) for place in (1, middle)
    ]
    for texts in [list(text), [text], *cuts]:
        pieces: list[Piece] = []
        asked = Prompt(PromptPair([5], None), DecodingConfig(max_new_tokens=99), (1,), (STOP, "never said"))
        job, output = QueuedJob(asked, 0, pieces.append), Output(0, Texts(texts))
        for token in range(len(texts)):
            output.tokens.append(token)
            if not job.ended:
                job.take(output)
        output.ended = True
        if not job.ended:
            job.take(output)
        assert "".join(piece.text for piece in pieces) == sent, texts
        assert [piece.finish for piece in pieces if piece.finish] == [finish]
