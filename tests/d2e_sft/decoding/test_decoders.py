"""Each decoder against its formula, worked token by token in plain Python from two streams of logits; its choice."""

import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from d2e_sft.config.decoding import DECODERS
from d2e_sft.decoding import DecodingConfig, generate_debiased
from d2e_sft.decoding.decoders import FUNCTIONS, NO_TOKEN, RowStates, TokenChoice, named_decoder
from d2e_sft.util.errors import UserError
from tests.d2e_sft.decoding.pairs import encoder_decoder, frequent_token, next_logits, random_prompts
from tests.tiny import tiny_model

Rule = Callable[[list[float], list[float]], list[float]]
VOCABULARY = 40
NEW_TOKENS = 8


def _probabilities(logits: Sequence[float]) -> list[float]:
    most = max(logits)
    parts = [math.exp(each - most) for each in logits]
    return [part / math.fsum(parts) for part in parts]


def _divergence(p: Sequence[float], q: Sequence[float]) -> float:
    """Jensen–Shannon, in nats."""
    total = 0.0
    for a, b in zip(p, q, strict=True):
        mean = (a + b) / 2
        total += (a * math.log(a / mean) if a else 0.0) / 2 + (b * math.log(b / mean) if b else 0.0) / 2
    return total


def _products(original: list[float], imagined: list[float], exponents: Sequence[tuple[float, float]]) -> list[float]:
    """`p_o^x · p_im^y` of each token with exponents of its own, normalised: by products, not by sums of logs."""
    p, q = _probabilities(original), _probabilities(imagined)
    parts = [a**x * b**y for a, b, (x, y) in zip(p, q, exponents, strict=True)]
    return [part / math.fsum(parts) for part in parts]


def _contrasted(weight: float) -> Rule:
    return lambda o, i: _products(o, i, [(1 + weight, -weight)] * len(o))


def _adaptive(floor: float) -> Rule:
    def rule(original: list[float], imagined: list[float]) -> list[float]:
        weight = max(floor, _divergence(_probabilities(original), _probabilities(imagined)))
        return _contrasted(weight)(original, imagined)

    return rule


REFERENCES: dict[str, Rule] = {
    "plain": lambda o, i: _probabilities(o),
    "d2e:alpha=0.7": lambda o, i: _products(o, i, [(1, -0.7)] * len(o)),
    "cad": _contrasted(1.0),
    "cad:weight=0.25": _contrasted(0.25),
    "adacad": _adaptive(0.0),
    "adacad:floor=0.3": _adaptive(0.3),
}


def _streams(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Float64 logits of two views, flat in some rows and peaked in others, from like each other to unlike."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-1, 1, count, dtype=torch.float64)[:, None]
    common, own, other = (
        torch.randn(count, VOCABULARY, generator=generator, dtype=torch.float64) * scale for _ in range(3)
    )
    apart = torch.rand(count, 1, generator=generator, dtype=torch.float64)
    return common + apart * own + 3, common + apart * other


@pytest.mark.parametrize("text", REFERENCES)
def test_the_softmax_of_the_scores_is_the_formulas_distribution(text: str) -> None:
    original, imagined = _streams(200)
    found = named_decoder(text)(original, imagined).softmax(-1)
    pairs = zip(original.tolist(), imagined.tolist(), strict=True)
    expected = torch.tensor([REFERENCES[text](o, i) for o, i in pairs], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_every_decoder_has_a_reference_here() -> None:
    assert {text.partition(":")[0] for text in REFERENCES} == set(FUNCTIONS) == set(DECODERS)


@pytest.mark.parametrize("text", REFERENCES)
def test_linear_decoders_and_no_others_act_on_hidden_states_as_on_logits(text: str) -> None:
    generator = torch.Generator().manual_seed(1)
    head = torch.randn(VOCABULARY, 12, generator=generator, dtype=torch.float64)
    original, imagined = torch.randn(2, 50, 12, generator=generator, dtype=torch.float64)
    decoder = named_decoder(text)
    by_states, by_logits = decoder(original, imagined) @ head.T, decoder(original @ head.T, imagined @ head.T)
    assert torch.allclose(by_states, by_logits, rtol=1e-10, atol=1e-10) == decoder.linear


def _naive(model: Any, original: list[int], imagined: list[int], rule: Rule, stops: list[int]) -> list[int]:
    """Two whole forwards a token, without a cache, a batch or an attention head of this package."""
    answer: list[int] = []
    while len(answer) < NEW_TOKENS:
        scores = rule(*(next_logits(model, prompt, answer).double().tolist() for prompt in (original, imagined)))
        token = scores.index(max(scores))
        if token in stops:
            break
        answer.append(token)
    return answer


# The first reference of each decoder.
OF_EACH = list({text.partition(":")[0]: text for text in reversed(REFERENCES)}.values())


# Packed, with a linear head and with one that has a bias; padded; an encoder's prompts.
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *((text, "llama") for text in OF_EACH),
        *((text, kind) for text in ("d2e:alpha=0.7", "adacad") for kind in ("phi", "bloom", "t5")),
        ("plain", "t5"),
    ],
)
def test_a_batch_decodes_the_tokens_of_a_naive_loop(text: str, kind: str) -> None:
    model = encoder_decoder() if kind == "t5" else tiny_model(kind, seed=1)
    originals, imagined = random_prompts(4, 8, 30, seed=1), random_prompts(4, 3, 12, seed=2)
    imagined[2] = list(originals[2])  # nothing to remove: plain
    stops = [frequent_token(model, originals, imagined, NEW_TOKENS)]
    decoding = DecodingConfig(decoder=text, max_new_tokens=NEW_TOKENS)
    ours = generate_debiased(model, originals, imagined, decoding, stop_ids=stops)
    rules = [REFERENCES[text if place != 2 else "plain"] for place in range(4)]
    assert ours == [_naive(model, o, i, r, stops) for o, i, r in zip(originals, imagined, rules, strict=True)]


OWN = """
import torch

def halved(original, imagined, *, share, weight=1.0):
    return original - share * weight * imagined

def failing(original, imagined):
    return original - gone * imagined

def former(original, imagined, options):
    return original

def flat(original, imagined):
    return original.sum(-1)

def nothing(original, imagined):
    return None

def not_numbers(original, imagined):
    return original.double() * float("nan")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a user's module in the working folder."""
    name = f"own_{random.Random(str(tmp_path)).randrange(10**12)}"
    (tmp_path / f"{name}.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("flat", r"returned shape \(1,\); expected a tensor of shape \(1, \d+\)"),
        ("nothing", "returned NoneType; expected a tensor"),
        ("not_numbers", r"returned shape \(1, \d+\); expected .*without NaN"),
        ("failing", r"failed on logits of shape \(1, \d+\) with the options \{\} \(NameError: name 'gone' "),
    ],
)
def test_a_function_of_ones_own_that_gives_no_scores_is_told_what_it_did(own: str, function: str, said: str) -> None:
    decoding = DecodingConfig(decoder=f"{own}:{function}")
    with pytest.raises(UserError, match=f"decoder {own}:{function}: {said}"):
        generate_debiased(tiny_model(), [[5, 6, 7]], [[5, 7]], decoding, stop_ids=[])


def test_options_of_ones_own_decoder_are_its_keyword_arguments(own: str) -> None:
    original, imagined = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 4.0]])
    assert named_decoder(f"{own}:halved:share=0.5")(original, imagined).tolist() == [[0.0, 0.0]]
    assert named_decoder(f"{own}:halved:share=1,weight=2")(original, imagined).tolist() == [[-3.0, -6.0]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("halved:shre=0.3", r"has no option 'shre'; it has share, weight \[1\]\. Did you mean 'share'\?"),
        ("halved:weight=2", r"takes .*: missing a required .*'share'; expected \(original, imagined\), then options"),
        ("flat:share=1", "has no option 'share'; it has none"),
        ("former", r"takes .*: missing a required argument: 'options'"),
    ],
)
def test_other_options_of_ones_own_decoder_are_refused_before_it_decodes(own: str, options: str, said: str) -> None:
    with pytest.raises(UserError, match=f"decoder '{own}:{options}': {'.*' if 'has' in said[:3] else ''}{said}"):
        named_decoder(f"{own}:{options}")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_scores_are_numbers_for_any_ratio_and_logits_up_to_1e4(name: str) -> None:
    torch.manual_seed(0)
    original, imagined = torch.tensor([1e4, -1e4, 0.0])[torch.randint(3, (2, 30, 12))]
    options = {"d2e": ":alpha=5", "cad": ":weight=5"}.get(name, "")
    decoder = named_decoder(name + options)
    scores = decoder(original, imagined)
    exact = decoder(original.double(), imagined.double())
    assert not scores.isnan().any()
    assert torch.equal(scores.argmax(-1), exact.argmax(-1)), "as in twice the precision"


def _states(original: list[float], imagined: list[float]) -> RowStates:
    return RowStates(torch.tensor([original]), torch.tensor([imagined]), torch.tensor([0]))


def _drawn(states: RowStates, alpha: float, count: int = 4000, **options: Any) -> Counter[int]:
    choose = TokenChoice(DecodingConfig(**options))
    return Counter(int(choose(states, torch.tensor([alpha]), [0])) for _ in range(count))


def test_top_k_and_top_p_leave_only_the_likeliest() -> None:
    states = _states([3.0, 2.5, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0])
    assert set(_drawn(states, 0.5, count=500, temperature=1.0, top_k=2)) == {0, 1}
    # probabilities .55 .33 .07 .03: the first two reach 0.8
    assert set(_drawn(states, 0.5, count=500, temperature=1.0, top_p=0.8)) == {0, 1}
    assert set(_drawn(states, 0.5, count=500, temperature=1.0, top_p=0.3)) == {0}


@pytest.mark.parametrize("plausibility", [0.0, 0.3])
@pytest.mark.parametrize("decoder", ["d2e:alpha=0.5", "adacad:floor=0.4"])
def test_draws_follow_the_decoders_distribution_cut_off_by_the_original(decoder: str, plausibility: float) -> None:
    states = _states([2.0, 1.6, 1.0, -1.0], [0.0, 1.5, 1.0, 0.0])
    scores = named_decoder(decoder)(states.original.double(), states.imagined.double())[0]
    likely = states.original[0].softmax(0) >= plausibility * states.original[0].softmax(0).max()
    assert likely.tolist() == [True, True, True, plausibility == 0]
    expected = (scores.masked_fill(~likely, -torch.inf) / 0.7).softmax(0)
    drawn = _drawn(states, 0.5, temperature=0.7, plausibility=plausibility, decoder=decoder)
    for token, probability in enumerate(expected.tolist()):
        assert drawn[token] / 4000 == pytest.approx(probability, abs=0.03)  # 4 standard errors
    assert drawn[3] == 0 or plausibility == 0


def test_subtracted_states_and_subtracted_logits_lead_to_the_same_choice() -> None:
    torch.manual_seed(0)
    head = nn.Linear(16, 300, bias=False)
    original, imagined, partner = torch.randn(6, 16), torch.randn(3, 16), torch.tensor([1, 3, 4])
    alpha = torch.tensor([0.5, 1.5, 0.2])
    requests = list(range(6))
    for decoding in (DecodingConfig(), DecodingConfig(plausibility=0.2), DecodingConfig(temperature=1.0)):
        by_state = TokenChoice(decoding)(RowStates(original, imagined, partner, head, linear=True), alpha, requests)
        by_logit = TokenChoice(decoding)(RowStates(head(original), head(imagined), partner), alpha, requests)
        assert by_state.tolist() == by_logit.tolist()


@pytest.mark.parametrize("how", [{}, {"temperature": 1.0}, {"plausibility": 0.1}, {"temperature": 1.0, "top_k": 2}])
@pytest.mark.parametrize("spoiled", [torch.nan, torch.inf])
def test_no_token_is_chosen_from_scores_with_nan_or_infinity(how: dict[str, Any], spoiled: float) -> None:
    original = torch.tensor([[1.0, 0.0, 9.0], [1.0, 0.0, 9.0], [1.0, -torch.inf, 9.0], [-torch.inf] * 3])
    original[0, 1] = spoiled
    states = RowStates(original, torch.zeros(2, 3), torch.tensor([0, 1]))
    chosen = TokenChoice(DecodingConfig(**how))(states, torch.tensor([0.5, 0.5]), range(4))
    assert chosen.tolist() == [NO_TOKEN, 2, 2, NO_TOKEN]
