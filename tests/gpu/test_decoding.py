"""Decoding: the tokens of transformers' guidance, and the same ones from a compiled step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from d2e_sft.bench.train import PREFIX, synthetic_rows
from d2e_sft.decoding import DecodingConfig, generate_debiased
from d2e_sft.decoding.pairs import token_pairs
from d2e_sft.decoding.rows import MOST_PAIRS
from d2e_sft.model.layers import check_compiler
from d2e_sft.util.errors import UserError
from tests.d2e_sft.decoding.pairs import generated
from tests.gpu.conftest import Machine

NEW = 24


def prompts(machine: Machine, model: Any) -> tuple[list[list[int]], list[list[int]]]:
    rows = synthetic_rows(machine.size(8, 2), machine.size(400, 30), model.config.vocab_size)
    return [row["original"] for row in rows], [row["imagined"] for row in rows]


def ours(model: Any, originals: Any, imagined: Any, **options: Any) -> list[list[int]]:
    decoding = DecodingConfig(max_new_tokens=NEW, **options)
    with torch.no_grad():
        return generate_debiased(model, originals, imagined, decoding, stop_ids=())


def guidance(
    model: Any, originals: list[list[int]], imagined: list[list[int]], scale: float, stops: list[int] | None = None
) -> list[list[int]]:
    ids, negative = (torch.tensor(rows, device=model.device) for rows in (originals, imagined))
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, eos_token_id=stops,
        pad_token_id=0, guidance_scale=scale, negative_prompt_ids=negative,
        negative_prompt_attention_mask=torch.ones_like(negative),
    )  # fmt: skip
    found: list[list[int]] = output[:, ids.shape[1] :].tolist()
    return found


def same(one: list[list[int]], other: list[list[int]]) -> float:
    """The share of tokens up to each answer's first difference."""
    kept = [
        next((i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), len(x))
        for x, y in zip(one, other, strict=True)
    ]
    return sum(kept) / sum(map(len, one))


@pytest.mark.parametrize("alpha", [0.3, 0.5])
def test_debiased_decoding_gives_the_tokens_of_guidance(
    machine: Machine, record_property: pytest.RecordProperty, alpha: float
) -> None:
    model = machine.model()
    originals, imagined = prompts(machine, model)
    theirs = guidance(model, originals, imagined, 1 / (1 - alpha))
    agreed = same(ours(model, originals, imagined, alpha=alpha), theirs)
    record_property("same_tokens", agreed)
    # In float32, where one of a few hundred choices may be a tie to the last bit.
    assert agreed > 0.9
    assert same(ours(model, originals, imagined, alpha=0.0), theirs) < 0.9, "α must matter for this to say anything"


def test_prompts_that_enter_as_others_end_get_the_tokens_of_guidance_alone(
    machine: Machine, record_property: pytest.RecordProperty
) -> None:
    model, rows = machine.model(), MOST_PAIRS + machine.size(32, 6)
    words = model.config.vocab_size
    originals, imagined = ([row[view] for row in synthetic_rows(rows, 30, words)] for view in ("original", "imagined"))
    # Of different lengths; one token in eight ends an answer.
    originals = [[*prompt[:PREFIX], *prompt[PREFIX + n % 20 :]] for n, prompt in enumerate(originals)]
    stops = [*range(0, words, 8)]
    answers = generated(model, token_pairs(originals, imagined), DecodingConfig(max_new_tokens=NEW), stop_ids=stops)
    asked = sorted(range(rows), key=lambda n: len(originals[n]))[:10]  # the shortest enter last
    theirs = [guidance(model, [originals[n]], [imagined[n]], 2, stops)[0] for n in asked]
    agreed = [
        answers[n] == [token for token in one if token not in stops] for n, one in zip(asked, theirs, strict=True)
    ]
    record_property("same_answers", sum(agreed) / len(agreed))
    record_property("lengths", sorted(map(len, answers)))
    assert len({*map(len, answers)}) > 3
    assert sum(agreed) >= 0.9 * len(agreed)


def test_bfloat16_decodes_what_float32_does_until_rounding_decides(
    machine: Machine, record_property: pytest.RecordProperty
) -> None:
    answers = []
    for dtype in (torch.float32, torch.bfloat16):
        model = machine.model(dtype=dtype)
        answers.append(ours(model, *prompts(machine, model), alpha=0.5))
    record_property("same_tokens", same(*answers))
    assert [one[0] for one in answers[0]] == [one[0] for one in answers[1]] or same(*answers) > 0.3


def test_a_compiled_step_chooses_the_same_tokens(machine: Machine, record_property: pytest.RecordProperty) -> None:
    if not machine.on_cuda:
        pytest.skip("compiled steps are for CUDA; tests/d2e_sft/decoding compiles one on a CPU")
    try:
        check_compiler(machine.device)
    except UserError as error:
        pytest.skip(str(error))
    model = machine.model(layers=2)
    originals, imagined = prompts(machine, model)
    plain = ours(model, originals, imagined, alpha=0.5)
    agreed = same(ours(model, originals, imagined, alpha=0.5, compiled=True), plain)
    record_property("same_tokens", agreed)
    assert agreed > 0.9
