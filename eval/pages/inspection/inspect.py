"""`d2e inspect`: load a model, answer some samples, and write down what it thought at every token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from d2e_sft.config.recipe import recipe_of
from d2e_sft.data.chat_template import pad_id
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, generate_debiased, stop_token_ids
from d2e_sft.model.loading import load_model
from d2e_sft.util.errors import UserError, did_you_mean
from eval.pages.inspection.distributions import answer_places
from eval.pages.inspection.page import Inspected, write_page

Along = Literal["decoded", "gold"]
_STEP, _UPPER = 0.05, 1.5


@dataclass(frozen=True)
class InspectOptions:
    """How samples are inspected.

    Attributes:
        alpha: where the slider begins, and the ratio that answers are decoded with; None is as trained, else 0.5.
        along: the tokens that are shown are those of the model's own answer, or of the gold one.
    """

    alpha: float | None = None
    prompt_set: str | None = None
    along: Along = "decoded"
    max_new_tokens: int = 48
    top: int = 8


def choose(samples: Sequence[EventSample], names: Sequence[str], count: int, seed: int) -> list[EventSample]:
    """The samples of these names, or so many drawn ones, in file order.

    Raises:
        UserError: no sample has a name.
    """
    if not names:
        places = sorted(random.Random(seed).sample(range(len(samples)), min(count, len(samples))))
        return [samples[place] for place in places]
    known = {sample.id: sample for sample in samples}
    for name in names:
        if name not in known:
            raise UserError(f"--sample {name}: no sample has this id.{did_you_mean(name, list(known))}")
    return [known[name] for name in dict.fromkeys(names)]


def inspect_samples(model: str, samples: Sequence[EventSample], file: Path, options: InspectOptions) -> None:
    """Write the page about some samples.

    Raises:
        UserError: the model cannot be loaded, or has no chat template.
    """
    recipe = recipe_of(model)
    alpha = options.alpha if options.alpha is not None else 0.5 if recipe is None else recipe.decoding.alpha
    wording = load_prompt_set(options.prompt_set or (recipe.data.prompt_set if recipe is not None else "default"))
    loaded = load_model(model)
    network = loaded.model.eval()
    encoder = ViewEncoder(
        loaded.tokenizer,
        wording,
        ("original", "imagined"),
        encoder_decoder=network.config.is_encoder_decoder,
    )
    ratios = ratio_grid(alpha)
    inspected = [_inspect(network, encoder, sample, alpha, ratios, options) for sample in samples]
    whose = "the gold ones" if options.along == "gold" else f"decoded with α = {alpha:g}"
    write_page(file, model=model, alpha=alpha, ratios=ratios, inspected=inspected, whose=whose)


def ratio_grid(alpha: float) -> list[float]:
    """Ratios from 0 to 1.5, and to `alpha` where that is larger; `alpha` is one of them."""
    steps = int(max(_UPPER, alpha) / _STEP + 1e-9)
    return sorted({*(round(step * _STEP, 4) for step in range(steps + 1)), alpha})


def _inspect(
    model: Any,
    encoder: ViewEncoder,
    sample: EventSample,
    alpha: float,
    ratios: Sequence[float],
    options: InspectOptions,
) -> Inspected:
    original, imagined = (encoder.prompt_ids(sample, view) for view in encoder.views)
    if options.along == "gold":
        answer = encoder.answer_ids(sample)
    else:
        answer = _decoded(model, encoder, original, imagined, alpha, options.max_new_tokens)
    places = answer_places(model, encoder.tokenizer, original, imagined, answer, ratios=ratios, top=options.top)
    prompts = encoder.tokenizer.decode(original), encoder.tokenizer.decode(imagined)
    return Inspected(sample, encoder.tokenizer.decode(answer, skip_special_tokens=True), prompts, places)


@torch.no_grad()
def _decoded(
    model: Any, encoder: ViewEncoder, original: list[int], imagined: list[int], alpha: float, limit: int
) -> list[int]:
    """The answer and, where it came to its end, the end-of-turn token."""
    [tokens] = generate_debiased(
        model,
        [original],
        [imagined],
        DecodingConfig(alpha=alpha, max_new_tokens=limit),
        stop_ids=stop_token_ids(model, encoder.end_of_turn),
        pad_id=pad_id(encoder.tokenizer),
    )
    return [*tokens, encoder.end_of_turn] if len(tokens) < limit else tokens
