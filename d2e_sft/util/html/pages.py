"""Pages from templates: everything a template shows is escaped, and the style sheet is part of the page."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def page_environment(templates: Path) -> Environment:
    """For the templates of one folder; they extend `base.html`, which has the style sheet."""
    return Environment(
        loader=FileSystemLoader([templates, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
