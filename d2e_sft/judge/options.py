"""How an endpoint is asked, where it is, and what a judge is.

The options are typed, checked and free of secrets, so fit for a manifest; the key is read from the environment.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from d2e_sft.util.errors import UserError
from d2e_sft.util.paths import cache_dir
from d2e_sft.util.secrets import is_long_enough, public_address

BackendName = Literal["rules", "openai", "local"]
DEFAULT_KEY_ENV = "OPENAI_API_KEY"
OPENAI_URL = "https://api.openai.com/v1"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,19}|[A-Z_][A-Z0-9_]*")  # a long one in small letters is a key
_NO_KEY = "none"  # servers of one's own ask for no key, but the client insists on one


class EndpointOptions(BaseModel):
    """How an OpenAI-compatible endpoint is asked.

    Attributes:
        model: the endpoint's name of the model.
        base_url: the endpoint, usually ending in `/v1`; None means `$OPENAI_BASE_URL`, else OpenAI's own.
        key_env: the environment variable that holds the key. The key itself is never an option, so that it lands
            neither on a command line nor in a file.
        concurrency: requests under way at once.
        timeout: seconds without a sign of life from the server after which a request counts as failed.
        attempts: how often one prompt is sent at most, when the server throttles, fails or stalls.
        first_wait: seconds before the second attempt; each further wait is twice as long.
        longest_wait: no wait is longer, and a server that asks for a longer one ends the run.
        max_tokens: of one reply.
        temperature: 0 is greedy; None leaves it to the server, as some models accept no other than their own.

    Raises:
        pydantic.ValidationError: an unknown option, or a value out of range.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: str | None = Field(default=None, min_length=1)
    base_url: str | None = None
    key_env: str = Field(default=DEFAULT_KEY_ENV, min_length=1)
    concurrency: int = Field(default=8, ge=1)
    timeout: float = Field(default=120, gt=0)
    attempts: int = Field(default=8, ge=1)
    first_wait: float = Field(default=1, ge=0)
    longest_wait: float = Field(default=120, ge=0)
    max_tokens: int = Field(default=512, ge=1)
    temperature: float | None = Field(default=0, ge=0)


class JudgeOptions(EndpointOptions):
    """Options of the judge; on the command line `--judge…`.

    Attributes:
        backend: `rules` asks no model, `openai` any OpenAI-compatible endpoint, `local` a transformers model.
        model: for `local` a name as `d2e_sft.model.loading` takes it.
        concurrency: for `local` the prompts decoded together.
        temperature: a local model is always greedy.
        price_in, price_out: USD per million prompt and reply tokens; None reports tokens alone.
        max_cost: USD; nothing is sent that could make this run cost more. None: no limit.
        dtype: of a local model's weights.
        cache: folder of the replies; None means `judge` in the cache folder.

    Raises:
        pydantic.ValidationError: also for options that contradict each other.
    """

    backend: BackendName = "rules"
    price_in: float | None = Field(default=None, ge=0)
    price_out: float | None = Field(default=None, ge=0)
    max_cost: float | None = Field(default=None, gt=0)
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    cache: Path | None = None

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        if self.backend != "rules" and self.model is None:
            raise ValueError(f"judge {self.backend!r} without a model; name one with --judge-model")
        if self.backend == "local" and self.temperature != 0:
            raise ValueError(f"temperature {self.temperature} for a local judge, which decodes greedily; expected 0")
        if (self.price_in is None) != (self.price_out is None):
            raise ValueError(f"prices {self.price_in} and {self.price_out}; expected both or neither")
        if self.max_cost is not None and self.price_in is None:
            raise ValueError(f"a limit of ${self.max_cost:g} and no prices; give them with --judge-price IN,OUT")
        return self

    @property
    def cache_folder(self) -> Path:
        """Where the replies are kept."""
        return self.cache or cache_dir() / "judge"


@dataclass(frozen=True)
class Caller:
    """Who asks an endpoint, for messages to the user: what it is called, and how its options are spelt.

    The defaults are the judge's.

    Attributes:
        name: "judge" in `judge 'gpt-4o' at https://…`.
        prefix: that the options' names begin with.
        url, model, max_tokens: the names of those that are not called alike everywhere.
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
        """The text without the key, which some servers repeat in what they say."""
        return text if self.key == _NO_KEY else text.replace(self.key, "[key]")

    def redact_reply(self, text: str) -> str:
        """The same for what is kept as an answer: a key such as EMPTY may be a word of it."""
        return self.redact(text) if is_long_enough(self.key) else text


def find_endpoint(options: EndpointOptions, caller: Caller = JUDGE) -> Endpoint:
    """The endpoint that options and environment name.

    Raises:
        UserError: the address is not an http address or holds a password; the key is missing or malformed.
    """
    url = (options.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL).strip().rstrip("/")
    _check_url(url, caller)
    return Endpoint(url, _find_key(url, options.key_env, caller))


def _check_url(url: str, caller: Caller) -> None:
    remedy = f"give {caller.url}, or OPENAI_BASE_URL, as http://HOST:PORT/v1"
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise UserError(
            f"{caller.name}'s address {public_address(url)!r}: expected http:// or https://, a host and a path", remedy
        )
    # The address is shown in messages and kept in manifests.
    if parts.username or parts.password:
        raise UserError(
            f"{caller.name}'s address at {parts.hostname!r}: holds a user name or password; expected none", remedy
        )
    if parts.query or parts.fragment:
        raise UserError(
            f"{caller.name}'s address at {parts.hostname!r}: holds a query (behind '?' or '#'); expected none",
            f"{remedy}; a key belongs in the environment variable that {caller.prefix}key-env names",
        )


def _find_key(url: str, variable: str, caller: Caller) -> str:
    if not _VARIABLE.fullmatch(variable):
        # Not shown: it may be the key.
        raise UserError(
            f"{caller.prefix}key-env: got {len(variable)} characters that name no environment variable; expected a "
            f"name such as {DEFAULT_KEY_ENV}",
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
        # The HTTP library would refuse it with a message that shows it.
        raise UserError(
            f"{caller.name} at {url}: the key in {variable} holds characters that no key has (a line break, perhaps)",
            remedy=f"set {variable} again, to the key alone",
        )
    return key
