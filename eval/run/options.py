"""How an evaluation decodes: the options of the call, with defaults from the run's recipe.

The recipe of a run folder gives α, the prompt set and its form, which options can override. Any other model (a Hub
name, a plain checkpoint) is decoded with α = 0 by default. An endpoint decodes plainly, also if it serves a run.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import click

from d2e_sft.config.decoding import MAX_ALPHA, DecodingConfig, describe, given_decoder
from d2e_sft.config.options import Number, OneOf
from d2e_sft.config.recipe import EvalSection, ModelSection, recipe_of
from d2e_sft.data.chat_template import FORMS, Form
from d2e_sft.data.prompts import SETTINGS, Setting
from d2e_sft.judge.options import EndpointOptions
from d2e_sft.util.errors import UserError
from d2e_sft.util.startup import preload
from d2e_sft.util.terminal import warn
from eval.score.scoring import NORMALISATIONS, Normalise

EngineName = Literal["auto", "transformers", "vllm", "openai"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
OverlongRule = Literal["error", "truncate_context"]
OVERLONG_RULES: tuple[OverlongRule, ...] = get_args(OverlongRule)
AnswerRule = Literal["generate", "likelihood"]
ANSWER_RULES: tuple[AnswerRule, ...] = get_args(AnswerRule)


def _flag(help: str, default: Any = None, *, engines: Sequence[str] = (), **click_options: Any) -> Any:
    """Return a field that is an option of the command line, with click's settings and the `engines` that use it."""
    return field(default=default, metadata={"help": help, "engines": engines, **click_options})


@dataclass(frozen=True)
class EvalOptions:
    """How to decode and score; None: as in the run's recipe, else the default of `EvalSection`.

    The fields with a help text are the options of `d2e eval`. `vllm` are options of the vLLM engine with `load_llm`'s
    names. A `dtype` of None is the recipe's in process and vLLM's own choice in vLLM; `resolve_options` resolves auto.
    """

    setting: Setting = _flag("Prompt setting.", "zero_shot", type=click.Choice(SETTINGS))
    form: Form | None = _flag(
        "Turns of a chat; one_turn: demonstrations and question in one turn; or completion: one text that is "
        "continued, for base models without a chat template. [default: as trained, else chat]",
        type=OneOf(FORMS),
    )
    demonstrations: Path | None = _flag(
        "Training rows for few-shot prompts. [default: the benchmark's own train split, else data/piper-10k]",
        type=click.Path(path_type=Path),
        metavar="PATH",
    )
    alpha: float | None = _flag("Debias ratio. [default: as trained, else 0]", type=Number(0, MAX_ALPHA))
    decoder: str | None = None  # `NAME` or `NAME:KEY=VALUE,…`, as in `DecodingConfig`; None: `d2e`
    plausibility: float = _flag(
        "Only tokens with at least β times the original view's best probability. [default: 0, which is all]",
        0.0,
        type=Number(min=0, max=1),
        metavar="β",
    )
    answer: AnswerRule = _flag(
        "Generate a text, or take the likeliest of a sample's options.", "generate", type=click.Choice(ANSWER_RULES)
    )
    normalise: Normalise = _flag(
        "With --answer likelihood: length that divides an option's log-probability.",
        "none",
        type=click.Choice(NORMALISATIONS),
    )
    prompt_set: str | None = _flag("Wording. [default: as trained, else `default`]")
    max_new_tokens: int | None = _flag("Longest answer, in tokens. [default: 64; cot 512]", type=click.IntRange(min=1))
    max_samples: int | None = _flag(
        "Most samples per dataset × relation × format, or of a system's units.", type=click.IntRange(min=1)
    )
    seed: int = _flag(
        "For the subset, the demonstrations and the bootstrap.", 0, type=click.IntRange(min=0, max=2**32 - 1)
    )
    overlong: OverlongRule = _flag(
        "What to do with contexts beyond the model's length.", "error", type=click.Choice(OVERLONG_RULES)
    )
    without_context: bool = _flag("Decode the prompts without context, for `d2e errors` and `d2e compare`.", False)
    skip_bad: bool = _flag("Keep bad rows in a side file instead of stopping.", False)
    overwrite: bool = _flag("Decode again, and remove results of other models and options.", False)
    accept_edited: bool = _flag("Score finished predictions again although they were edited.", False)
    engine: EngineName = _flag(
        "Decoding engine; openai: an endpoint, which decodes plainly (α = 0).", "auto", type=click.Choice(ENGINES)
    )
    batch_size: int | None = _flag(
        "Samples decoded at a time. [default: as many as fit the memory, up to 64]",
        engines=("transformers",),
        type=click.IntRange(min=1),
    )
    dtype: str | None = _flag(
        "Data type of the weights; auto: bfloat16 if this machine computes it fast, else float32. [default: as in the "
        "recipe, else float32; with vllm the checkpoint's]",
        engines=("transformers", "vllm"),
        type=click.Choice(["float32", "bfloat16", "float16", "auto"]),
    )
    num_beams: int = _flag(
        "Beams of plain decoding; for encoder-decoder models such as Flan-T5.",
        1,
        engines=("transformers",),
        type=click.IntRange(min=1),
    )
    compiled: bool = _flag("Compile the decoding step; for GPUs.", False, engines=("transformers",), flag="--compile")
    vllm: dict[str, Any] = field(default_factory=dict)
    endpoint: EndpointOptions = field(default_factory=EndpointOptions)
    tokenizer: str | None = _flag(
        "Tokenizer of an endpoint's model, for --answer likelihood: a Hub name or a folder. [default: MODEL]",
        engines=("openai",),
        metavar="NAME",
    )


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
        preload("torch")  # which options do not need
        from d2e_sft.model.device import automatic_dtype

        options = replace(options, dtype=automatic_dtype())
    recipe = recipe_of(model)
    defaults = EvalSection() if recipe is None else recipe.eval
    default = DecodingConfig(alpha=0.0) if recipe is None or engine == "openai" else recipe.decoding
    limit = defaults.cot_max_new_tokens if options.setting == "cot" else defaults.max_new_tokens
    decoding = DecodingConfig(
        **given_decoder(options.decoder, options.alpha, default.alpha),
        plausibility=options.plausibility,
        num_beams=options.num_beams,
        max_new_tokens=options.max_new_tokens or limit,
        batch_size=options.batch_size or defaults.batch_size,
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
        max_samples=options.max_samples or defaults.max_samples,
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
    for applies, conflicting, reason, remedy, flags in conflicts:
        for flag, is_given in flags.items():
            if applies and is_given:
                raise UserError(f"{flag} with {conflicting}: {reason}", remedy)


def _conflicts(model: str, options: EvalOptions, engine: str, decoding: DecodingConfig) -> list[Conflict]:
    endpoint, likelihood = engine == "openai", options.answer == "likelihood"
    alpha, decoder, plausibility, overlong = options.alpha, options.decoder, options.plausibility, options.overlong
    contrast = decoder is not None and decoding.needs_imagined
    by_vllm = likelihood and engine == "vllm" and not options.without_context
    plainly = "an endpoint decodes plainly, as it gives out no logits"
    hidden = f"{model!r} does not show its tokens, so contexts cannot be cut to fit; expected error"
    scored = "concerns generated text, and options are scored"
    cut_off = "an option with a token below the cut-off would have no probability at all; expected 0"
    vllm_only = "vLLM only gives the log-probabilities of its own distribution; expected plain decoding"
    both = "it contrasts the prompts with and without context, and the former are left out; expected plain"
    locally, drop_one = "drop it, or decode the model here: --engine transformers or vllm", "drop one of the two"
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
        (endpoint, "--engine openai", plainly, locally, of_contrast),
        (endpoint, "--engine openai", hidden, refusing, {f"--overlong {overlong}": overlong != "error"}),
        (likelihood, "--answer likelihood", scored, drop_one, of_generation),
        (likelihood, "--answer likelihood", cut_off, drop_one, cut),
        (by_vllm, vllm, vllm_only, in_process, {"--answer likelihood": decoding.needs_imagined}),
        (options.without_context, "--without-context", both, drop_one, {f"--decoder {decoder}": contrast}),
    ]
