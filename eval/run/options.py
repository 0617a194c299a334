"""How an evaluation decodes: what the call says, with defaults from the run's recipe.

A run folder says itself how it wants to be decoded: its recipe gives α and the prompt set, which an option can
override. Anything else (a Hub name, a plain checkpoint, an endpoint) is decoded with α = 0 unless told otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from d2e_sft.config.decoding import DecodingConfig, describe, given_decoder
from d2e_sft.config.recipe import EvalSection, ModelSection, recipe_of
from d2e_sft.data.prompts import Setting
from d2e_sft.judge.options import EndpointOptions
from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import warn
from eval.score.likelihood import Normalise

EngineName = Literal["auto", "transformers", "vllm", "openai"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
OverlongRule = Literal["error", "truncate_context"]
OVERLONG_RULES: tuple[OverlongRule, ...] = get_args(OverlongRule)
AnswerRule = Literal["generate", "likelihood"]
ANSWER_RULES: tuple[AnswerRule, ...] = get_args(AnswerRule)


@dataclass(frozen=True)
class EvalOptions:
    """How to decode and score; None means: as the run's recipe says, else the default of `EvalSection`.

    Attributes:
        engine: `auto` is `openai` where the endpoint has an address, else `transformers`.
        answer: generate a text and read the answer from it, or take the likeliest of a sample's options.
        normalise: by what length of an option its log-probability is divided to find the likeliest.
        tokenizer: of an endpoint's model whose options are scored; None: the model's name is one.
        without_context: decode the imagined prompts alone, plainly: what the model says when it has not read.
        alpha: the debias ratio of the decoder `d2e`; None: as trained, else 0.
        decoder: `NAME` or `NAME:KEY=VALUE,…`, as `DecodingConfig` takes it; None: `d2e`.
        plausibility: only tokens that the original view gives at least so much of its best probability; 0 allows all.
        max_samples: at most so many samples of each dataset × relation × format, drawn with `seed`.
        seed: of the subset, the demonstrations and the bootstrap.
        demonstrations: a file or folder of training rows for the few-shot setting; None looks beside the benchmark.
        overlong: what to do about prompts that exceed the model's context.
        dtype: of the weights; None is the recipe's in process, and vLLM's own choice in vLLM; `auto` is bfloat16 where
            this machine computes in it fast, else float32, and resolved by `resolve_options`.
        compiled: compile the decoding step of the transformers engine.
        vllm: options of the vLLM engine alone, by `load_llm`'s names.
        endpoint: options of the openai engine alone.
        overwrite: remove results that came from another model or other options, instead of refusing to mix.
        accept_edited: score finished predictions again although somebody changed them, instead of refusing.
    """

    engine: EngineName = "auto"
    answer: AnswerRule = "generate"
    normalise: Normalise = "none"
    tokenizer: str | None = None
    setting: Setting = "zero_shot"
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
    dtype: str | None = None
    compiled: bool = False
    vllm: dict[str, Any] = field(default_factory=dict)
    endpoint: EndpointOptions = field(default_factory=EndpointOptions)
    skip_bad: bool = False
    overwrite: bool = False
    accept_edited: bool = False


@dataclass(frozen=True)
class EvalConfig:
    """What an evaluation does: the options of the call, and everything that they leave open.

    Attributes:
        options: as given.
        engine: which one that is.
        decoding: plain where the context is left out, since the two views are then the same; plausibility is 0 where
            decoding is plain, which takes the likeliest token already.
        max_samples: None takes all.
        section: how the model was trained: dtype and attention.
    """

    options: EvalOptions
    engine: Literal["transformers", "vllm", "openai"]
    decoding: DecodingConfig
    prompt_set: str
    max_samples: int | None
    section: ModelSection


def resolve_options(model: str, options: EvalOptions) -> EvalConfig:
    """Fill in the defaults for a model.

    Raises:
        UserError: options that contradict each other, or one of decoding that is out of its range.
    """
    engine = options.engine
    if engine == "auto":
        engine = "openai" if options.endpoint.base_url is not None else "transformers"
    if engine == "openai":
        _refuse_what_endpoints_cannot(model, options)
    elif engine == "transformers" and options.dtype == "auto":
        from d2e_sft.model.device import automatic_dtype  # torch, which options alone do not need

        options = replace(options, dtype=automatic_dtype())
    recipe = None if engine == "openai" else recipe_of(model)
    own = EvalSection() if recipe is None else recipe.eval
    default = DecodingConfig(alpha=0.0) if recipe is None else recipe.decoding
    limit = own.cot_max_new_tokens if options.setting == "cot" else own.max_new_tokens
    asked = DecodingConfig(
        **given_decoder(options.decoder, options.alpha, default.alpha),
        plausibility=options.plausibility,
        max_new_tokens=options.max_new_tokens or limit,
        batch_size=options.batch_size or own.batch_size,
        compiled=options.compiled,
    )
    if options.answer == "likelihood":
        _refuse_what_scoring_cannot(options, engine, asked)
    _refuse_a_decoder_without_effect(model, options, asked)
    decoding = replace(asked, decoder="plain") if options.without_context else asked
    return EvalConfig(
        options=options,
        engine=engine,
        decoding=decoding if decoding.needs_imagined else replace(decoding, plausibility=0.0),
        prompt_set=options.prompt_set or (recipe.data.prompt_set if recipe is not None else "default"),
        max_samples=options.max_samples or own.max_samples,
        section=recipe.model if recipe is not None else ModelSection(),
    )


def warn_of_idle_options(config: EvalConfig) -> None:
    """Say on stderr which given option changes nothing."""
    if config.options.plausibility > config.decoding.plausibility:
        warn(
            "--plausibility has no effect where α is 0 or the decoder is plain: plain decoding takes the likeliest "
            "token already"
        )


def _refuse_a_decoder_without_effect(model: str, options: EvalOptions, asked: DecodingConfig) -> None:
    if options.decoder is None:
        return
    if options.without_context and asked.needs_imagined:
        raise UserError(
            f"--decoder {options.decoder} with --without-context: it contrasts the prompts with and without context, "
            "and the former are left out; expected plain",
            remedy="drop one of the two",
        )
    if options.decoder == "d2e" and options.alpha is None and asked.alpha == 0:
        raise UserError(
            f"--decoder d2e: α is 0, as {model} was not trained with another, and that is plain decoding",
            remedy="say α: --decoder d2e:alpha=0.5",
        )


def _refuse_what_endpoints_cannot(model: str, options: EvalOptions) -> None:
    asked: dict[str, tuple[Any, str]] = {"alpha": (options.alpha, "α = 0")} if options.alpha else {}
    if options.decoder is not None and DecodingConfig(decoder=options.decoder).needs_imagined:
        asked["decoder"] = (options.decoder, "plain")
    for option, (value, expected) in asked.items():
        raise UserError(
            f"--{option} {value} with --engine openai: an endpoint decodes plainly, as it gives out no logits to "
            f"contrast; expected {expected}",
            remedy=f"drop --{option}, or decode the model here: --engine transformers or vllm",
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


def _refuse_what_scoring_cannot(options: EvalOptions, engine: str, asked: DecodingConfig) -> None:
    """Options of generated answers, which would have no effect, and an engine without the distribution."""
    generates = {
        "--setting cot": options.setting == "cot",
        f"--max-new-tokens {options.max_new_tokens}": options.max_new_tokens is not None,
        "--compile": options.compiled,
    }
    for flag in (flag for flag, is_given in generates.items() if is_given):
        raise UserError(
            f"{flag} with --answer likelihood: is about text that is generated, and options are scored as they are",
            remedy="drop one of the two",
        )
    if asked.plausibility > 0:
        raise UserError(
            f"--plausibility {asked.plausibility:g} with --answer likelihood: an option with a token below the "
            "cut-off would have no probability at all; expected 0",
            remedy="drop one of the two",
        )
    if engine == "vllm" and asked.needs_imagined and not options.without_context:
        raise UserError(
            f"--answer likelihood with --engine vllm, decoded {describe(asked.record())}: vLLM gives out the "
            "log-probabilities of its own distribution alone; expected plain decoding",
            remedy="add --decoder plain, or score in process: --engine transformers",
        )
