"""A model's words as a page shows them."""

from __future__ import annotations


def shown(text: str, limit: int = 1_500) -> str:
    """The text, cut where it runs on: small models repeat themselves without end."""
    text = text.strip()
    if len(text) <= limit:
        return text or "(empty output)"
    return f"{text[:limit]} … ({len(text) - limit:,} more characters)"
