"""Names of recipes on the command line, for shell completion."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from d2e_sft.util.paths import bundled_recipes


def complete_recipe(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The bundled recipes that begin so; where there are none, files."""
    names = [name for name in bundled_recipes() if name.startswith(incomplete)]
    return [CompletionItem(name) for name in names] or [CompletionItem(incomplete, type="file")]
