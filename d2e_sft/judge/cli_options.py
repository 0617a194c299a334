"""Command-line options of an endpoint, and the `--judge…` options, shared by all commands that use them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, get_args

import click
from pydantic import ValidationError

from d2e_sft.config.options import reject_unused
from d2e_sft.judge.options import BackendName, EndpointOptions, JudgeOptions
from d2e_sft.util.errors import UserError, describe_validation_error

# field → its placeholder in the help, or its choices; and its help. Pydantic converts and checks the values.
_ENDPOINT: dict[str, tuple[str | Sequence[str], str]] = {
    "base_url": ("URL", "Endpoint; default: $OPENAI_BASE_URL, else OpenAI's own."),
    "key_env": ("NAME", "Environment variable with the endpoint's key."),
    "timeout": ("SECONDS", "Longest silence of the server; a whole request may take 4 times as long."),
    "attempts": ("N", "How often a throttled, failed or stalled request is sent at most."),
    "concurrency": ("N", "Requests at once."),
    "temperature": ("NUMBER|default", "0 is greedy; `default` for models that only accept their own."),
}
_JUDGE: dict[str, tuple[str | Sequence[str], str]] = {
    "backend": (
        get_args(BackendName),
        "Who judges: rules only, an OpenAI-compatible endpoint, or a local transformers model.",
    ),
    "model": ("NAME", "The endpoint's model, or a Hub name or folder for local."),
    **_ENDPOINT,
    "concurrency": ("N", "Requests at once; for local, the prompts decoded together."),
    "prices": ("IN,OUT", "USD per million prompt and reply tokens: 2.5,10."),
    "max_cost": ("USD", "Highest cost of this run; needs --judge-price."),
    "max_tokens": ("N", "Longest reply, in tokens."),
    "dtype": (get_args(JudgeOptions.model_fields["dtype"].annotation), "Data type of a local model's weights."),
    "cache": ("FOLDER", "Folder of the replies; default: judge in the cache folder."),
}
_FLAGS = {"backend": "--judge", "base_url": "--judge-url", "prices": "--judge-price"}
_FOR_ENDPOINTS = ("base_url", "key_env", "prices", "max_cost", "timeout", "attempts", "temperature")
_BACKENDS_OF: dict[str, Sequence[str]] = {  # the back ends that use a parameter
    **{f"judge_{field}": ("openai", "local") for field in _JUDGE if field != "backend"},
    **{f"judge_{field}": ("openai",) for field in _FOR_ENDPOINTS},
    "judge_dtype": ("local",),
}


def _option(flag: str, name: str, default: object, kind: str | Sequence[str], text: str) -> Callable[[Any], Any]:
    shown: dict[str, Any] = {"type": str, "metavar": kind} if isinstance(kind, str) else {"type": click.Choice(kind)}
    return click.option(flag, name, default=default, show_default=default is not None, help=text, **shown)


def endpoint_flags(defaults: EndpointOptions) -> dict[str, Callable[[Any], Any]]:
    """Return the click option of each field of `EndpointOptions`, with the given defaults."""
    return {
        field: _option(f"--{field.replace('_', '-')}", field, getattr(defaults, field), *settings)
        for field, settings in _ENDPOINT.items()
    }


def judge_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the `--judge…` options to a click command, which gets them as one argument, `judge: JudgeOptions`.

    The command raises UserError for contradictory options before it does anything.
    """

    @functools.wraps(command)
    def with_judge(*args: Any, **values: Any) -> Any:
        given = {field: values.pop(f"judge_{field}") for field in _JUDGE}
        reject_unused("--judge", given["backend"], _BACKENDS_OF)
        try:
            judge = JudgeOptions.model_validate(given)
        except ValidationError as error:
            raise UserError(f"options of the judge: {describe_validation_error(error)}") from None
        return command(*args, **values, judge=judge)

    decorated: Callable[..., Any] = with_judge
    defaults = JudgeOptions()
    for field, settings in reversed(_JUDGE.items()):
        flag = _FLAGS.get(field, f"--judge-{field.replace('_', '-')}")
        decorated = _option(flag, f"judge_{field}", getattr(defaults, field), *settings)(decorated)
    return decorated
