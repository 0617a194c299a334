"""Options of an endpoint and of a judge: typed, checked, and without secrets, so that a manifest can record them.

The key is read from the environment. The command line's options are the same fields: `endpoint_flags` and the
`--judge…` options of `judge_options`, shared by all commands that use them.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit

import click
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    ValidationError,
    model_validator,
)

from d2e_sft.config.options import reject_unused
from d2e_sft.util.errors import UserError, describe_validation_error
from d2e_sft.util.files import sha256_of
from d2e_sft.util.secrets import is_long_enough, public_address

BackendName = Literal["rules", "openai", "local"]
DEFAULT_KEY_ENV = "OPENAI_API_KEY"
OPENAI_URL = "https://api.openai.com/v1"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,19}|[A-Z_][A-Z0-9_]*")  # a long name in lower case is a key
_NO_KEY = "none"  # for a user's own server, which needs no key although the client requires one


def _field(default: Any, metavar: str, help: str, **bounds: Any) -> Any:
    return Field(default=default, title=metavar, description=help, **bounds)


class EndpointOptions(BaseModel):
    """Options of requests to an OpenAI-compatible endpoint, whose key is never an option: it stays out of files.

    `temperature` is None if the server decides, and `base_url` if the environment does. A whole request may take four
    times `timeout`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: str | None = _field(None, "NAME", "The endpoint's model, or a Hub name or folder for local.", min_length=1)
    base_url: str | None = _field(None, "URL", "Endpoint; default: $OPENAI_BASE_URL, else OpenAI's own.")
    key_env: str = _field(DEFAULT_KEY_ENV, "NAME", "Environment variable with the endpoint's key.", min_length=1)
    timeout: float = _field(
        120, "SECONDS", "Longest silence of the server; a whole request may take 4 times as long.", gt=0, le=86_400
    )
    attempts: int = _field(8, "N", "How often a throttled, failed or stalled request is sent at most.", ge=1, le=1_000)
    concurrency: int = _field(8, "N", "Requests at once.", ge=1, le=1_000)
    temperature: Annotated[
        NonNegativeFloat | None, BeforeValidator(lambda value: None if value == "default" else value)
    ] = _field(0, "NUMBER|default", "0 is greedy; `default` for models that only accept their own.")
    max_tokens: int = _field(512, "N", "Longest reply, in tokens.", ge=1)


class JudgeOptions(EndpointOptions):
    """Options of the judge; on the command line `--judge…`. Contradictory ones are an error.

    `prices` are numbers or the text `IN,OUT`, or None to report only tokens; `max_cost` is None for no limit. A local
    model is always greedy.
    """

    backend: BackendName = _field(
        "rules", "", "Who judges: rules only, an OpenAI-compatible endpoint, or a local transformers model."
    )
    concurrency: int = _field(8, "N", "Requests at once; for local, the prompts decoded together.", ge=1, le=1_000)
    prices: Annotated[
        tuple[NonNegativeFloat, NonNegativeFloat] | None,
        BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value),
    ] = _field(None, "IN,OUT", "USD per million prompt and reply tokens: 2.5,10.")
    max_cost: float | None = _field(None, "USD", "Highest cost of this run; needs --judge-price.", gt=0)
    dtype: Literal["float32", "bfloat16", "float16"] = _field("float32", "", "Data type of a local model's weights.")
    prompts: Path | None = _field(None, "FILE", "Your own wording of the judge's prompts, a YAML file.")
    cache: Path | None = _field(None, "FOLDER", "Folder of the replies; default: judge in the cache folder.")

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        if self.backend != "rules" and self.model is None:
            raise ValueError(f"judge {self.backend!r} without a model; name one with --judge-model")
        if self.backend == "local" and self.temperature != 0:
            raise ValueError(f"temperature {self.temperature} for a local judge, which decodes greedily; expected 0")
        if self.max_cost is not None and self.prices is None:
            raise ValueError(f"a limit of ${self.max_cost:g} and no prices; give them with --judge-price IN,OUT")
        return self

    @property
    def described(self) -> dict[str, str | None]:
        """What results say of the judge: back end, model and, if they are the user's own, the prompts' file."""
        prompts = {} if self.prompts is None else {"prompts": f"{self.prompts.name}, sha256 {sha256_of(self.prompts)}"}
        return {"backend": self.backend, "model": self.model, **prompts}


@dataclass(frozen=True)
class Caller:
    """Names of an endpoint's caller and its options in messages to the user; the defaults are the judge's."""

    name: str = "judge"
    prefix: str = "--judge-"
    url: str = "--judge-url"
    model: str = "--judge-model"
    max_tokens: str = "--judge-max-tokens"


JUDGE = Caller()


@dataclass(frozen=True)
class Endpoint:
    """An address and its key; the key stays out of every printed form."""

    url: str
    key: str = field(repr=False)

    def redact(self, text: str) -> str:
        """Remove the key, which some servers repeat in their messages."""
        return text if self.key == _NO_KEY else text.replace(self.key, "[key]")

    def redact_reply(self, text: str) -> str:
        """Remove the key from an answer, unless it is so short that it may be a word, such as EMPTY."""
        return self.redact(text) if is_long_enough(self.key) else text


def find_endpoint(options: EndpointOptions, caller: Caller = JUDGE, *, asking: bool = True) -> Endpoint:
    """Return the endpoint that options and environment name; UserError if the address or the key is malformed.

    Where nothing is asked of it, it needs no key.
    """
    url = (options.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL).strip().rstrip("/")
    try:
        parts = urlsplit(url)
        # Messages show the address, and manifests record it.
        secret = parts.username or parts.password or parts.query or parts.fragment
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not secret
    except ValueError:
        valid = False
    if not valid:
        raise UserError(
            f"{caller.name}'s address {public_address(url)!r}: expected http:// or https://, a host and a path, "
            "without user name, password, '?' and '#'",
            remedy=f"give {caller.url}, or OPENAI_BASE_URL, as http://HOST:PORT/v1, and the key in the environment "
            f"variable that {caller.prefix}key-env names",
        )
    return Endpoint(url, _find_key(url, options.key_env, caller) if asking else _NO_KEY)


def _find_key(url: str, variable: str, caller: Caller) -> str:
    if not _VARIABLE.fullmatch(variable):
        # Not shown: it may be the key.
        raise UserError(
            f"{caller.prefix}key-env: got {len(variable)} characters, which cannot be the name of an environment "
            f"variable; expected a name such as {DEFAULT_KEY_ENV}",
            remedy="put the key into such a variable (export NAME=…), and give the variable's name",
        )
    key = os.environ.get(variable, "").strip()
    if not key:
        if url != OPENAI_URL and variable == DEFAULT_KEY_ENV:
            return _NO_KEY
        raise UserError(
            f"{caller.name} at {url}: the environment variable {variable} is not set; expected the key for this "
            "address",
            remedy=f"export {variable}=…, or name the variable that holds the key: {caller.prefix}key-env NAME",
        )
    if not (key.isascii() and key.isprintable()):
        # The HTTP library would reject it with a message that shows it.
        raise UserError(
            f"{caller.name} at {url}: the key in {variable} contains characters that no key has, perhaps a line break",
            remedy=f"set {variable} again, to only the key",
        )
    return key


# The fields in the order of the help.
_FLAGS = ("base_url", "key_env", "timeout", "attempts", "concurrency", "temperature")
_JUDGE = ("backend", "model", *_FLAGS, "prices", "max_cost", "max_tokens", "dtype", "prompts", "cache")
_NAMES = {"backend": "--judge", "base_url": "--judge-url", "prices": "--judge-price"}
_FOR_ENDPOINTS = ("base_url", "key_env", "prices", "max_cost", "timeout", "attempts", "temperature")
_BACKENDS_OF: dict[str, Sequence[str]] = {  # the back ends that use a parameter
    **{f"judge_{name}": ("openai", "local") for name in _JUDGE[1:]},
    **{f"judge_{name}": ("openai",) for name in _FOR_ENDPOINTS},
    "judge_dtype": ("local",),
}


def _option(kind: type[EndpointOptions], name: str, flag: str, parameter: str) -> Callable[[Any], Any]:
    """Return a click option whose value pydantic converts and checks."""
    field = kind.model_fields[name]
    shown: dict[str, Any] = {"type": click.Choice(get_args(field.annotation))}
    if field.title:
        shown = {"type": str, "metavar": field.title}
    has_default = field.default is not None
    return click.option(
        flag, parameter, default=field.default, show_default=has_default, help=field.description, **shown
    )


def endpoint_flags() -> dict[str, Callable[[Any], Any]]:
    """Return the click option of each field of `EndpointOptions`."""
    return {name: _option(EndpointOptions, name, f"--{name.replace('_', '-')}", name) for name in _FLAGS}


def judge_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the `--judge…` options to a click command, which gets them as one argument, `judge: JudgeOptions`."""

    @functools.wraps(command)
    def with_judge(*args: Any, **values: Any) -> Any:
        fields = {name: values.pop(f"judge_{name}") for name in _JUDGE}
        reject_unused("--judge", fields["backend"], _BACKENDS_OF)
        try:
            judge = JudgeOptions.model_validate(fields)
        except ValidationError as error:
            raise UserError(f"options of the judge: {describe_validation_error(error)}") from None
        return command(*args, **values, judge=judge)

    decorated: Callable[..., Any] = with_judge
    for name in reversed(_JUDGE):
        flag = _NAMES.get(name, f"--judge-{name.replace('_', '-')}")
        decorated = _option(JudgeOptions, name, flag, f"judge_{name}")(decorated)
    return decorated
