"""Pages from templates, which escape every text and include the style sheet."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def page_environment(templates: Path) -> Environment:
    """A Jinja environment for the templates of one folder, which extend `base.html`."""
    return Environment(
        loader=FileSystemLoader([templates, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
