"""Find the files of a recipe by its name.

    qwen3-0.6b/d2e-lora               recipes/models/qwen3-0.6b.yaml, overlaid by recipes/methods/d2e-lora.yaml
    qwen3-0.6b                        the same with the method `sft`
    mine.yaml                         that file
    recipes/methods/d2e-lora.yaml     a bundled file, also without a clone of the repository

A file on disk comes before a bundled recipe.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import load_yaml
from d2e_sft.util.paths import bundled

DEFAULT_METHOD = "sft"


@dataclass(frozen=True)
class RecipeSource:
    """The files of a recipe.

    Attributes:
        name: The recipe's name after `d2e train`.
        files: One file, or a model's and a method's, the second overriding the first.
        method: The method of a composed recipe, whose run folder is `METHOD` in the model's `train.output_dir`.
    """

    name: str
    files: tuple[Path, ...]
    method: str | None = None


def bundled_models() -> list[str]:
    """Values of `--model`."""
    return sorted(file.stem for file in (bundled("recipes") / "models").glob("*.yaml"))


def bundled_methods() -> list[str]:
    """Values of `--method`."""
    return sorted(file.stem for file in (bundled("recipes") / "methods").glob("*.yaml"))


def bundled_recipes() -> list[str]:
    """Names of the bundled recipes, MODEL/METHOD, as they can be typed after `d2e train`.

    Random weights cannot be trained by an adapter, so these pairs are left out.
    """
    random = {name for name in bundled_models() if _model_section("models", name).get("weights") == "random"}
    adapters = {name for name in bundled_methods() if _model_section("methods", name).get("lora")}
    return [
        f"{model}/{method}"
        for model in bundled_models()
        for method in bundled_methods()
        if not (model in random and method in adapters)
    ]


@cache
def _model_section(folder: str, name: str) -> dict[str, Any]:
    """The `model` keys of a bundled file and of those of its folder that it extends."""
    content: dict[str, Any] = load_yaml((bundled("recipes") / folder / f"{name}.yaml").read_text(encoding="utf-8"))
    extended = content.get("extends") or []
    section: dict[str, Any] = {}
    for base in map(Path, [extended] if isinstance(extended, str) else extended):
        if base.parent.name == folder:
            section |= _model_section(folder, base.stem)
    return {**section, **(content.get("model") or {})}


def bundled_parts() -> list[str]:
    """Names of the files that bundled recipes consist of, for `extends`."""
    root = bundled("recipes")
    return sorted(f"recipes/{file.relative_to(root).as_posix()}" for file in root.rglob("*.yaml"))


def is_bundled(path: Path) -> bool:
    """Return whether a file belongs to the bundled recipes."""
    return path.resolve().is_relative_to(bundled("recipes").resolve())


def compose(model: str, method: str = DEFAULT_METHOD) -> RecipeSource:
    """The recipe of a bundled model and a bundled method.

    Raises:
        UserError: there is no such model or method.
    """
    for option, name, known in (("--model", model, bundled_models()), ("--method", method, bundled_methods())):
        if name not in known:
            raise UserError(
                f"{option} {name}: no such {option.removeprefix('--')}.{did_you_mean(name, known)}",
                remedy=f"choose one of {', '.join(known)}",
            )
    root = bundled("recipes")
    files = (root / "models" / f"{model}.yaml", root / "methods" / f"{method}.yaml")
    return RecipeSource(f"{model}/{method}", files, method)


def find_recipe(name: str | Path, *, bundled_first: bool = False) -> RecipeSource | None:
    """The file of that name, otherwise the bundled recipe, otherwise None.

    Args:
        bundled_first: look among the bundled recipes first, as for a bundled file that extends another.
    """
    path = Path(name)
    on_disk = RecipeSource(str(path), (path,)) if path.is_file() else None
    if on_disk is not None and (path.is_absolute() or not bundled_first):
        return on_disk
    return _find_bundled(path) or on_disk


def require_recipe(name: str | Path) -> RecipeSource:
    """Like `find_recipe`, but raise if nothing is found.

    Raises:
        UserError: there is no such recipe; names the nearest one.
    """
    found = find_recipe(name)
    if found is None:
        raise UserError(
            f"{name}: no such recipe.{nearest_recipe(str(name))}",
            remedy="give a YAML file, or one of the bundled recipes that `d2e recipes list` shows",
        )
    return found


def nearest_recipe(name: str) -> str:
    """`" Did you mean 'x'?"` for the nearest bundled recipe or part, else the empty string."""
    below = name.removeprefix("recipes/")
    if below.startswith(("models/", "methods/", "shared/")):
        parts = {Path(part).stem: part for part in bundled_parts()}
        near = difflib.get_close_matches(Path(below).stem, parts, n=1, cutoff=0.5)
        return f" Did you mean {parts[near[0]]!r}?" if near else ""
    return did_you_mean(below.removesuffix(".yaml"), bundled_recipes())


def _find_bundled(path: Path) -> RecipeSource | None:
    root = bundled("recipes")
    names = [path.as_posix().removeprefix("recipes/")]
    if is_bundled(path):  # from within the clone: ../recipes/…, or the whole path
        names.append(path.resolve().relative_to(root.resolve()).as_posix())
    for name in names:
        if (root / name).is_file():
            return RecipeSource(str(root / name), (root / name,))
        model, _, method = name.partition("/")
        if model in bundled_models() and (method or DEFAULT_METHOD) in bundled_methods():
            return compose(model, method or DEFAULT_METHOD)
    return None
