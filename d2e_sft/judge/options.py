"""Options of an endpoint and of a judge: typed, checked, and without secrets, so that a manifest can record them.

The key is read from the environment.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeFloat, model_validator

from d2e_sft.util.errors import UserError
from d2e_sft.util.paths import cache_dir
from d2e_sft.util.secrets import is_long_enough, public_address

BackendName = Literal["rules", "openai", "local"]
DEFAULT_KEY_ENV = "OPENAI_API_KEY"
OPENAI_URL = "https://api.openai.com/v1"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,19}|[A-Z_][A-Z0-9_]*")  # a long name in lower case is a key
_NO_KEY = "none"  # for a user's own server, which needs no key although the client requires one


class EndpointOptions(BaseModel):
    """Options of requests to an OpenAI-compatible endpoint.

    Attributes:
        model: The model's name at the endpoint.
        base_url: The endpoint, usually ending in `/v1`; None for `$OPENAI_BASE_URL`, else OpenAI's own.
        key_env: The environment variable with the key. The key itself is never an option, so that it is neither on a
            command line nor in a file.
        concurrency: Maximum number of concurrent requests.
        timeout: Seconds of silence after which a request fails. A whole request may take four times as long.
        attempts: Maximum number of times a prompt is sent if the server throttles, fails or stalls.
        max_tokens: Token limit of one reply.
        temperature: 0 is greedy; None or `default` leaves it to the server, since some models accept only their own.

    Raises:
        pydantic.ValidationError: an unknown option, or a value out of range.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: str | None = Field(default=None, min_length=1)
    base_url: str | None = None
    key_env: str = Field(default=DEFAULT_KEY_ENV, min_length=1)
    concurrency: int = Field(default=8, ge=1, le=1_000)
    timeout: float = Field(default=120, gt=0, le=86_400)
    attempts: int = Field(default=8, ge=1, le=1_000)
    max_tokens: int = Field(default=512, ge=1)
    temperature: Annotated[
        NonNegativeFloat | None, BeforeValidator(lambda value: None if value == "default" else value)
    ] = 0


class JudgeOptions(EndpointOptions):
    """Options of the judge; on the command line `--judge…`.

    Attributes:
        backend: `rules` for no model, `openai` for any OpenAI-compatible endpoint, `local` for a transformers model.
        model: With `local`, a name that `d2e_sft.model.loading` accepts.
        concurrency: With `local`, the number of prompts decoded together.
        temperature: See `EndpointOptions`; a local model is always greedy.
        prices: USD per million prompt and reply tokens, as numbers or as text `IN,OUT`; None to report only tokens.
        max_cost: Limit in USD. Requests that could exceed it are not sent. None for no limit.
        dtype: Data type of a local model's weights.
        cache: Folder of the replies; None for `judge` in the cache folder.

    Raises:
        pydantic.ValidationError: also for options that contradict each other.
    """

    backend: BackendName = "rules"
    prices: Annotated[
        tuple[NonNegativeFloat, NonNegativeFloat] | None,
        BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value),
    ] = None
    max_cost: float | None = Field(default=None, gt=0)
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    cache: Path | None = None

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
    def cache_folder(self) -> Path:
        """Folder of the replies."""
        return self.cache or cache_dir() / "judge"


@dataclass(frozen=True)
class Caller:
    """Names of an endpoint's caller and its options in messages to the user; the defaults are the judge's.

    Attributes:
        name: "judge" in `judge 'gpt-4o' at https://…`.
        prefix: of the option names.
        url, model, max_tokens: option names that differ between callers.
    """

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


def find_endpoint(options: EndpointOptions, caller: Caller = JUDGE) -> Endpoint:
    """Return the endpoint that options and environment name.

    Raises:
        UserError: the address is not an http address or contains a password; the key is missing or malformed.
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
    return Endpoint(url, _find_key(url, options.key_env, caller))


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
