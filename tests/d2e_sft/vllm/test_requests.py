"""Pairs in an engine that schedules its rows apart, preempts them and reads prompts in chunks: never a biased token.

The engine is simulated after vLLM's V1 runner: any subset of the rows is computed in a step, prompts in chunks of any
size, and a row whose prompt is unfinished gets logits that mean nothing, whose token is thrown away.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding import PromptPair
from d2e_sft.decoding.decoders import named_decoder
from d2e_sft.vllm.draw import Draw
from d2e_sft.vllm.pairing import PairedRow, debias_rows
from d2e_sft.vllm.requests import PairProgress, PairRequest
from d2e_sft.vllm.rows import BatchRows

VOCAB, SENTINEL, STOP, LIMIT = 17, 16, 15, 9


def _logits(tokens: list[int]) -> torch.Tensor:
    """The 'model': logits that depend on every token before."""
    generator = torch.Generator().manual_seed(hash(tuple(tokens)) & ((1 << 62) - 1))
    return torch.randn(VOCAB, generator=generator)


def _direct(original: list[int], imagined: list[int], decoder: str, draw: Draw | None) -> list[int]:
    answer: list[int] = []
    while len(answer) < LIMIT:
        debiased = named_decoder(decoder)(_logits(original + answer), _logits(imagined + answer))
        debiased[SENTINEL] = float("-inf")
        if draw is not None:
            draw.perturb(debiased, len(answer))
        token = int(debiased.argmax())
        if token == STOP:
            break
        answer.append(token)
    return answer


@dataclass
class _Request:
    row: PairedRow
    prompt: list[int]
    max_tokens: int
    read: int = 0
    outputs: list[int] = field(default_factory=list)
    placeholders: list[int] = field(default_factory=list)
    reported: int = 0


class _Engine:
    """Steps at random over requests; `apart` is how often a row is left out of a step."""

    def __init__(self, generator: random.Random, apart: float) -> None:
        self.random, self.apart = generator, apart
        self.requests: list[_Request] = []
        self.cache: dict[tuple[str, str], int] = {}

    def add(self, request: _Request) -> None:
        """A prompt that was read before is read from the cache, all but its last token; the cache may have lost it."""
        if self.random.random() < 0.9:
            request.read = min(self.cache.get(self._key(request), 0), len(request.prompt) - 1)
        self.requests.append(request)

    def _key(self, request: _Request) -> tuple[str, str]:
        return request.row.pair.split("/")[0], request.row.view

    def step(self) -> list[_Request]:
        chosen = [request for request in self.requests if self.random.random() >= self.apart]
        self.random.shuffle(chosen)
        rows = BatchRows()
        rows.update([], [(i, request.row, request.placeholders) for i, request in enumerate(chosen)], [])
        logits = torch.zeros(len(chosen), VOCAB)
        partial = []
        for i, request in enumerate(chosen):
            if self.random.random() < 0.03:
                request.read = 0  # preempted: prompt and answer are read again
            tokens = request.prompt + request.outputs
            request.read = min(len(tokens), request.read + self.random.randint(1, 12))
            partial.append(request.read < len(tokens))
            self.cache[self._key(request)] = request.read
            logits[i] = _logits(tokens[: request.read])
        debias_rows(logits, rows.in_batch())
        ended = []
        for i, request in enumerate(chosen):
            if partial[i]:
                continue
            token = int(logits[i].argmax())
            request.outputs.append(token)
            request.placeholders.append(-1)
            if token in (STOP, SENTINEL) or len(request.outputs) == request.max_tokens:
                ended.append(request)
        self.requests = [request for request in self.requests if request not in ended]
        return ended


def _progress(limit: int) -> PairProgress:
    return PairProgress(PairRequest(PromptPair([1], [2]), DecodingConfig(max_new_tokens=limit), (STOP,), SENTINEL))


def _decode(pairs: list[Any], apart: float, seed: int, *, stream: bool) -> tuple[list[PairProgress], int]:
    engine = _Engine(random.Random(seed), apart)
    records = [_progress(LIMIT) for _ in pairs]
    while any(not record.complete for record in records):
        for i, (record, (original, imagined, decoder, draw)) in enumerate(zip(records, pairs, strict=True)):
            if record.outcome != "decoupled":
                continue
            name, how = f"{i}/{record.submissions}", DecodingConfig(decoder=decoder)
            for view, prompt in (("original", original), ("imagined", imagined)):
                done = len(record.answer)
                row = PairedRow(name, view, how.alpha, SENTINEL, done=done, draw=draw, decoder=how.decoder)
                engine.add(_Request(row, prompt + record.answer, record.remaining))
            record.submit()
        running = list(engine.requests)
        ended = engine.step()
        for request in running:
            number, submission = request.row.pair.split("/")
            record = records[int(number)]
            if int(submission) != record.submissions - 1 or record.complete:
                continue
            if stream or request in ended:
                new, request.reported = request.outputs[request.reported :], len(request.outputs)
                record.report(request.row.view, new, ended=request in ended)
        engine.requests = [
            request for request in engine.requests if not records[int(request.row.pair.split("/")[0])].complete
        ]
    return records, sum(record.submissions - 1 for record in records)


@pytest.mark.parametrize("stream", [False, True], ids=["at the end", "token by token"])
@pytest.mark.parametrize("apart", [0.0, 0.15, 0.4])
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_answers_are_those_of_decoding_both_prompts_side_by_side(apart: float, stream: bool, sampled: bool) -> None:
    generator = random.Random(7)
    pairs = []
    for i in range(30):
        original = [generator.randrange(VOCAB) for _ in range(generator.randint(8, 40))]
        imagined = [generator.randrange(VOCAB) for _ in range(generator.randint(1, 12))]
        draw = Draw(1.0, seed=i) if sampled else None
        ratio = f"d2e:alpha={generator.choice([0.1, 0.5, 0.9, 1.5])}"
        pairs.append((original, imagined, generator.choice([ratio, ratio, "cad", "adacad", "coiecd"]), draw))
    records, resubmissions = _decode(pairs, apart, seed=int(apart * 100), stream=stream)
    expected = [_direct(*pair) for pair in pairs]
    assert [record.answer for record in records] == expected
    assert {record.outcome for record in records} == {"stop", "length"}
    assert all((record.outcome == "stop") == (len(record.answer) < LIMIT) for record in records)
    if apart:
        assert resubmissions > 30, "the case needs pairs that part"


def test_a_token_counts_when_both_requests_have_it() -> None:
    progress = _progress(5)
    progress.submit()
    assert progress.report("original", [1, 2, 3], ended=False) == []
    assert progress.report("imagined", [1, 2], ended=False) == [1, 2]
    assert progress.outcome == "running"
    assert progress.report("imagined", [SENTINEL], ended=True) == []
    assert progress.report("original", [SENTINEL], ended=True) == []
    assert (progress.outcome, progress.answer, progress.remaining) == ("decoupled", [1, 2], 3)


def test_a_stop_token_of_one_request_alone_ends_nothing() -> None:
    progress = _progress(5)
    progress.submit()
    progress.report("original", [STOP], ended=True)
    progress.report("imagined", [SENTINEL], ended=True)
    assert progress.outcome == "decoupled"
    assert progress.fruitless == 1
    progress.submit()
    progress.report("imagined", [STOP], ended=True)
    progress.report("original", [STOP], ended=True)
    assert (progress.outcome, progress.answer, progress.stopped_by) == ("stop", [], STOP)


def test_an_answer_of_full_length_is_complete_whatever_comes_after() -> None:
    progress = _progress(2)
    progress.submit()
    progress.report("original", [4, 5], ended=True)
    assert progress.report("imagined", [4, 5], ended=True) == [4, 5]
    assert progress.outcome == "length"


def test_a_plain_request_reports_for_both_rows() -> None:
    request = PairRequest(PromptPair([1, 2]), DecodingConfig(alpha=0, max_new_tokens=3), (STOP,), SENTINEL)
    for tokens, outcome, answer in (([4, SENTINEL, STOP], "stop", [4, SENTINEL]), ([4, 5, 6], "length", [4, 5, 6])):
        progress = PairProgress(request)
        progress.submit()
        assert progress.report("original", tokens, ended=True) == answer
        assert progress.outcome == outcome
