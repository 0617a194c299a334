"""Pages from templates, which escape every text and include the style sheet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from d2e_sft.util.table import percent

_FILTERS: dict[str, Callable[..., str]] = {
    "percent": percent,
    "count": lambda number: f"{number:,.0f}",
    "letter": lambda index: chr(ord("A") + index),
}


def render_page(template: Path, filters: dict[str, Callable[..., str]] | None = None, **context: Any) -> str:
    """Return a page from a template that extends `base.html` and may use the other files of its folder."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {**_FILTERS, **(filters or {})}
    return environment.get_template(template.name).render(context)
