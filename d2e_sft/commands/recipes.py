"""`d2e recipes`: the bundled recipes, listed, shown and copied."""

from __future__ import annotations

from pathlib import Path

import click

from d2e_sft.commands.recipe_names import complete_recipe
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import write_whole
from d2e_sft.util.paths import bundled_parts, bundled_recipes, find_recipe


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def recipes() -> None:
    """List, show and copy the recipes that come with d2e.

    Example: d2e recipes list qwen3
    """


@recipes.command("list")
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--parts", is_flag=True, help="Also the files that recipes extend and that are none themselves.")
def list_recipes(*, words: tuple[str, ...], parts: bool) -> None:
    """List the bundled recipes, or those whose name or first line holds each WORD.

    Example: d2e recipes list gemma lora
    """
    names = [*bundled_recipes(), *(bundled_parts() if parts else [])]
    rows = [(name, _first_line(_text(name))) for name in names]
    shown = [row for row in rows if all(word.lower() in " ".join(row).lower() for word in words)]
    if not shown:
        raise UserError(
            f"no bundled recipe has {' and '.join(map(repr, words))} in its name or first line.",
            remedy="`d2e recipes list` shows all of them",
        )
    width = max(len(name) for name, _ in shown)
    for name, line in shown:
        click.echo(f"{name:<{width}}  {line}")


@recipes.command()
@click.argument("name", shell_complete=complete_recipe)
@click.option("--resolved", is_flag=True, help="With all that it extends and every default, as a run folder keeps it.")
def show(*, name: str, resolved: bool) -> None:
    """Print the recipe NAME, a bundled one or a file.

    Example: d2e recipes show recipes/qwen3-0.6b/lora.yaml --resolved
    """
    click.echo(_content(name, resolved=resolved).rstrip())


@recipes.command()
@click.argument("name", shell_complete=complete_recipe)
@click.argument("to", type=click.Path(path_type=Path), required=False)
@click.option("--resolved", is_flag=True, help="With all that it extends and every default.")
@click.option("--overwrite", is_flag=True, help="Replace a file that is there.")
def copy(*, name: str, to: Path | None, resolved: bool, overwrite: bool) -> None:
    """Copy the recipe NAME to the file or folder TO, by default its own file name here.

    The copy may be changed; what it extends is still found among the bundled recipes.

    Example: d2e recipes copy recipes/qwen3-0.6b/lora.yaml mine.yaml
    """
    target = to or Path(Path(name).name)
    if target.is_dir():
        target /= Path(name).name
    text = _content(name, resolved=resolved)
    if target.exists() and not overwrite:
        raise UserError(f"{target}: is there already", remedy="give another name, or add --overwrite")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, text)
    click.echo(f"wrote {target}; train it with: d2e train {target}")


def _content(name: str, *, resolved: bool) -> str:
    text = _text(name)
    if not resolved:
        return text
    from d2e_sft.config.recipe import load_recipe

    return f"# {name}, resolved.\n{load_recipe(name).as_yaml()}"


def _text(name: str) -> str:
    found = find_recipe(name)
    if found is None:
        known = [*bundled_recipes(), *bundled_parts()]
        raise UserError(
            f"{name}: no such recipe.{did_you_mean(name, known)}", remedy="`d2e recipes list` shows all of them"
        )
    return found.read_text(encoding="utf-8")


def _first_line(text: str) -> str:
    first = text.lstrip().split("\n", 1)[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
