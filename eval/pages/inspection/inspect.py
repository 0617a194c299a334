"""`d2e inspect`: answer samples and write a page with the model's distributions at every token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal

import torch

from d2e_sft.config.recipe import recipe_of
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, generate_debiased, stop_token_ids
from d2e_sft.model.loading import load_model
from d2e_sft.util.files import write_whole
from d2e_sft.util.html.pages import render_page
from eval.pages.inspection.distributions import AnswerPosition, answer_positions
from eval.score.scoring import score_output

Along = Literal["decoded", "gold"]
_STEP, _UPPER = 0.05, 1.5


@dataclass(frozen=True)
class InspectOptions:
    """Options of the page, like those of `d2e inspect`; `graded` marks tokens as right or wrong."""

    alpha: float | None = None
    prompt_set: str | None = None
    along: Along = "decoded"
    max_new_tokens: int = 48
    top: int = 8
    graded: bool = True


@dataclass(frozen=True)
class Inspected:
    """A sample, its answer and its positions.

    Attributes:
        answer: the text whose tokens are shown.
        prompts: text of the original and the imagined prompt.
        right: whether `d2e eval` would count the model's own answer as right; None if unknown.
        marks: for each token `right`, `wrong` or nothing; see `token_marks`.
    """

    sample: EventSample
    answer: str
    prompts: tuple[str, str]
    positions: Sequence[AnswerPosition]
    right: bool | None
    marks: Sequence[str]

    @property
    def most_affected(self) -> int:
        """The position where the context changes the probability of the answer's token most."""

        def difference(index: int) -> float:
            position = self.positions[index]
            chosen = position.candidates[position.chosen]
            return abs(math.exp(chosen.original) - math.exp(chosen.imagined))

        return max(range(len(self.positions)), key=difference)


def inspect_samples(model: str, samples: Sequence[EventSample], file: Path, options: InspectOptions) -> None:
    """Write the page about some samples; UserError if the model cannot be loaded, or has no chat template."""
    recipe = recipe_of(model)
    alpha, prompt_set = (0.5, "default") if recipe is None else (recipe.decoding.alpha, recipe.data.prompt_set)
    alpha = alpha if options.alpha is None else options.alpha
    options = replace(options, alpha=alpha)
    wording = load_prompt_set(options.prompt_set or prompt_set)
    loaded = load_model(model)
    network = loaded.model.eval()
    seq2seq = network.config.is_encoder_decoder
    encoder = ViewEncoder(loaded.tokenizer, wording, ("original", "imagined"), encoder_decoder=seq2seq)
    alphas = alpha_grid(alpha)
    inspected = [_inspect(network, encoder, sample, alphas, options) for sample in samples]
    whose = "the gold ones" if options.along == "gold" else f"decoded with α = {alpha:g}"
    data = {
        "ratios": [round(alpha, 4) for alpha in alphas],
        "start": alphas.index(alpha),
        "along": options.along if options.graded else "decoded",
        "samples": [[asdict(position) for position in one.positions] for one in inspected],
    }
    template = Path(__file__).with_name("inspect.html")
    write_whole(file, render_page(template, model=model, alpha=alpha, inspected=inspected, whose=whose, data=data))


def alpha_grid(alpha: float) -> list[float]:
    """α from 0 to the larger of 1.5 and `alpha`, which is one of them."""
    steps = int(max(_UPPER, alpha) / _STEP + 1e-9)
    return sorted({*(round(step * _STEP, 4) for step in range(steps + 1)), alpha})


def _inspect(
    model: Any, encoder: ViewEncoder, sample: EventSample, alphas: Sequence[float], options: InspectOptions
) -> Inspected:
    original, imagined = (encoder.prompt_ids(sample, view) for view in encoder.views)
    if options.along == "gold":
        answer = encoder.answer_ids(sample)
    else:
        decoding = DecodingConfig(alpha=options.alpha or 0.0, max_new_tokens=options.max_new_tokens)
        stop_ids = stop_token_ids(model, encoder.end_of_turn)
        with torch.no_grad():
            [answer] = generate_debiased(model, [original], [imagined], decoding, stop_ids=stop_ids)
        if len(answer) < options.max_new_tokens:  # the answer is complete
            answer = [*answer, encoder.end_of_turn]
    found = answer_positions(model, encoder.tokenizer, (original, imagined), answer, alphas=alphas, top=options.top)
    prompts = encoder.tokenizer.decode(original), encoder.tokenizer.decode(imagined)
    text = encoder.tokenizer.decode(answer, skip_special_tokens=True)
    right, marks = None, [""] * len(answer)
    if options.graded and options.along == "decoded":
        right = score_output(sample, text, encoder.prompt_set.marker(sample.format)).right
    if options.graded:
        marks = token_marks(encoder, sample, answer, right=right is True)
    return Inspected(sample, text, prompts, found, right, marks)


def token_marks(encoder: ViewEncoder, sample: EventSample, answer: Sequence[int], *, right: bool) -> list[str]:
    """Mark each token of an answer `right`, `wrong` or "", compared with the most similar gold answer.

    Tokens of the response form ("The answer is:") and the end of the turn get no mark. If the whole answer counts as
    `right`, differences such as a capital letter are not wrong.
    """
    answers = [[one] for one in sample.answers] if sample.format == "qa" else [sample.answers]
    each = [sample.model_copy(update={"answers": own}) for own in answers]
    matched = [(SequenceMatcher(None, encoder.answer_ids(gold), list(answer), autojunk=False), gold) for gold in each]
    matcher, gold = max(matched, key=lambda pair: pair[0].ratio())
    content = encoder.answer_content(gold)
    marks = ["" if right else "wrong"] * len(answer)
    for block in matcher.get_matching_blocks():
        for step in range(block.size):
            marks[block.b + step] = "right" if content[block.a + step] else ""
    ends = {encoder.end_of_turn}
    return ["" if token in ends else mark for token, mark in zip(answer, marks, strict=True)]
