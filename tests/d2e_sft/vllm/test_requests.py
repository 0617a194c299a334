"""Pairs in an engine that schedules its rows apart, preempts them and reads prompts in chunks: never a biased token.

The engine is simulated after vLLM's V1 runner: any subset of the rows is computed in a step, prompts in chunks of any
size, and a row whose prompt is unfinished gets logits that mean nothing, whose token is thrown away.
"""

from __future__ import annotations

import asyncio
import random
import sys
from dataclasses import dataclass, field, replace
from itertools import chain
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding import PromptPair
from d2e_sft.decoding.decoders import named_decoder
from d2e_sft.decoding.pairs import finished, resolved
from d2e_sft.util.errors import UserError
from d2e_sft.vllm import requests as gates
from d2e_sft.vllm.offline import RequestBatch, score
from d2e_sft.vllm.pairing import BatchRows, Draw, PairedRow, debias_rows, read_row
from d2e_sft.vllm.requests import PairProgress, PairRequest, RowGate
from tests.d2e_sft.decoding.pairs import scored
from tests.tiny import tiny_model

VOCAB, SENTINEL, STOP, LIMIT = 17, 16, 15, 9


def _logits(tokens: list[int]) -> torch.Tensor:
    """The 'model': logits that depend on every token before."""
    generator = torch.Generator().manual_seed(hash(tuple(tokens)) & ((1 << 62) - 1))
    return 3 * torch.randn(VOCAB, generator=generator)


def _direct(original: list[int], imagined: list[int], decoder: str, draw: Draw | None) -> list[int]:
    answer: list[int] = []
    chosen = named_decoder(decoder)
    while len(answer) < LIMIT:
        debiased = chosen(_logits(original + answer), _logits(imagined + answer))
        if decoder != "plain":  # a plain request may choose any token
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
    name: str
    row: PairedRow | None
    prompt: list[int]
    parameters: Any
    read: int = 0
    outputs: list[int] = field(default_factory=list)
    placeholders: list[int] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, ...]:
        """What the cache knows it by: its prompt without the answer so far, and its view."""
        done, view = (0, "plain") if self.row is None else (self.row.done, self.row.view)
        return str(self.prompt[: len(self.prompt) - done]), view


class _Engine:
    """Steps at random over requests; `apart` is how often a row is left out of a step."""

    def __init__(self, generator: random.Random, apart: float, rows: int) -> None:
        self.random, self.apart = generator, apart
        self.requests: list[_Request] = []
        self.cache: dict[tuple[str, ...], int] = {}
        self.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=rows, policy="priority"))

    def add_request(self, name: str, prompt: Any, parameters: Any, priority: int) -> None:
        """A prompt that was read before is read from the cache, all but its last token; the cache may have lost it."""
        request = _Request(name, read_row(parameters.extra_args), prompt, parameters)
        if self.random.random() < 0.9:
            request.read = min(self.cache.get(request.key, 0), len(prompt) - 1)
        self.requests.append(request)
        assert len(self.requests) <= self.vllm_config.scheduler_config.max_num_seqs

    def step(self) -> list[Any]:
        chosen = self._chosen()
        rows = BatchRows()
        rows.update([], [(i, request.row, request.placeholders) for i, request in enumerate(chosen)], [])
        logits = torch.zeros(len(chosen), VOCAB)
        partial = []
        for i, request in enumerate(chosen):
            if self.random.random() < 0.03:
                request.read = 0  # preempted: prompt and answer are read again
            tokens = request.prompt + request.outputs
            request.read = min(len(tokens), request.read + self._budget())
            partial.append(request.read < len(tokens))
            self.cache[request.key] = request.read
            logits[i] = _logits(tokens[: request.read])
        debias_rows(logits, rows.in_batch())
        ended = []
        for i, request in enumerate(chosen):
            if partial[i]:
                continue
            request.outputs.append(int(logits[i].argmax()))
            request.placeholders.append(-1)
            stops = request.parameters.stop_token_ids
            if request.outputs[-1] in stops or len(request.outputs) == request.parameters.max_tokens:
                ended.append(request)
        self.requests = [request for request in self.requests if request not in ended]
        return [
            SimpleNamespace(
                request_id=request.name, finished=True, outputs=[SimpleNamespace(token_ids=request.outputs)]
            )
            for request in ended
        ]

    def _chosen(self) -> list[_Request]:
        chosen = [request for request in self.requests if self.random.random() >= self.apart]
        self.random.shuffle(chosen)
        return chosen

    def _budget(self) -> int:
        return self.random.randint(1, 12)


class _TightEngine(_Engine):
    """Reads one prompt in a step, and its cache holds the two prompts that were read last."""

    def add_request(self, name: str, prompt: Any, parameters: Any, priority: int) -> None:
        request = _Request(name, read_row(parameters.extra_args), prompt, parameters)
        request.read = min(self.cache.get(request.key, 0), len(prompt) - 1)
        self.requests.append(request)

    def _chosen(self) -> list[_Request]:
        known = [one for one in self.requests if one.read >= len(one.prompt) - 1]
        unread = [one for one in self.requests if one.read < len(one.prompt) - 1][:1]
        if unread:
            self.cache = dict(list(self.cache.items())[-1:])
        return [*known, *unread]

    def _budget(self) -> int:
        return 100


def _llm(engine: _Engine) -> Any:
    nothing = {"sleep": lambda **_: None, "wake_up": lambda **_: None, "get_tokenizer": lambda: None}
    return SimpleNamespace(llm_engine=engine, **nothing)


@pytest.fixture
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a request takes from vLLM, as plain objects."""
    kinds = SimpleNamespace(DELTA="delta", FINAL_ONLY="final only")
    for name, parts in {
        "vllm": {"SamplingParams": SimpleNamespace},
        "vllm.sampling_params": {"RequestOutputKind": kinds},
        "vllm.inputs": {},
        "vllm.inputs.engine": {"tokens_input": list},
    }.items():
        module = ModuleType(name)
        vars(module).update(parts)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize("rows", [2, 7, 64])
@pytest.mark.parametrize("apart", [0.0, 0.15, 0.25])
def test_answers_are_those_of_decoding_both_prompts_side_by_side(apart: float, rows: int) -> None:
    generator = random.Random(7)
    requests, expected = [], []
    for i in range(30):
        original = [generator.randrange(VOCAB) for _ in range(generator.randint(8, 40))]
        imagined = [generator.randrange(VOCAB) for _ in range(generator.randint(1, 12))]
        draw = Draw(1.0, seed=i) if i % 3 == 0 else None
        ratio = f"d2e:alpha={generator.choice([0.1, 0.5, 0.9, 1.5])}"
        decoder = generator.choice([ratio, ratio, "cad", "adacad", "plain"])
        decoding = DecodingConfig(decoder=decoder, max_new_tokens=LIMIT)
        [pair] = resolved([PromptPair(original, imagined)], decoding)
        draw = None if decoder == "plain" else draw
        requests.append(PairRequest(pair, decoding, (STOP,), SENTINEL, draw=draw))
        expected.append(_direct(original, imagined, decoder, requests[-1].draw))
    engine = _Engine(random.Random(int(apart * 100)), apart, rows)
    outputs = finished(RequestBatch(_llm(engine), requests).run())
    assert [output.tokens for output in outputs] == expected
    if apart:
        assert sum(output.resubmissions for output in outputs) > 30, "the case needs pairs that part"


@pytest.mark.usefixtures("_stand_in")
def test_pairs_that_part_until_they_are_cached_do_not_take_the_cache_from_each_other() -> None:
    prompts = [([i] * 20, [i] * 10) for i in range(6)]
    decoding = DecodingConfig(max_new_tokens=LIMIT)
    pairs = [PromptPair(original, imagined, alpha=0.5) for original, imagined in prompts]
    requests = [PairRequest(pair, decoding, (STOP,), SENTINEL) for pair in pairs]
    engine = _TightEngine(random.Random(0), 0.0, rows=4)
    batch = RequestBatch(_llm(engine), requests)
    batch.parted, batch.waiting = batch.waiting, batch.parted  # all have parted in a full engine, so each runs alone
    for progress in batch.progress:
        progress.fruitless = 4
    expected = [_direct(*pair, "d2e:alpha=0.5", None) for pair in prompts]
    assert [output.tokens for output in finished(batch.run())] == expected


@pytest.mark.parametrize(
    ("reports", "outcome", "answer"),
    [
        ([("original", [1, 2, 3], False), ("imagined", [1, 2], False)], "running", [1, 2]),
        ([("original", [1, 2, SENTINEL], True), ("imagined", [1, SENTINEL], True)], "decoupled", [1]),
        ([("original", [STOP], True), ("imagined", [SENTINEL], True)], "decoupled", []),
        ([("imagined", [4, STOP], True), ("original", [4], False), ("original", [STOP], True)], "stop", [4]),
        ([("original", [4, 5, 6, 7], True), ("imagined", [4, 5, 6, 7], True)], "length", [4, 5, 6]),
    ],
)
def test_a_token_counts_when_both_requests_have_it(
    reports: list[tuple[Any, list[int], bool]], outcome: str, answer: list[int]
) -> None:
    decoding = DecodingConfig(max_new_tokens=3)
    progress = PairProgress(PairRequest(PromptPair([1], [2]), decoding, (STOP,), SENTINEL))
    progress.submit()
    gained = [token for view, tokens, ended in reports for token in progress.report(view, tokens, ended=ended)]
    assert gained == progress.answer == answer
    assert (progress.outcome, progress.remaining) == (outcome, 3 - len(answer))
    assert progress.stopped_by == (STOP if outcome == "stop" else None)
    assert progress.fruitless == (0 if answer else 1)


@pytest.mark.usefixtures("_stand_in")
def test_a_pair_whose_logits_are_nan_is_given_up_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}._logits", lambda tokens: torch.full((VOCAB,), torch.nan))
    pair = PromptPair([1, 2, 3], [4], alpha=0.5, name="sample 's1'")
    engine = _Engine(random.Random(0), apart=0.0, rows=4)
    with pytest.raises(UserError, match=r"sample 's1' .* logits contain NaN or infinity(?s:.*)bfloat16"):
        list(RequestBatch(_llm(engine), [PairRequest(pair, DecodingConfig(), (STOP,), SENTINEL)]).run())


async def _enter(places: RowGate) -> None:
    async with places.rows(2):
        pass


def test_pairs_never_exceed_the_places_and_enter_in_order() -> None:
    order: list[int] = []

    async def pair(places: RowGate, number: int) -> None:
        async with places.rows(2):
            order.append(number)
            assert places.free >= 0
            await asyncio.sleep(0.001 * (number % 3))

    async def run() -> None:
        places = RowGate(5)
        await asyncio.gather(*(pair(places, number) for number in range(20)))
        assert (places.waiting, places.free) == (0, 5)

    asyncio.run(run())
    assert order == list(range(20))


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_plain_request_enters_at_once_and_a_pair_waits_for_it_or_gives_up(gives_up: bool) -> None:
    async def run() -> None:
        places = RowGate(2)
        async with places.rows(1, wait=False):
            task = asyncio.create_task(_enter(places))
            await asyncio.sleep(0.01)
            assert (places.waiting, places.free) == (2, 1)
            if gives_up:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert places.waiting == 0
        if not gives_up:
            await task
        await _enter(places)
        assert places.free == 2

    asyncio.run(run())


def test_plain_requests_that_never_leave_do_not_starve_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "_PATIENCE", 0.02)

    async def run() -> None:
        places = RowGate(2)
        async with places.rows(2, wait=False), asyncio.timeout(2), places.rows(2):
            assert places.free == -2
        assert places.free == 2

    asyncio.run(run())


PROMPTS = [[10, 11, 12], [20, 21], [30, 31, 32, 33]]
OPTIONS = [[[40, 41, 42], [40, 43]], [[50, 51], [50, 52, 53], [50, 54]], [[60], [61]]]
PAIRS = [PromptPair(*fields) for fields in zip(PROMPTS, [None] * 3, OPTIONS, [1, 1, 0], strict=True)]
PLAINLY = DecodingConfig(alpha=0)


class PromptLogprobs:
    """What `vllm.LLM.generate` gives: of the first token nothing, of others the likeliest tokens and their own."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.sent: list[int] = []

    def generate(self, prompts: list[dict[str, list[int]]], parameters: Any, use_tqdm: bool) -> list[Any]:
        self.sent.append(len(prompts))
        return [
            SimpleNamespace(prompt_logprobs=self._of(prompt["prompt_token_ids"], parameters.prompt_logprobs))
            for prompt in prompts
        ]

    def _of(self, ids: list[int], count: int) -> list[dict[int, Any] | None]:
        with torch.no_grad():
            logprobs = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        found: list[dict[int, Any] | None] = [None]
        for token, row in zip(ids[1:], logprobs, strict=False):
            order = row.argsort(descending=True).tolist()
            wanted = {*order[:count], token}
            found.append({t: SimpleNamespace(logprob=row[t].item(), rank=order.index(t) + 1) for t in wanted})
        return found


@pytest.fixture
def llm(_stand_in: None) -> PromptLogprobs:
    return PromptLogprobs(tiny_model(seed=1))


def test_an_option_scores_as_in_process_and_scores_come_as_the_engine_gives_them(
    llm: PromptLogprobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("d2e_sft.vllm.offline._AT_ONCE", 2)
    every = replace(PAIRS[2], options=[[token] for token in range(261)])
    best = scored(llm.model, [every], PLAINLY)[0]
    greedy = max(range(261), key=lambda token: best[token].logprob)
    pairs = [*PAIRS[:2], replace(PAIRS[2], options=[*PAIRS[2].options, [greedy]])]
    expected, ours = scored(llm.model, pairs, PLAINLY), []
    for index, of_pair in score(llm, pairs):
        ours.append(of_pair)
        assert llm.sent == ([5, 3] if index == 2 else [5]), "the options of two prompts, then of the third"
    for one, other in zip(chain(*ours), chain(*expected), strict=True):
        assert one.logprob == pytest.approx(other.logprob, rel=1e-5)
        assert (one.tokens, one.greedy) == (other.tokens, other.greedy)
    assert ours[2][-1].greedy
