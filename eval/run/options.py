"""How an evaluation decodes: the options of the call, with defaults from the run's recipe.

The recipe of a run folder gives α, the prompt set and its form, which options can override. Any other model (a Hub
name, a plain checkpoint) is decoded with α = 0 by default. An endpoint decodes plainly, also if it serves a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from d2e_sft.config.decoding import DecodingConfig, describe, given_decoder
from d2e_sft.config.recipe import EvalSection, ModelSection, recipe_of
from d2e_sft.data.chat_template import Form
from d2e_sft.data.prompts import Setting
from d2e_sft.judge.options import EndpointOptions
from d2e_sft.util.errors import UserError
from d2e_sft.util.startup import collector_paused
from d2e_sft.util.terminal import warn
from eval.score.scoring import Normalise

EngineName = Literal["auto", "transformers", "vllm", "openai"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
OverlongRule = Literal["error", "truncate_context"]
OVERLONG_RULES: tuple[OverlongRule, ...] = get_args(OverlongRule)
AnswerRule = Literal["generate", "likelihood"]
ANSWER_RULES: tuple[AnswerRule, ...] = get_args(AnswerRule)


@dataclass(frozen=True)
class EvalOptions:
    """How to decode and score; None: as in the run's recipe, else the default of `EvalSection`.

    Attributes:
        form: Turns of a chat, one turn with all demonstrations, or one text that is continued.
        engine: `auto` is `openai` if the endpoint has an address, else `transformers`.
        answer: Generate a text and extract the answer, or take the likeliest of a sample's options.
        normalise: Length by which an option's log-probability is divided to find the likeliest.
        tokenizer: Tokenizer of an endpoint's model, for scoring options; None: the model's name.
        without_context: Decode only the imagined prompts, plainly.
        alpha: The debias ratio of the decoder `d2e`; None: as trained, else 0.
        decoder: `NAME` or `NAME:KEY=VALUE,…`, as in `DecodingConfig`; None: `d2e`.
        plausibility: Least share of the original view's best probability that a token needs; 0 allows all.
        max_samples: At most this many samples of each dataset × relation × format, drawn with `seed`.
        seed: Seed of the subset, the demonstrations and the bootstrap.
        demonstrations: A file or folder of training rows for the few-shot setting; None: found near the benchmark.
        num_beams: Beams of plain decoding, for encoder-decoder models.
        dtype: Data type of the weights. None means the recipe's in process, and vLLM's own choice in vLLM. `auto` is
            bfloat16 if this machine computes it fast, else float32; `resolve_options` resolves it.
        compiled: Compile the decoding step of the transformers engine.
        vllm: Options of the vLLM engine, with `load_llm`'s names.
        overwrite: Remove results of another model or other options, instead of refusing to mix them.
        accept_edited: Score finished predictions again although they were edited, instead of refusing.
    """

    engine: EngineName = "auto"
    answer: AnswerRule = "generate"
    normalise: Normalise = "none"
    tokenizer: str | None = None
    setting: Setting = "zero_shot"
    form: Form | None = None
    without_context: bool = False
    alpha: float | None = None
    decoder: str | None = None
    plausibility: float = 0.0
    prompt_set: str | None = None
    batch_size: int | None = None
    max_new_tokens: int | None = None
    max_samples: int | None = None
    seed: int = 0
    demonstrations: Path | None = None
    overlong: OverlongRule = "error"
    num_beams: int = 1
    dtype: str | None = None
    compiled: bool = False
    vllm: dict[str, Any] = field(default_factory=dict)
    endpoint: EndpointOptions = field(default_factory=EndpointOptions)
    skip_bad: bool = False
    overwrite: bool = False
    accept_edited: bool = False


@dataclass(frozen=True)
class EvalConfig:
    """The options of an evaluation with all defaults filled in; `section` has the training's dtype and attention.

    Decoding is plain without context, as both views are then the same; plausibility is 0 if decoding is plain.
    """

    options: EvalOptions
    engine: Literal["transformers", "vllm", "openai"]
    decoding: DecodingConfig
    prompt_set: str
    form: Form
    max_samples: int | None
    section: ModelSection


def resolve_options(model: str, options: EvalOptions) -> EvalConfig:
    """Fill in the defaults for a model; UserError if options contradict each other, or one is out of range."""
    engine = options.engine
    if engine == "auto":
        engine = "openai" if options.endpoint.base_url is not None else "transformers"
    if engine == "transformers" and options.dtype == "auto":
        with collector_paused():
            from d2e_sft.model.device import automatic_dtype  # imports torch, which options do not need

        options = replace(options, dtype=automatic_dtype())
    recipe = recipe_of(model)
    own = EvalSection() if recipe is None else recipe.eval
    default = DecodingConfig(alpha=0.0) if recipe is None or engine == "openai" else recipe.decoding
    limit = own.cot_max_new_tokens if options.setting == "cot" else own.max_new_tokens
    decoding = DecodingConfig(
        **given_decoder(options.decoder, options.alpha, default.alpha),
        plausibility=options.plausibility,
        num_beams=options.num_beams,
        max_new_tokens=options.max_new_tokens or limit,
        batch_size=options.batch_size or own.batch_size,
        compiled=options.compiled,
    )
    refuse_conflicts(_conflicts(model, options, engine, decoding))
    if options.decoder == "d2e" and options.alpha is None and decoding.alpha == 0:
        raise UserError(
            f"--decoder d2e: α is 0, as {model} was not trained with another, and that is plain decoding",
            "give α: --decoder d2e:alpha=0.5",
        )
    if options.without_context:
        decoding = replace(decoding, decoder="plain")
    return EvalConfig(
        options=options,
        engine=engine,
        decoding=decoding if decoding.needs_imagined else replace(decoding, plausibility=0.0),
        prompt_set=options.prompt_set or (recipe.data.prompt_set if recipe is not None else "default"),
        form=options.form or (recipe.data.form if recipe is not None else "chat"),
        max_samples=options.max_samples or own.max_samples,
        section=recipe.model if recipe is not None else ModelSection(),
    )


def warn_of_idle_options(model: str, config: EvalConfig) -> None:
    """Warn of an option that has no effect, and of a run whose α an endpoint cannot use."""
    recipe = recipe_of(model) if config.engine == "openai" and config.options.alpha is None else None
    if recipe is not None and recipe.decoding.needs_imagined:
        warn(f"{model} is otherwise decoded {describe(recipe.decoding.record())}; an endpoint decodes plainly")
    if config.options.plausibility > config.decoding.plausibility:
        warn("--plausibility has no effect where α is 0 or the decoder is plain: it takes the likeliest token already")


# Whether an option is given that rules others out, its name, the reason, the remedy, and which others are given.
Conflict = tuple[bool, str, str, str, Mapping[str, object]]


def refuse_conflicts(conflicts: Iterable[Conflict]) -> None:
    """Raise UserError for the first option that is given together with one that rules it out."""
    for applies, other, reason, remedy, flags in conflicts:
        for flag, is_given in flags.items():
            if applies and is_given:
                raise UserError(f"{flag} with {other}: {reason}", remedy)


def _conflicts(model: str, options: EvalOptions, engine: str, decoding: DecodingConfig) -> list[Conflict]:
    endpoint, likelihood = engine == "openai", options.answer == "likelihood"
    alpha, decoder, plausibility, overlong = options.alpha, options.decoder, options.plausibility, options.overlong
    contrast = decoder is not None and decoding.needs_imagined
    by_vllm = likelihood and engine == "vllm" and not options.without_context
    plainly = "an endpoint decodes plainly, as it gives out no logits"
    hidden = f"{model!r} does not show its tokens, so contexts cannot be cut to fit; expected error"
    scored = "concerns generated text, and options are scored"
    cut_off = "an option with a token below the cut-off would have no probability at all; expected 0"
    own = "vLLM only gives the log-probabilities of its own distribution; expected plain decoding"
    both = "it contrasts the prompts with and without context, and the former are left out; expected plain"
    here, one = "drop it, or decode the model here: --engine transformers or vllm", "drop one of the two"
    cut = {f"--plausibility {plausibility:g}": plausibility > 0}
    of_contrast = {f"--alpha {alpha}": alpha, f"--decoder {decoder}": contrast, **cut}
    of_generation = {
        "--setting cot": options.setting == "cot",
        f"--max-new-tokens {options.max_new_tokens}": options.max_new_tokens is not None,
        "--compile": options.compiled,
        f"--num-beams {options.num_beams}": options.num_beams > 1,
    }
    refusing = "drop it; the server refuses prompts that are too long for it, and the sample is named"
    in_process = "add --decoder plain, or score in process: --engine transformers"
    vllm = f"--engine vllm, decoded {describe(decoding.record())}"
    return [
        (endpoint, "--engine openai", plainly, here, of_contrast),
        (endpoint, "--engine openai", hidden, refusing, {f"--overlong {overlong}": overlong != "error"}),
        (likelihood, "--answer likelihood", scored, one, of_generation),
        (likelihood, "--answer likelihood", cut_off, one, cut),
        (by_vllm, vllm, own, in_process, {"--answer likelihood": decoding.needs_imagined}),
        (options.without_context, "--without-context", both, one, {f"--decoder {decoder}": contrast}),
    ]
