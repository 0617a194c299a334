"""Keep keys and tokens, from environment variables such as HF_TOKEN, out of everything that is printed or written."""

import os
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

_SECRET = re.compile(r"(?:^|[_.-])(?:api_?key|key|token|secret|pat|passwd|credentials?)$|password", re.IGNORECASE)
_SHORTEST = 12  # characters: a local server's key may be a word, such as EMPTY


def names_a_secret(name: str) -> bool:
    """Whether a variable or setting with this name holds a key, token or password (`max_tokens` does not)."""
    return _SECRET.search(name) is not None


def is_long_enough(value: str) -> bool:
    """Whether a key is too long to occur in a text by chance."""
    return len(value) >= _SHORTEST


def without_secrets(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Replace each key and token of the environment (None: this process's) by its name, such as `[HF_TOKEN]`."""
    names = _secrets(os.environ if environment is None else environment)
    for value in sorted(names, key=len, reverse=True):  # one may be a prefix of another
        text = text.replace(value, f"[{names[value]}]")
    return text


def secret_in(texts: Iterable[str]) -> str | None:
    """The name of a variable of this environment whose key or token is in one of the texts, or None."""
    searched = list(texts)
    return next(
        (name for value, name in _secrets(os.environ).items() if any(value in text for text in searched)), None
    )


def _secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return key or token → name of its variable."""
    return {
        value.strip(): name
        for name, value in environment.items()
        # A path is the location of a key, not the key.
        if names_a_secret(name) and is_long_enough(value.strip()) and not value.startswith(("/", "~"))
    }


def public_address(url: str) -> str:
    """The address without user name, password and query, which may hold a key."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(no address)"
    host = parts.netloc.rpartition("@")
    shown = parts._replace(netloc=f"[hidden]@{host[2]}" if host[1] else host[2], query="", fragment="").geturl()
    return shown + ("?[hidden]" if parts.query else "") if "@" not in parts.path else "[hidden]"
