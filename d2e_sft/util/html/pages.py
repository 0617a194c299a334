"""Pages from templates, which escape every text and include the style sheet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from d2e_sft.util.table import Table, percent

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


@dataclass(frozen=True)
class PageSection:
    """A part of a page, in this order: texts, commands to type, notes in small print, and tables."""

    title: str
    tables: Sequence[Table] = ()
    texts: Sequence[str] = ()
    commands: Sequence[str] = ()
    notes: Sequence[str] = ()


def render_sections(title: str, lead: str, sections: Sequence[PageSection]) -> str:
    return render_page(Path(__file__).with_name("sections.html"), title=title, lead=lead, sections=sections)
