"""The command-line options that say how an endpoint is asked, for every command that asks one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from d2e_sft.judge.options import EndpointOptions

_SERVERS_OWN = "default"


class Temperature(click.ParamType):
    """A number, or `default` for the server's own, which is None."""

    name = "NUMBER|default"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        if value == _SERVERS_OWN:
            return None
        try:
            return float(str(value))
        except ValueError:
            self.fail(f"got {value!r}; expected a number, or {_SERVERS_OWN!r} for the server's own", param, ctx)


def endpoint_flags(defaults: EndpointOptions, prefix: str = "") -> dict[str, Callable[[Any], Any]]:
    """By field of `EndpointOptions` its click option.

    Args:
        defaults: what holds where an option is not given.
        prefix: of the options' names, for example `judge-`.
    """

    def flag(name: str, **settings: Any) -> Callable[[Any], Any]:
        return click.option(f"--{prefix}{name}", show_default="default" in settings, **settings)

    return {
        "base_url": flag(
            "url" if prefix else "base-url",
            metavar="URL",
            help="Endpoint; default: $OPENAI_BASE_URL, else OpenAI's own.",
        ),
        "key_env": flag(
            "key-env",
            metavar="NAME",
            default=defaults.key_env,
            help="Environment variable that holds the endpoint's key.",
        ),
        "timeout": flag(
            "timeout",
            type=click.FloatRange(min=0, min_open=True),
            default=defaults.timeout,
            help="Seconds to wait for a reply.",
        ),
        "attempts": flag(
            "attempts",
            type=click.IntRange(min=1),
            default=defaults.attempts,
            help="How often a throttled, failed or stalled request is sent at most.",
        ),
        "concurrency": flag(
            "concurrency",
            type=click.IntRange(min=1),
            default=defaults.concurrency,
            help="Requests under way at once.",
        ),
        "temperature": flag(
            "temperature",
            type=Temperature(),
            default=defaults.temperature,
            help="0 is greedy; `default` for models that accept none but their own.",
        ),
    }
