"""Command-line options of an endpoint, and the `--judge…` options, shared by all commands that use them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource
from pydantic import ValidationError

from d2e_sft.config.options import Number
from d2e_sft.judge.options import BackendName, EndpointOptions, JudgeOptions
from d2e_sft.util.errors import UserError, describe_validation_error

_SERVERS_OWN = "default"
_COUNT = click.IntRange(min=1)


class Temperature(click.ParamType):
    """A number, or None for `default`, the server's own."""

    name = "NUMBER|default"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        if value == _SERVERS_OWN:
            return None
        try:
            return float(str(value))
        except ValueError:
            self.fail(f"got {value!r}; expected a number, or {_SERVERS_OWN!r} for the server's own", param, ctx)


def _option(name: str, **settings: Any) -> Callable[[Any], Any]:
    return click.option(f"--{name}", show_default="default" in settings, **settings)


def endpoint_flags(defaults: EndpointOptions, prefix: str = "") -> dict[str, Callable[[Any], Any]]:
    """Return the click option of each field of `EndpointOptions`.

    Args:
        defaults: values of options that are not given.
        prefix: of the option names, for example `judge-`.
    """
    url = "Endpoint; default: $OPENAI_BASE_URL, else OpenAI's own."
    settings: dict[str, dict[str, Any]] = {
        "key_env": {"metavar": "NAME", "help": "Environment variable with the endpoint's key."},
        "timeout": {"type": Number(min=0, min_open=True), "help": "Seconds to wait for a reply."},
        "attempts": {"type": _COUNT, "help": "How often a throttled, failed or stalled request is sent at most."},
        "concurrency": {"type": _COUNT, "help": "Requests at once."},
        "temperature": {
            "type": Temperature(),
            "help": "0 is greedy; `default` for models that only accept their own.",
        },
    }
    return {
        "base_url": _option(prefix + ("url" if prefix else "base-url"), metavar="URL", help=url),
        **{
            field: _option(prefix + field.replace("_", "-"), default=getattr(defaults, field), **its)
            for field, its in settings.items()
        },
    }


class _Prices(click.ParamType):
    name = "IN,OUT"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, float]:
        if isinstance(value, tuple):
            return value
        try:
            price_in, price_out = (float(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"got {value!r}; expected two prices, for example 2.5,10", param, ctx)
        return price_in, price_out


_DEFAULTS = JudgeOptions()
_ASKED = ("openai", "local")
_ENDPOINT = endpoint_flags(_DEFAULTS, "judge-")
_ONLY_FOR: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("base_url", "key_env", "price", "max_cost", "timeout", "attempts", "temperature"), ("openai",)),
    "dtype": ("local",),
}
# field of JudgeOptions → the option
_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "model": _option("judge-model", metavar="NAME", help="The endpoint's model, or a Hub name or folder for local."),
    "base_url": _ENDPOINT["base_url"],
    "key_env": _ENDPOINT["key_env"],
    "concurrency": _option(
        "judge-concurrency",
        type=_COUNT,
        default=_DEFAULTS.concurrency,
        help="Requests at once; for local, the prompts decoded together.",
    ),
    "price": _option("judge-price", type=_Prices(), help="USD per million prompt and reply tokens: 2.5,10."),
    "max_cost": _option(
        "judge-max-cost",
        type=Number(min=0, min_open=True),
        help="Most USD that this run may cost; needs --judge-price.",
    ),
    "timeout": _ENDPOINT["timeout"],
    "attempts": _ENDPOINT["attempts"],
    "max_tokens": _option(
        "judge-max-tokens", type=_COUNT, default=_DEFAULTS.max_tokens, help="Longest reply, in tokens."
    ),
    "temperature": _ENDPOINT["temperature"],
    "dtype": _option(
        "judge-dtype",
        type=click.Choice(get_args(JudgeOptions.model_fields["dtype"].annotation)),
        default=_DEFAULTS.dtype,
        help="Of a local model's weights.",
    ),
    "cache": _option(
        "judge-cache",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder of the replies; default: judge in the cache folder.",
    ),
}
_FLAGS = {"base_url": "--judge-url"}


def judge_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the `--judge…` options to a click command, which gets them as one argument, `judge: JudgeOptions`.

    The command raises UserError for contradictory options before it does anything.
    """

    @functools.wraps(command)
    def with_judge(*args: Any, **values: Any) -> Any:
        given = {name: values.pop(_parameter(name)) for name in ("backend", *_OPTIONS)}
        return command(*args, **values, judge=_collect(given, click.get_current_context()))

    decorated: Callable[..., Any] = with_judge
    for option in reversed(_OPTIONS.values()):
        decorated = option(decorated)
    backend = click.option(
        "--judge",
        "judge_backend",
        type=click.Choice(get_args(BackendName)),
        default=_DEFAULTS.backend,
        show_default=True,
        help="Who judges: rules only, an OpenAI-compatible endpoint, or a local transformers model.",
    )
    return backend(decorated)


def _collect(values: dict[str, Any], context: click.Context) -> JudgeOptions:
    backend = values["backend"]
    for name in _OPTIONS:
        backends = _ONLY_FOR.get(name, _ASKED)
        if backend not in backends and context.get_parameter_source(_parameter(name)) is ParameterSource.COMMANDLINE:
            raise UserError(
                f"{_flag(name)}: not available with --judge {backend}; expected --judge {' or '.join(backends)}",
                remedy=f"drop it, or add --judge {backends[0]}",
            )
    values["price_in"], values["price_out"] = values.pop("price") or (None, None)
    try:
        return JudgeOptions.model_validate(values)
    except ValidationError as error:
        raise UserError(f"options of the judge: {describe_validation_error(error)}") from None


def _flag(name: str) -> str:
    return _FLAGS.get(name, f"--judge-{name.replace('_', '-')}")


def _parameter(name: str) -> str:
    return _flag(name).removeprefix("--").replace("-", "_")
