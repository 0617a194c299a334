"""Find the files of a recipe by its name, and read them with the files they extend.

    qwen3-0.6b/d2e-lora               recipes/models/qwen3-0.6b.yaml, overlaid by recipes/methods/d2e-lora.yaml
    qwen3-0.6b                        the same with the method `d2e`
    mine.yaml                         that file
    recipes/methods/d2e-lora.yaml     a bundled file, also without a clone of the repository

A file on disk comes before a bundled recipe. `extends` takes a file or a list of files; later files override earlier
ones.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from d2e_sft.util.errors import UserError, did_you_mean, shortened
from d2e_sft.util.files import load_package_yaml, load_yaml
from d2e_sft.util.paths import bundled

DEFAULT_METHOD = "d2e"
EXTENDS = "extends"


@dataclass(frozen=True)
class RecipeSource:
    """The files of a recipe: one, or a model's and a method's, the second overriding the first.

    `name` is as after `d2e train`. The run folder of a composed recipe is `method` in the model's `train.output_dir`.
    """

    name: str
    files: tuple[Path, ...]
    method: str | None = None


class Layer(NamedTuple):
    """The sections of one file, without those of the files it extends."""

    file: Path
    sections: dict[str, Any]


def bundled_models() -> list[str]:
    """Values of `--model`."""
    return sorted(file.stem for file in (bundled("recipes") / "models").glob("*.yaml"))


def bundled_methods() -> list[str]:
    """Values of `--method`."""
    return sorted(file.stem for file in (bundled("recipes") / "methods").glob("*.yaml"))


def bundled_recipes() -> list[str]:
    """Names of the bundled recipes, MODEL/METHOD, without adapters of random weights, which cannot be trained."""
    return [
        f"{model}/{method}"
        for model in bundled_models()
        for method in bundled_methods()
        if _section("models", model).get("weights") != "random" or not _section("methods", method).get("lora")
    ]


@cache
def _section(folder: str, name: str) -> dict[str, Any]:
    """Return the `model` keys of a bundled file and of those it extends."""
    file = bundled("recipes") / folder / f"{name}.yaml"
    return merged(read_recipe(RecipeSource(name, (file,)))).get("model") or {}


def bundled_parts() -> list[str]:
    """Names of the files that bundled recipes consist of, for `extends`."""
    root = bundled("recipes")
    return sorted(f"recipes/{file.relative_to(root).as_posix()}" for file in root.rglob("*.yaml"))


def compose(model: str, method: str = DEFAULT_METHOD) -> RecipeSource:
    """The recipe of a bundled model and a bundled method; UserError if there is no such model or method."""
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
    """Return the file of that name, otherwise the bundled recipe, otherwise None.

    `bundled_first` looks among the bundled recipes first, as for a bundled file that extends another.
    """
    path, root = Path(name), bundled("recipes")
    on_disk = RecipeSource(str(path), (path,)) if path.is_file() else None
    if on_disk is not None and (path.is_absolute() or not bundled_first):
        return on_disk
    names = [path.as_posix().removeprefix("recipes/")]
    if path.resolve().is_relative_to(root.resolve()):  # from within the clone: ../recipes/…, or the whole path
        names.append(path.resolve().relative_to(root.resolve()).as_posix())
    for within in names:
        if (root / within).is_file():
            return RecipeSource(str(root / within), (root / within,))
        model, _, method = within.partition("/")
        if model in bundled_models() and (method or DEFAULT_METHOD) in bundled_methods():
            return compose(model, method or DEFAULT_METHOD)
    return on_disk


def require_recipe(name: str | Path) -> RecipeSource:
    """Like `find_recipe`, but raise UserError, with the nearest name, if there is no such recipe."""
    source = find_recipe(name)
    if source is None:
        raise UserError(
            f"{name}: no such recipe.{_nearest(str(name))}",
            remedy="give a YAML file, or one of the bundled recipes that `d2e recipes list` shows",
        )
    return source


def _nearest(name: str) -> str:
    """Return `" Did you mean 'x'?"` for the nearest bundled recipe or part, else the empty string."""
    known = {_short(part): part for part in bundled_parts()} | {recipe: recipe for recipe in bundled_recipes()}
    matches = difflib.get_close_matches(_short(name), known, n=1, cutoff=0.5)
    return f" Did you mean {known[matches[0]]!r}?" if matches else ""


def _short(name: str) -> str:
    return name.removeprefix("recipes/").removesuffix(".yaml")


def read_recipe(source: RecipeSource, above: tuple[Path, ...] = ()) -> list[Layer]:
    """Read a recipe's files and those they extend; later layers override earlier ones, and `extends` is resolved.

    `above` is the chain of files that extend this recipe.
    """
    layers = [layer for file in source.files for layer in _read_file(file, above)]
    if source.method is not None:
        run = f"{merged(layers)['train']['output_dir']}/{source.method}"
        layers.append(Layer(source.files[0], {"train": {"output_dir": run}}))
    return layers


def merged(layers: Iterable[Layer]) -> dict[str, Any]:
    """Merge layers key by key; any value but a section, also a list or null, replaces the one below."""
    sections: dict[str, Any] = {}
    for layer in layers:
        sections = _merge(sections, layer.sections)
    return sections


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def _read_file(path: Path, above: tuple[Path, ...]) -> list[Layer]:
    file = path.resolve()
    if file in above:
        ring = [*above[above.index(file) :], file]
        raise UserError(f"{above[0]}: extends itself: {' → '.join(map(str, ring))}", "remove one of these `extends`")
    try:
        sections = load_package_yaml(file) if _is_bundled(file) else load_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: not a YAML file ({error})") from None
    if not isinstance(sections, dict):
        raise UserError(
            f"{path}: {'is empty' if sections is None else f'holds a {type(sections).__name__}'}; expected the "
            "sections of a recipe, as `train: {}`"
        )
    extended = sections.pop(EXTENDS, None) or []
    names = [extended] if isinstance(extended, str) else extended
    if not isinstance(names, list) or not all(isinstance(name, str) and name and name.isprintable() for name in names):
        raise UserError(
            f"{path}: {EXTENDS}: got {shortened(extended)}; expected a recipe file or a list of them",
            remedy=f"for example `{EXTENDS}: recipes/shared/piper-10k.yaml`",
        )
    # In YAML a section without keys is null; it leaves the base's section as it is.
    sections = {section: {} if value is None else value for section, value in sections.items()}
    bases = (read_recipe(_find_base(path, name), (*above, file)) for name in names)
    return [*(layer for base in bases for layer in base), Layer(path, sections)]


def _is_bundled(file: Path) -> bool:
    return file.is_relative_to(bundled("recipes").resolve())


def _find_base(path: Path, name: str) -> RecipeSource:
    """Return a file in the folder of the one that extends it, otherwise what `d2e train` would find by that name."""
    extended = Path(name).expanduser()
    sibling = path.parent / extended
    within = _is_bundled(path.resolve())
    try:
        if sibling.is_file():
            return RecipeSource(str(sibling), (sibling,))
        source = find_recipe(extended, bundled_first=within) or find_recipe(sibling)
    except OSError:  # too long for a file name
        source = None
    if source is None:
        raise UserError(
            f"{path}: {EXTENDS}: {name!r}: no such file.{_nearest(name)}",
            remedy=f"give a path from {path.parent}, or a name that `d2e recipes list --parts` shows",
        )
    return source
