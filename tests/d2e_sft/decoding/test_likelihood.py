"""Scores of options: the packed form against a forward for each option and view, and a direct computation."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import torch

from d2e_sft.decoding import DecodingConfig, generate_debiased, likelihood
from d2e_sft.decoding.decoders import decoder_of
from d2e_sft.decoding.likelihood import KeptStates, OptionScore, score_options
from d2e_sft.util.errors import UserError
from tests.d2e_sft.decoding.pairs import PREFIX, random_prompts
from tests.tiny import VOCAB_SIZE, tiny_model

Options = list[list[list[int]]]
# Models whose rows are packed, and three that take padded ones (a state, capped scores, an encoder).
PACKED = ["llama", "mistral-window", "gemma3", "granite", "phi", "gpt2"]
PADDED = ["mamba", "gemma2", "t5"]


def case(count: int = 7) -> tuple[list[list[int]], list[list[int]], Options, list[int]]:
    """Prompts behind a common prefix; options of 3 to 14 tokens that begin alike, one within another, or two alike."""
    generator = random.Random(5)
    options: Options = []
    for _ in range(count):
        form = [generator.randrange(5, VOCAB_SIZE) for _ in range(2)]
        own = random_prompts(generator.randint(1, 5), 1, 12, seed=generator.randrange(1000), prefix=form)
        options.append(own)
    options[2].append(options[2][0][:-1])  # what another option begins with
    options[3] = [[*options[3][0][:4], 7], [*options[3][0][:4], 8]]  # that differ in their last token alone
    originals = random_prompts(count, 5, 60, seed=3, prefix=PREFIX)
    imagined = random_prompts(count, 3, 9, seed=4, prefix=PREFIX)
    imagined[5] = list(originals[5])  # no context to remove
    return originals, imagined, options, [2, 0, 1, 2, 0, 1, 2][:count]


def logits_of(model: Any, prompt: list[int], option: list[int]) -> torch.Tensor:
    """(tokens, V): what predicts each token of the option, by one forward of the model itself."""
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            decoder = torch.tensor([[0, *option[:-1]]])
            return model(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder).logits[0].double()
        return model(torch.tensor([[*prompt, *option]])).logits[0, len(prompt) - 1 : -1].double()


def directly(
    model: Any, original: list[int], imagined: list[int], option: list[int], given: int, alpha: float
) -> OptionScore:
    debiased = logits_of(model, original, option)
    if original != imagined:
        debiased = debiased - alpha * logits_of(model, imagined, option)
    debiased, target = debiased[given:], torch.tensor(option[given:])
    logprobs = debiased.log_softmax(-1)[torch.arange(len(target)), target]
    return OptionScore(logprobs.sum().item(), len(target), bool((debiased.argmax(-1) == target).all()))


@pytest.mark.parametrize("decoder", ["cad", "adacad:floor=0.2", "coiecd"])
@pytest.mark.parametrize("kind", ["llama", "gemma2", "t5"])
def test_a_score_is_the_log_softmax_of_the_decoders_scores(kind: str, decoder: str) -> None:
    model = tiny_model(kind, seed=1)
    originals, imagined, options, given = case()
    decoding = DecodingConfig(decoder=decoder, batch_size=3)
    scores = score_options(model, originals, imagined, options, decoding, given=given)
    for i, of_prompt in enumerate(options):
        for option, score in zip(of_prompt, scores[i], strict=True):
            logits = logits_of(model, originals[i], option)
            if originals[i] != imagined[i]:
                logits = decoder_of(decoding)(logits, logits_of(model, imagined[i], option))
            target = torch.tensor(option)[:, None]
            expected = logits.log_softmax(-1).gather(1, target)[given[i] :].sum().item()
            # float32 against float64, relative to sums of 10 to 500
            assert score.logprob == pytest.approx(expected, rel=2e-5, abs=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("kind", [*PACKED, *PADDED])
def test_a_score_is_the_log_softmax_of_the_debiased_logits_summed_over_the_options_tokens(
    kind: str, alpha: float
) -> None:
    model = tiny_model(kind, seed=1)
    originals, imagined, options, given = case()
    decoding = DecodingConfig(alpha=alpha, batch_size=3)
    scores = score_options(model, originals, imagined, options, decoding, given=given)
    for i, of_prompt in enumerate(options):
        for option, score in zip(of_prompt, scores[i], strict=True):
            expected = directly(model, originals[i], imagined[i], option, given[i], alpha)
            # float32 against float64, relative to sums of 10 to 500
            assert score.logprob == pytest.approx(expected.logprob, rel=2e-5, abs=1e-5)
            assert (score.tokens, score.greedy) == (expected.tokens, expected.greedy)


def test_d2e_and_cad_choose_the_same_tokens_and_yet_may_rank_options_differently() -> None:
    model = tiny_model("llama", seed=1)
    originals, imagined, options, _ = case()
    rules = [DecodingConfig(alpha=0.8), DecodingConfig(decoder="cad:weight=4")]  # 0.8 = 4 / (1 + 4)
    d2e, cad = (score_options(model, originals, imagined, options, rule) for rule in rules)
    assert [[o.greedy for o in p] for p in d2e] == [[o.greedy for o in p] for p in cad]
    best = [[max(range(len(p)), key=lambda j: p[j].logprob) for p in scores] for scores in (d2e, cad)]
    assert best[0] != best[1], "the logits of one are five times those of the other"


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2"])
def test_decoders_that_share_kept_states_score_as_each_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(kind, seed=1)
    originals, imagined, options, given = case()
    rules = [DecodingConfig(decoder=name, batch_size=3) for name in ("cad", "adacad", "d2e:alpha=0.3", "plain")]
    alone = [score_options(model, originals, imagined, options, rule, given=given) for rule in rules]
    kept: KeptStates = {}
    forwards: list[int] = []
    packed = likelihood._packed_states
    monkeypatch.setattr(likelihood, "_packed_states", lambda *rest: forwards.append(1) or packed(*rest))
    together = [score_options(model, originals, imagined, options, rule, given=given, kept=kept) for rule in rules]
    assert together == alone
    batches = 3  # of 7 prompts; a model that takes no packed rows keeps nothing
    assert (len(forwards), len(kept) > 0) == ((batches, True) if kind != "gemma2" else (0, False))


def test_what_plain_decoding_kept_is_not_taken_for_the_prompts_without_context() -> None:
    model = tiny_model("llama", seed=1)
    originals, imagined, options, given = case()
    kept: KeptStates = {}
    score_options(model, originals, None, options, DecodingConfig(decoder="plain"), given=given, kept=kept)
    rule = DecodingConfig(decoder="cad")
    alone = score_options(model, originals, imagined, options, rule, given=given)
    assert score_options(model, originals, imagined, options, rule, given=given, kept=kept) == alone


@pytest.mark.parametrize("kind", ["llama", "mistral-window", "gpt2"])
def test_packed_options_score_as_a_forward_for_each_option_and_view(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(kind, seed=1).double()
    originals, imagined, options, given = case()
    packed = score_options(model, originals, imagined, options, DecodingConfig(alpha=0.5), given=given)
    monkeypatch.setattr("d2e_sft.decoding.likelihood.decodes_packed", lambda _: False)
    alone = score_options(model, originals, imagined, options, DecodingConfig(alpha=0.5, batch_size=1), given=given)
    for of_packed, of_alone in zip(packed, alone, strict=True):
        for one, other in zip(of_packed, of_alone, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
            assert (one.tokens, one.greedy) == (other.tokens, other.greedy)


def test_what_options_have_in_common_goes_through_the_model_once() -> None:
    model = tiny_model("llama")
    original, imagined = random_prompts(2, 40, 40, seed=1)
    form = random_prompts(1, 10, 10, seed=2)[0]
    options = [[*form, 5], [*form, 6], [*form, 6, 7, 8]]
    score_options(model, [original], [imagined], [options])  # asks the model whether it can be packed
    tokens: list[int] = []
    model.model.register_forward_pre_hook(
        lambda _, __, kwargs: tokens.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    score_options(model, [original], [imagined], [options], DecodingConfig(alpha=0.5))
    assert sum(tokens) == 2 * (40 + 10 + 2), "a prompt, the form and two tokens of the third option, in either view"


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_what_greedy_decoding_writes_is_greedy_and_no_option_of_its_length_is_likelier(alpha: float) -> None:
    model = tiny_model("llama", seed=1)
    originals, imagined, _, _ = case()
    decoding = DecodingConfig(alpha=alpha, max_new_tokens=1)
    written = generate_debiased(model, originals, imagined, decoding, stop_ids=[])
    options = [[[token] for token in range(VOCAB_SIZE)] for _ in originals]
    for scores, [token] in zip(score_options(model, originals, imagined, options, decoding), written, strict=True):
        assert [score.greedy for score in scores].index(True) == token
        assert max(scores, key=lambda score: score.logprob) is scores[token]
        assert sum(torch.tensor([score.logprob for score in scores]).exp()) == pytest.approx(1, abs=1e-5)


def test_two_options_of_the_same_tokens_have_the_same_score() -> None:
    model = tiny_model("llama", seed=1)
    originals, imagined, options, _ = case()
    [scores] = score_options(model, originals[:1], imagined[:1], [[options[0][0], [9, 9], options[0][0]]])
    assert scores[0] == scores[2] != scores[1]


def test_each_prompt_has_its_alpha_and_batches_and_groups_make_no_difference() -> None:
    model = tiny_model("llama", seed=1)
    originals, imagined, options, given = case()
    alphas = [0.0, 0.5, 0.9, 2.0, 0.0, 0.3, 1.0]
    seen: list[int] = []
    together = score_options(
        model, originals, imagined, options, DecodingConfig(batch_size=4), given=given, alpha=alphas,
        groups=[i % 2 for i in range(7)], on_batch=lambda indices, scores: seen.extend(indices),
    )  # fmt: skip
    assert sorted(seen) == list(range(7))
    for i, of_prompt in enumerate(together):
        [alone] = score_options(
            model, [originals[i]], [imagined[i]], [options[i]], DecodingConfig(alpha=alphas[i]), given=[given[i]]
        )
        assert [one.logprob for one in of_prompt] == pytest.approx([one.logprob for one in alone], rel=1e-5)


def test_a_long_list_of_options_is_projected_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", seed=1)
    originals, imagined, options, given = case()
    whole = score_options(model, originals, imagined, options, given=given)
    monkeypatch.setattr("d2e_sft.decoding.likelihood._AT_ONCE", 3)
    parts = score_options(model, originals, imagined, options, given=given)
    for one, other in zip(whole, parts, strict=True):
        assert [score.logprob for score in one] == pytest.approx([score.logprob for score in other], rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"options": [[[5]], [[]]]}, ValueError, "options[1][0] has no token to score"),
        ({"given": [1, 0]}, ValueError, "options[0][0] has no token to score"),
        ({"options": [[[5]]]}, ValueError, "1 values of options for 2 prompts"),
        ({"given": [0]}, ValueError, "1 values of given for 2 prompts"),
        ({"imagined": None}, ValueError, "needs one imagined prompt"),
        ({"imagined": [[5], []]}, ValueError, "prompt 1 has no token"),
        ({"originals": [[], [8, 9]]}, ValueError, "prompt 0 has no token"),
        ({"decoding": DecodingConfig(plausibility=0.1)}, UserError, "plausibility=0.1"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_name(changes: dict[str, Any], error: type[Exception], said: str) -> None:
    arguments = {"originals": [[7, 8], [8, 9]], "imagined": [[7], [8]], "options": [[[5]], [[6]]], **changes}
    with pytest.raises(error, match=re.escape(said)):
        score_options(tiny_model(), **arguments)
