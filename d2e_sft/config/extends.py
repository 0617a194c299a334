"""Reading a recipe file: its own sections, laid over those of the files that it extends.

`extends: base.yaml`, or a list of files of which a later one wins over an earlier, lets a recipe hold only what is its
own. What comes out is plain content without `extends`, so that a run's saved recipe stands alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import load_yaml
from d2e_sft.util.paths import bundled_parts, bundled_recipes, find_recipe, is_bundled_recipe

EXTENDS = "extends"
Keys = tuple[str, ...]


@dataclass(frozen=True)
class RecipeFile:
    """A recipe's content, and for each key the file that says so.

    Attributes:
        content: the sections, as read; `extends` is resolved and gone.
        origins: the keys of a value, from the section on → its file.
    """

    content: dict[str, Any]
    origins: dict[Keys, Path]


def read_recipe_file(path: Path) -> RecipeFile:
    """Read a recipe file and, first, those that it extends.

    Raises:
        UserError: a file is not YAML or holds no sections, a base does not exist, or files extend each other.
    """
    return _read(path, ())


def _read(path: Path, above: tuple[Path, ...]) -> RecipeFile:
    here = path.resolve()
    if here in above:
        ring = [*above[above.index(here) :], here]
        raise UserError(
            f"{above[0]}: extends itself: {' → '.join(str(file) for file in ring)}",
            remedy="remove one of these `extends`",
        )
    own = _sections(path)
    content: dict[str, Any] = {}
    origins: dict[Keys, Path] = {}
    for name in _bases(path, own.pop(EXTENDS, None)):
        base = _read(_find_base(path, name), (*above, here))
        content = _laid_over(content, base.content)
        origins = {**_still_said(origins, base.content), **base.origins}
    # A section whose keys are all commented out reads as null: it says nothing, of its bases either.
    own = {section: {} if value is None else value for section, value in own.items()}
    return RecipeFile(_laid_over(content, own), {**_still_said(origins, own), **dict.fromkeys(_leaves(own), path)})


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
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise UserError(
            f"{path}: {EXTENDS}: got {value!r}; expected a recipe file or a list of them",
            remedy=f"for example `{EXTENDS}: recipes/shared/piper-10k.yaml`",
        )
    return names


def _find_base(path: Path, name: str) -> Path:
    """A file beside the one that extends it, else what `d2e train` would find under that name."""
    given = Path(name).expanduser()
    beside = path.parent / given
    if beside.is_file():
        return beside
    found = find_recipe(given, bundled_first=is_bundled_recipe(path))
    if found is None:
        known = [*bundled_parts(), *bundled_recipes()]
        raise UserError(
            f"{path}: {EXTENDS}: {name!r}: no such file.{did_you_mean(name, known)}",
            remedy=f"give a path from {path.parent}, or a name that `d2e recipes list --parts` shows",
        )
    return found


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Sections are laid into sections; any other value, null too, takes the place of the one below."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _laid_over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _still_said(origins: dict[Keys, Path], above: dict[str, Any]) -> dict[Keys, Path]:
    """The origins below that a value above does not take the place of."""
    replaced = set(_leaves(above))
    return {keys: path for keys, path in origins.items() if not any(keys[:n] in replaced for n in range(1, len(keys)))}


def _leaves(values: dict[Any, Any], prefix: Keys = ()) -> Iterator[Keys]:
    for key, value in values.items():
        keys = (*prefix, str(key))
        if isinstance(value, dict) and value:
            yield from _leaves(value, keys)
        else:
            yield keys
