"""Keys and tokens stay out of what is printed and written.

The environment says what they are: the values of variables such as HF_TOKEN, OPENAI_API_KEY and WANDB_API_KEY.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

_SECRET = re.compile(r"(?:^|[_.-])(?:api_?key|key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)
_SHORTEST = 12  # characters: servers of one's own are given keys such as EMPTY, which is a word, too


def names_a_secret(name: str) -> bool:
    """Whether a variable or a setting of that name holds a key, a token or a password (`max_tokens` does not)."""
    return _SECRET.search(name) is not None


def is_long_enough(value: str) -> bool:
    """Whether a key is too long to be a word of a text by chance, so that it can be looked for in one."""
    return len(value) >= _SHORTEST


def without_secrets(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text with `[HF_TOKEN]` and the like in the place of every key and token of the environment.

    Args:
        environment: None means this process's.
    """
    known = os.environ if environment is None else environment
    found = {
        value.strip(): name
        for name, value in known.items()
        # A path is where a key lies, not the key.
        if names_a_secret(name) and is_long_enough(value.strip()) and not value.startswith(("/", "~"))
    }
    for value in sorted(found, key=len, reverse=True):  # one may be the beginning of another
        text = text.replace(value, f"[{found[value]}]")
    return text


def public_address(url: str) -> str:
    """The address without a user name, a password and a query, which may hold a key."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(no address)"
    host = parts.netloc.rpartition("@")
    shown = parts._replace(netloc=f"[hidden]@{host[2]}" if host[1] else host[2], query="", fragment="").geturl()
    return shown + ("?[hidden]" if parts.query else "") if "@" not in parts.path else "[hidden]"
