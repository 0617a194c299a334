"""`d2e recipes`: the bundled recipes, listed, shown and copied, their keys explained; names for shell completion."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from d2e_sft.config.lookup import (
    RecipeSource,
    bundled_methods,
    bundled_models,
    bundled_parts,
    bundled_recipes,
    require_recipe,
)
from d2e_sft.config.options import out_argument
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_whole
from d2e_sft.util.table import Table
from d2e_sft.util.terminal import filled

_USE = (
    "Each model goes with each method, except random weights with LoRA: `d2e train --model MODEL --method METHOD`. "
    "`d2e recipes list WORD…` lists recipes by name, `d2e recipes show MODEL/METHOD` prints one."
)
Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completing(names: Callable[[], Iterable[str]]) -> Completion:
    """Shell completion by matching names, or by files if none match."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        items = [CompletionItem(name) for name in names() if name.startswith(incomplete)]
        return items or [CompletionItem(incomplete, type="file")]

    return complete


complete_recipe = completing(bundled_recipes)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def recipes() -> None:
    """List, show and copy the recipes that come with d2e, and explain their keys.

    Example: d2e recipes list qwen3
    """


@recipes.command("list")
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--parts", is_flag=True, help="Also list the files they consist of, for `extends`.")
def list_recipes(*, words: tuple[str, ...], parts: bool) -> None:
    """List the bundled models and methods; a recipe is one of each: MODEL/METHOD.

    With WORDs, list the recipes whose name or title holds each of them.

    Example: d2e recipes list gemma lora
    """
    if not words and not parts:
        for name, names in (("model", bundled_models()), ("method", bundled_methods())):
            click.echo(
                Table.of((name, "title"), [(item, _part_title(name, item)) for item in names]).terminal() + "\n"
            )
        click.echo(filled(_USE))
        return
    names = [*bundled_recipes(), *(bundled_parts() if parts else [])]
    rows = [(name, _title(require_recipe(name))) for name in names]
    shown = [row for row in rows if all(word.lower() in " ".join(row).lower() for word in words)]
    if not shown:
        raise UserError(
            f"no bundled recipe has {' and '.join(map(repr, words))} in its name or title.",
            remedy="`d2e recipes list` shows all models and methods",
        )
    click.echo(Table.of(("recipe", "title"), shown).terminal())


@recipes.command()
@click.argument("name", shell_complete=complete_recipe)
@click.option("--resolved", is_flag=True, help="Include everything it extends and all defaults, as in a run folder.")
def show(*, name: str, resolved: bool) -> None:
    """Print the recipe NAME, a bundled one or a file.

    Example: d2e recipes show qwen3-0.6b/d2e-lora --resolved
    """
    click.echo(_text(require_recipe(name), resolved=resolved).rstrip())


@recipes.command()
@click.argument("name", shell_complete=complete_recipe)
@out_argument("to", metavar="[TO]", required=False)
@click.option("--resolved", is_flag=True, help="Include everything it extends and all defaults.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
def copy(*, name: str, to: Path | None, resolved: bool, overwrite: bool) -> None:
    """Copy the recipe NAME to the file or folder TO, by default MODEL-METHOD.yaml, or the file's own name, here.

    The copy is one file, to be changed; what a file extends is still found among the bundled recipes.

    Example: d2e recipes copy qwen3-0.6b/d2e-lora mine.yaml
    """
    source = require_recipe(name)
    own_name = Path(name).name if name.endswith(".yaml") else source.name.replace("/", "-") + ".yaml"
    target = to or Path(own_name)
    if target.is_dir():
        target /= own_name
    text = _text(source, resolved=resolved)
    if target.is_file() and not overwrite:
        raise UserError(f"{target}: already exists", remedy="give another name, or add --overwrite")
    write_whole(target, text)
    click.echo(f"wrote {target}; train it with: d2e train {target}")


def _recipe_keys() -> list[str]:
    from d2e_sft.config.reference import recipe_keys

    return [key.name for key in recipe_keys()]


@recipes.command()
@click.argument("key", required=False, shell_complete=completing(_recipe_keys))
def explain(*, key: str | None) -> None:
    """Explain KEY of a recipe: meaning, values and default; for a section, all its keys.

    Without KEY all keys are listed, with their defaults.

    Example: d2e recipes explain train.optim
    """
    from d2e_sft.config import reference

    if key is not None:
        click.echo("\n".join(recipe_key.describe() for recipe_key in reference.explain(key)))
        return
    keys = [recipe_key for recipe_key in reference.recipe_keys() if not recipe_key.is_section]
    width = max(len(recipe_key.name) for recipe_key in keys)
    for recipe_key in keys:
        click.echo(f"{recipe_key.name:<{width}}  {'(required)' if recipe_key.default is None else recipe_key.default}")


@recipes.command()
def schema() -> None:
    """Print the JSON schema of a recipe, by which editors check and complete YAML.

    Example: d2e recipes schema > recipe.schema.json
    """
    from d2e_sft.config.reference import json_schema

    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def _text(source: RecipeSource, *, resolved: bool) -> str:
    """A recipe as one file: its own text, or what a model and a method say together."""
    from d2e_sft.config.recipe import load_recipe, unresolved_yaml

    if resolved:
        return f"# {source.name}, resolved.\n{load_recipe(source).as_yaml()}"
    if source.method is None:
        return source.files[0].read_text(encoding="utf-8")
    comments = [line for file in source.files for line in _comment(file)[1:]]
    return "\n".join([f"# {_title(source)}", *comments, unresolved_yaml(source)])


def _title(source: RecipeSource) -> str:
    """`Qwen3-0.6B: D²E-SFT by LoRA`, from the first lines of the files."""
    lines = [next(iter(_comment(file)), "") for file in source.files]
    return ": ".join(line.removeprefix("#").strip() for line in lines)


def _part_title(kind: str, name: str) -> str:
    return _title(require_recipe(f"recipes/{kind}s/{name}.yaml"))


def _comment(file: Path) -> list[str]:
    """The lines of comment that a file begins with."""
    lines = file.read_text(encoding="utf-8").lstrip().splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return lines[:end]
