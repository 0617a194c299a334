"""Read a recipe: its own sections override those of the files it extends.

`extends` takes a file or a list of files; later files override earlier ones. The result has no `extends`, so that a
run's saved recipe needs no other file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from d2e_sft.config.lookup import RecipeSource, find_recipe, is_bundled, nearest_recipe
from d2e_sft.util.errors import UserError, shortened
from d2e_sft.util.files import load_yaml

EXTENDS = "extends"
Keys = tuple[str, ...]


@dataclass(frozen=True)
class RecipeContent:
    """A recipe's sections, and the file each value comes from.

    Attributes:
        sections: as read; `extends` is resolved and gone.
        origins: the keys of a value, from the section on → its file.
    """

    sections: dict[str, Any]
    origins: dict[Keys, Path]


def read_recipe(source: RecipeSource, above: tuple[Path, ...] = ()) -> RecipeContent:
    """Read a recipe's files, and those they extend, and merge them.

    Args:
        above: the chain of files that extend this recipe.

    Raises:
        UserError: a file is not YAML or has no sections, a base does not exist, or files extend each other.
    """
    merged = _layered(_read_file(file, above) for file in source.files)
    if source.method is None:
        return merged
    run = f"{merged.sections['train']['output_dir']}/{source.method}"
    return RecipeContent(deep_merge(merged.sections, {"train": {"output_dir": run}}), merged.origins)


def deep_merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge sections key by key; any other value, also a list or null, replaces the one below."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = deep_merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _read_file(path: Path, above: tuple[Path, ...]) -> RecipeContent:
    here = path.resolve()
    if here in above:
        ring = [*above[above.index(here) :], here]
        raise UserError(
            f"{above[0]}: extends itself: {' → '.join(str(file) for file in ring)}",
            remedy="remove one of these `extends`",
        )
    own = _sections(path)
    bases = [read_recipe(_find_base(path, name), (*above, here)) for name in _bases(path, own.pop(EXTENDS, None))]
    # In YAML a section without keys is null; it leaves the base's section as it is.
    own = {section: {} if value is None else value for section, value in own.items()}
    return _layered([*bases, RecipeContent(own, dict.fromkeys(_leaves(own), path))])


def _layered(layers: Iterable[RecipeContent]) -> RecipeContent:
    sections: dict[str, Any] = {}
    origins: dict[Keys, Path] = {}
    for layer in layers:
        sections = deep_merge(sections, layer.sections)
        origins = {**_not_replaced(origins, layer.sections), **layer.origins}
    return RecipeContent(sections, origins)


def _sections(path: Path) -> dict[str, Any]:
    try:
        content = load_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: not a YAML file ({error})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds {type(content).__name__}; expected the sections of a recipe, as `train: {{}}`")
    return content


def _bases(path: Path, value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if value is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) and name and name.isprintable() for name in names):
        raise UserError(
            f"{path}: {EXTENDS}: got {shortened(value)}; expected a recipe file or a list of them",
            remedy=f"for example `{EXTENDS}: recipes/shared/piper-10k.yaml`",
        )
    return names


def _find_base(path: Path, name: str) -> RecipeSource:
    """A file in the folder of the one that extends it, otherwise what `d2e train` would find by that name."""
    given = Path(name).expanduser()
    beside = path.parent / given
    try:
        if beside.is_file():
            return RecipeSource(str(beside), (beside,))
        found = find_recipe(given, bundled_first=is_bundled(path)) or find_recipe(beside)
    except OSError:  # too long for a file name
        found = None
    if found is None:
        raise UserError(
            f"{path}: {EXTENDS}: {name!r}: no such file.{nearest_recipe(name)}",
            remedy=f"give a path from {path.parent}, or a name that `d2e recipes list --parts` shows",
        )
    return found


def _not_replaced(origins: dict[Keys, Path], above: dict[str, Any]) -> dict[Keys, Path]:
    """The origins of values that are not overridden from above."""
    replaced = set(_leaves(above))
    return {keys: path for keys, path in origins.items() if not any(keys[:n] in replaced for n in range(1, len(keys)))}


def _leaves(values: dict[Any, Any], prefix: Keys = ()) -> Iterator[Keys]:
    for key, value in values.items():
        keys = (*prefix, str(key))
        if isinstance(value, dict) and value:
            yield from _leaves(value, keys)
        else:
            yield keys
