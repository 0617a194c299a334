"""Where an OpenAI-compatible server is, and the key for it: from options and environment, checked before use."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from d2e_sft.judge.options import DEFAULT_KEY_ENV, EndpointOptions
from d2e_sft.util.errors import UserError

OPENAI_URL = "https://api.openai.com/v1"
_NO_KEY = "none"  # servers of one's own ask for no key, but the client insists on one


@dataclass(frozen=True)
class Caller:
    """Who asks an endpoint, for messages to the user: what it is called, and how its options are spelt.

    The defaults are the judge's.

    Attributes:
        name: "judge" in `judge 'gpt-4o' at https://…`.
        url, key_env, model, concurrency, timeout, attempts, max_tokens, temperature: the options' names.
    """

    name: str = "judge"
    url: str = "--judge-url"
    key_env: str = "--judge-key-env"
    model: str = "--judge-model"
    concurrency: str = "--judge-concurrency"
    timeout: str = "--judge-timeout"
    attempts: str = "--judge-attempts"
    max_tokens: str = "--judge-max-tokens"
    temperature: str = "--judge-temperature"


JUDGE = Caller()


@dataclass(frozen=True)
class Endpoint:
    """An address and its key; the key stays out of every printed form."""

    url: str
    key: str = field(repr=False)

    def redact(self, text: str) -> str:
        """The text without the key, which some servers repeat in what they say."""
        return text if self.key == _NO_KEY else text.replace(self.key, "[key]")


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
        raise UserError(f"{caller.name}'s address {url!r}: expected http:// or https://, a host and a path", remedy)
    if parts.username or parts.password:
        # The address is shown in messages and kept in manifests.
        raise UserError(
            f"{caller.name}'s address at {parts.hostname!r}: holds a user name or password; expected none", remedy
        )


def _find_key(url: str, variable: str, caller: Caller) -> str:
    key = os.environ.get(variable, "").strip()
    if not key:
        if url != OPENAI_URL and variable == DEFAULT_KEY_ENV:
            return _NO_KEY
        raise UserError(
            f"{caller.name} at {url}: the environment variable {variable} is not set; expected the key for this "
            "address",
            remedy=f"export {variable}=…, or name the variable that holds the key: {caller.key_env} NAME",
        )
    if not (key.isascii() and key.isprintable()):
        # The HTTP library would refuse it with a message that shows it.
        raise UserError(
            f"{caller.name} at {url}: the key in {variable} holds characters that no key has (a line break, perhaps)",
            remedy=f"set {variable} again, to the key alone",
        )
    return key
