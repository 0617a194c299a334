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
_POSITIVE = Number(min=0, min_open=True)


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


# field → settings of its click option
_ENDPOINT: dict[str, dict[str, Any]] = {
    "base_url": {"metavar": "URL", "help": "Endpoint; default: $OPENAI_BASE_URL, else OpenAI's own."},
    "key_env": {"metavar": "NAME", "help": "Environment variable with the endpoint's key."},
    "timeout": {"type": _POSITIVE, "help": "Seconds to wait for a reply."},
    "attempts": {"type": _COUNT, "help": "How often a throttled, failed or stalled request is sent at most."},
    "concurrency": {"type": _COUNT, "help": "Requests at once."},
    "temperature": {"type": Temperature(), "help": "0 is greedy; `default` for models that only accept their own."},
}
_JUDGE: dict[str, dict[str, Any]] = {
    "backend": {
        "type": click.Choice(get_args(BackendName)),
        "help": "Who judges: rules only, an OpenAI-compatible endpoint, or a local transformers model.",
    },
    "model": {"metavar": "NAME", "help": "The endpoint's model, or a Hub name or folder for local."},
    **_ENDPOINT,
    "concurrency": {"type": _COUNT, "help": "Requests at once; for local, the prompts decoded together."},
    "prices": {"metavar": "IN,OUT", "help": "USD per million prompt and reply tokens: 2.5,10."},
    "max_cost": {"type": _POSITIVE, "help": "Most USD that this run may cost; needs --judge-price."},
    "max_tokens": {"type": _COUNT, "help": "Longest reply, in tokens."},
    "dtype": {
        "type": click.Choice(get_args(JudgeOptions.model_fields["dtype"].annotation)),
        "help": "Data type of a local model's weights.",
    },
    "cache": {
        "type": click.Path(file_okay=False, path_type=Path),
        "help": "Folder of the replies; default: judge in the cache folder.",
    },
}
_JUDGE_FLAGS = {"backend": "--judge", "base_url": "--judge-url", "prices": "--judge-price"}
_ONLY_FOR: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("base_url", "key_env", "prices", "max_cost", "timeout", "attempts", "temperature"), ("openai",)),
    "dtype": ("local",),
}


def _option(flag: str, name: str, default: object, settings: dict[str, Any]) -> Callable[[Any], Any]:
    return click.option(flag, name, default=default, show_default=default is not None, **settings)


def endpoint_flags(defaults: EndpointOptions) -> dict[str, Callable[[Any], Any]]:
    """Return the click option of each field of `EndpointOptions`, with the given defaults."""
    return {
        field: _option(f"--{field.replace('_', '-')}", field, getattr(defaults, field), settings)
        for field, settings in _ENDPOINT.items()
    }


def judge_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the `--judge…` options to a click command, which gets them as one argument, `judge: JudgeOptions`.

    The command raises UserError for contradictory options before it does anything.
    """

    @functools.wraps(command)
    def with_judge(*args: Any, **values: Any) -> Any:
        given = {field: values.pop(f"judge_{field}") for field in _JUDGE}
        return command(*args, **values, judge=_collect(given, click.get_current_context()))

    decorated: Callable[..., Any] = with_judge
    defaults = JudgeOptions()
    for field, settings in reversed(_JUDGE.items()):
        decorated = _option(_flag(field), f"judge_{field}", getattr(defaults, field), settings)(decorated)
    return decorated


def _collect(values: dict[str, Any], context: click.Context) -> JudgeOptions:
    backend = values["backend"]
    for field in values:
        backends = _ONLY_FOR.get(field, () if field == "backend" else ("openai", "local"))
        is_given = context.get_parameter_source(f"judge_{field}") is ParameterSource.COMMANDLINE
        if backends and backend not in backends and is_given:
            raise UserError(
                f"{_flag(field)}: not available with --judge {backend}; expected --judge {' or '.join(backends)}",
                remedy=f"drop it, or add --judge {backends[0]}",
            )
    try:
        return JudgeOptions.model_validate(values)
    except ValidationError as error:
        raise UserError(f"options of the judge: {describe_validation_error(error)}") from None


def _flag(field: str) -> str:
    return _JUDGE_FLAGS.get(field, f"--judge-{field.replace('_', '-')}")
