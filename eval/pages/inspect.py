"""`d2e inspect`: answer samples and write a page with the model's distributions at every token.

The page has the likeliest tokens of each view at each position of an answer, for each α of a grid. The model gets the
answer's tokens (teacher forcing), so every position has the same prefix for each α. Tokens that are among the
likeliest for some α are kept; with the normaliser of each α their probabilities are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from d2e_sft.config.recipe import recipe_of
from d2e_sft.data.chat_template import cut
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, finished, generate, stop_token_ids
from d2e_sft.decoding.pairs import TokenPair
from d2e_sft.model.device import usable_device
from d2e_sft.model.finite import non_finite_output
from d2e_sft.model.loading import load_model, position_limit
from d2e_sft.util.files import write_whole
from d2e_sft.util.html.pages import render_page
from d2e_sft.util.progress import Progress
from eval.run.options import OverlongRule
from eval.run.task import encode, sample_task
from eval.score.scoring import score_output

_DIGITS = 5


@dataclass(frozen=True)
class Candidate:
    """A token at one position, with its log-probability in each view in nats, rounded to five decimals."""

    token: int
    text: str
    original: float
    imagined: float


@dataclass(frozen=True)
class AnswerPosition:
    """One position of the answer.

    Attributes:
        text: the answer's own token, whose candidate has the index `chosen`.
        normalisers: log Σ exp(original − α · imagined) over the vocabulary for each α. A candidate's debiased
            log-probability is original − α · imagined − normaliser.
    """

    text: str
    chosen: int
    candidates: list[Candidate]
    normalisers: list[float]


def answer_positions(
    model: Any,
    tokenizer: Any,
    pair: TokenPair,
    answer: Sequence[int],
    *,
    alphas: Sequence[float],
    top: int = 8,
) -> list[AnswerPosition]:
    """Compute the positions of one answer by a model in eval mode; UserError if a probability is NaN.

    `answer` ends with the end token; `top` is the number of likeliest tokens to keep.
    """
    prompts = (pair.original, pair.imagined or pair.original)
    both = [_log_probabilities(model, prompt, answer) for prompt in prompts]  # (A, V) each
    if any(view.isnan().any() for view in both):
        raise non_finite_output(pair.name, "the probabilities of its answer contain NaN", model)
    rows = zip(answer, *both, strict=True)
    return [_position(tokenizer, token, original, imagined, alphas, top) for token, original, imagined in rows]


@torch.no_grad()
def _log_probabilities(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    """(A, V) log-probabilities at the positions that predict the answer's tokens."""
    device = model.device
    if model.config.is_encoder_decoder:
        start = model.config.decoder_start_token_id
        decoder = torch.tensor([[start, *answer[:-1]]], device=device)
        logits = model(input_ids=torch.tensor([list(prompt)], device=device), decoder_input_ids=decoder).logits[0]
    else:
        row = torch.tensor([[*prompt, *answer[:-1]]], device=device)
        logits = model(input_ids=row).logits[0, -len(answer) :]
    return logits.float().log_softmax(dim=-1).cpu()


def _position(
    tokenizer: Any, token: int, original: Tensor, imagined: Tensor, alphas: Sequence[float], top: int
) -> AnswerPosition:
    kept = {token, *imagined.topk(top).indices.tolist()}
    normalisers = []
    for alpha in alphas:
        debiased = original - alpha * imagined  # (V,)
        normalisers.append(round(debiased.logsumexp(dim=-1).item(), _DIGITS))
        kept.update(debiased.topk(top).indices.tolist())
    order = sorted(kept, key=lambda id_: -original[id_].item())
    candidates = [
        Candidate(id_, tokenizer.decode([id_]), *(round(view[id_].item(), _DIGITS) for view in (original, imagined)))
        for id_ in order
    ]
    return AnswerPosition(tokenizer.decode([token]), order.index(token), candidates, normalisers)


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
    overlong: OverlongRule = "error"


@dataclass(frozen=True)
class Inspected:
    """A sample, its answer and its positions; `prompts` are the texts of the original and the imagined one.

    `right` says whether `d2e eval` would count the model's own answer as right; None if unknown. `marks` are those of
    `token_marks`.
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


def inspect_samples(model: str, samples: Sequence[EventSample], file: Path, options: InspectOptions) -> int:
    """Write the page about some samples, and return how many contexts were cut; UserError for an unfit model."""
    recipe = recipe_of(model)
    alpha, prompt_set = (0.5, "default") if recipe is None else (recipe.decoding.alpha, recipe.data.prompt_set)
    alpha = alpha if options.alpha is None else options.alpha
    options = replace(options, alpha=alpha)
    wording = load_prompt_set(options.prompt_set or prompt_set, "chat" if recipe is None else recipe.data.form)
    loaded = load_model(model)
    network = loaded.model.to(usable_device()).eval()
    seq2seq = network.config.is_encoder_decoder
    encoder = ViewEncoder(loaded.tokenizer, wording, ("original", "imagined"), encoder_decoder=seq2seq)
    pairs = _prompts(network, encoder, samples, options)
    shown = Progress(zip(samples, pairs, strict=True), desc="inspecting", unit="sample", total=len(samples))
    inspected = [_inspect(network, encoder, sample, pair, options) for sample, pair in shown]
    whose = "the gold ones" if options.along == "gold" else f"decoded with α = {alpha:g}"
    alphas = alpha_grid(alpha)
    data = {
        "ratios": [round(alpha, 4) for alpha in alphas],
        "start": alphas.index(alpha),
        "along": options.along if options.graded else "decoded",
        "samples": [[asdict(position) for position in item.positions] for item in inspected],
    }
    template = Path(__file__).with_name("inspect.html")
    write_whole(file, render_page(template, model=model, alpha=alpha, inspected=inspected, whose=whose, data=data))
    return sum(pair.truncated for pair in pairs)


def alpha_grid(alpha: float) -> list[float]:
    """α from 0 to the larger of 1.5 and `alpha`, which is one of them."""
    steps = int(max(_UPPER, alpha) / _STEP + 1e-9)
    return sorted({*(round(step * _STEP, 4) for step in range(steps + 1)), alpha})


def _prompts(
    model: Any, encoder: ViewEncoder, samples: Sequence[EventSample], options: InspectOptions
) -> Sequence[TokenPair]:
    new_tokens = options.max_new_tokens
    if options.along == "gold":
        new_tokens = max(len(encoder.answer_ids(sample)) for sample in samples)
    decoding = DecodingConfig(alpha=1.0, max_new_tokens=new_tokens)  # the imagined prompt is shown at any α
    task = sample_task(samples, encoder.prompt_set, decoding, truncate=options.overlong == "truncate_context")
    limit, seq2seq = position_limit(model.config), model.config.is_encoder_decoder
    return encode(task, encoder.tokenizer, encoder_decoder=seq2seq, limit=limit)[0]


def _inspect(
    model: Any, encoder: ViewEncoder, sample: EventSample, pair: TokenPair, options: InspectOptions
) -> Inspected:
    alpha, decode = options.alpha or 0.0, partial(encoder.tokenizer.decode, skip_special_tokens=True)
    if options.along == "gold":
        answer = encoder.answer_ids(sample)
        text = decode(answer)
    else:
        stops = encoder.prompt_set.stops
        decoding = DecodingConfig(alpha=alpha, max_new_tokens=options.max_new_tokens, stop_strings=stops)
        stop_ids = stop_token_ids(model, encoder.end_of_turn)
        with torch.no_grad():
            [output] = finished(generate(model, encoder.tokenizer, [pair], decoding, stop_ids=stop_ids))
        answer, text = output.tokens, cut(output.text, stops)
        if text != output.text:  # without the tokens of the text that ended it
            ends = (end for end in range(len(answer)) if decode(answer[:end]).startswith(text))
            answer = answer[: next(ends, None)]
        if len(answer) < options.max_new_tokens:  # the answer is complete
            answer = [*answer, encoder.end_of_turn]
    alphas = alpha_grid(alpha)
    positions = answer_positions(model, encoder.tokenizer, pair, answer, alphas=alphas, top=options.top)
    prompts = encoder.tokenizer.decode(pair.original), encoder.tokenizer.decode(pair.imagined or ())
    right, marks = None, [""] * len(answer)
    if options.graded and options.along == "decoded":
        wording, fmt = encoder.prompt_set, sample.format
        right = score_output(sample, text, wording.marker(fmt), given=wording.given(fmt)).right
    if options.graded:
        marks = token_marks(encoder, sample, answer, right=right is True)
    return Inspected(sample, text, prompts, positions, right, marks)


def token_marks(encoder: ViewEncoder, sample: EventSample, answer: Sequence[int], *, right: bool) -> list[str]:
    """Mark each token of an answer `right`, `wrong` or "", compared with the most similar gold answer.

    Tokens of the response form ("The answer is:") and the end of the turn get no mark. If the whole answer counts as
    `right`, differences such as a capital letter are not wrong.
    """
    answers = [[text] for text in sample.answers] if sample.format == "qa" else [sample.answers]
    golds = [sample.model_copy(update={"answers": accepted}) for accepted in answers]
    matched = [(SequenceMatcher(None, encoder.answer_ids(gold), list(answer), autojunk=False), gold) for gold in golds]
    matcher, gold = max(matched, key=lambda pair: pair[0].ratio())
    content = encoder.answer_content(gold)
    marks = ["" if right else "wrong"] * len(answer)
    for block in matcher.get_matching_blocks():
        for step in range(block.size):
            marks[block.b + step] = "right" if content[block.a + step] else ""
    ends = {encoder.end_of_turn}
    return ["" if token in ends else mark for token, mark in zip(answer, marks, strict=True)]
