"""Normalised names of entities and attributes, by the official scorer's rule."""

from __future__ import annotations


def normalise(name: str) -> str:
    """Lower case, without one leading article."""
    name = name.lower()
    for article in ("the ", "a ", "an "):
        if name.startswith(article):
            return name.removeprefix(article)
    return name
