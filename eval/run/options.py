"""How an evaluation decodes: what the call says, with defaults from the run's recipe.

A run folder says itself how it wants to be decoded: its recipe gives α and the prompt set, which an option can
override. Anything else (a Hub name, a plain checkpoint, an endpoint) is decoded with α = 0 unless told otherwise.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from d2e_sft.config.recipe import EvalSection, ModelSection, Recipe, recipe_of
from d2e_sft.data.prompts import Setting
from d2e_sft.judge.options import EndpointOptions
from d2e_sft.util.errors import UserError

EngineName = Literal["auto", "transformers", "vllm", "openai"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
OverlongRule = Literal["error", "truncate_context"]
OVERLONG_RULES: tuple[OverlongRule, ...] = get_args(OverlongRule)


@dataclass(frozen=True)
class EvalOptions:
    """How to decode and score; None means: as the run's recipe says, else the default of `EvalSection`.

    Attributes:
        engine: `auto` is `openai` where the endpoint has an address, else `transformers`.
        without_context: decode the imagined prompts alone, plainly: what the model says when it has not read.
        plausibility: only tokens that the original view gives at least so much of its best probability; 0 allows all.
        max_samples: at most so many samples of each dataset × relation × format, drawn with `seed`.
        seed: of the subset, the demonstrations and the bootstrap.
        demonstrations: a file or folder of training rows for the few-shot setting; None looks beside the benchmark.
        overlong: what to do about prompts that exceed the model's context.
        dtype: of the weights; None is the recipe's in process, and vLLM's own choice in vLLM.
        compiled: compile the decoding step of the transformers engine.
        vllm: options of the vLLM engine alone, by `load_llm`'s names.
        endpoint: options of the openai engine alone.
        overwrite: remove results that came from another model or other options, instead of refusing to mix.
    """

    engine: EngineName = "auto"
    setting: Setting = "zero_shot"
    without_context: bool = False
    alpha: float | None = None
    plausibility: float = 0.0
    prompt_set: str | None = None
    batch_size: int | None = None
    max_new_tokens: int | None = None
    max_samples: int | None = None
    seed: int = 0
    demonstrations: Path | None = None
    overlong: OverlongRule = "error"
    dtype: str | None = None
    compiled: bool = False
    vllm: dict[str, Any] = field(default_factory=dict)
    endpoint: EndpointOptions = field(default_factory=EndpointOptions)
    skip_bad: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class Decoding:
    """The options with every default filled in.

    Attributes:
        alpha: 0 where the context is left out, since the two views are then the same.
        plausibility: 0 where α is, since plain decoding takes the likeliest token already.
        max_samples: None takes all.
        section: how the model was trained: dtype and attention.
    """

    engine: Literal["transformers", "vllm", "openai"]
    setting: Setting
    without_context: bool
    alpha: float
    plausibility: float
    prompt_set: str
    batch_size: int
    max_new_tokens: int
    max_samples: int | None
    seed: int
    overlong: OverlongRule
    dtype: str | None
    section: ModelSection


def resolve_options(model: str, options: EvalOptions) -> Decoding:
    """Fill in the defaults for a model.

    Raises:
        UserError: options that contradict each other, or an α or a plausibility out of its range.
    """
    engine = _engine(options)
    recipe = None if engine == "openai" else recipe_of(model)
    own = EvalSection() if recipe is None else recipe.eval
    alpha = _alpha(options, recipe)
    if engine == "openai":
        _refuse_what_endpoints_cannot(model, options, alpha)
    _check_plausibility(options)
    limit = own.cot_max_new_tokens if options.setting == "cot" else own.max_new_tokens
    return Decoding(
        engine=engine,
        setting=options.setting,
        without_context=options.without_context,
        alpha=0.0 if options.without_context else alpha,
        plausibility=0.0 if options.without_context or alpha == 0 else options.plausibility,
        prompt_set=options.prompt_set or (recipe.data.prompt_set if recipe is not None else "default"),
        batch_size=options.batch_size or own.batch_size,
        max_new_tokens=options.max_new_tokens or limit,
        max_samples=options.max_samples or own.max_samples,
        seed=options.seed,
        overlong=options.overlong,
        dtype=options.dtype,
        section=recipe.model if recipe is not None else ModelSection(),
    )


def warn_of_idle_options(options: EvalOptions, decoding: Decoding) -> None:
    """Say on stderr which given option changes nothing."""
    if options.plausibility > decoding.plausibility:
        print(
            "warning: --plausibility has no effect where α is 0: plain decoding takes the likeliest token already",
            file=sys.stderr,
        )


def _engine(options: EvalOptions) -> Literal["transformers", "vllm", "openai"]:
    if options.engine != "auto":
        return options.engine
    return "openai" if options.endpoint.base_url is not None else "transformers"


def _alpha(options: EvalOptions, recipe: Recipe | None) -> float:
    if options.alpha is not None:
        if not (math.isfinite(options.alpha) and options.alpha >= 0):
            raise UserError(f"--alpha {options.alpha}: expected a finite number from 0 on")
        return options.alpha
    return 0.0 if recipe is None else recipe.decoding_alpha


def _check_plausibility(options: EvalOptions) -> None:
    if not 0 <= options.plausibility <= 1:
        raise UserError(f"--plausibility {options.plausibility:g}: expected a number from 0 to 1")


def _refuse_what_endpoints_cannot(model: str, options: EvalOptions, alpha: float) -> None:
    if alpha > 0:
        raise UserError(
            f"--alpha {alpha:g} with --engine openai: an endpoint decodes plainly, as it gives out no logits to "
            "subtract; expected α = 0",
            remedy="drop --alpha, or decode the model here: --engine transformers or vllm",
        )
    if options.plausibility > 0:
        raise UserError(
            f"--plausibility {options.plausibility:g} with --engine openai: an endpoint decodes plainly, so there is "
            "nothing to cut off; expected 0",
            remedy="drop --plausibility, or decode the model here: --engine transformers or vllm",
        )
    if options.overlong != "error":
        raise UserError(
            f"--overlong {options.overlong} with --engine openai: {model!r} cannot be asked for its tokens, so no "
            "context can be cut to fit; expected error",
            remedy="drop --overlong; the server refuses what is too long for it, and the sample is named",
        )
