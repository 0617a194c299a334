"""What the name of a recipe stands for: a file, or a bundled model with a bundled method.

    qwen3-0.6b/d2e-lora               recipes/models/qwen3-0.6b.yaml, recipes/methods/d2e-lora.yaml laid over it
    qwen3-0.6b                        the same with the method `sft`
    mine.yaml                         that file
    recipes/methods/d2e-lora.yaml     a bundled file, also where there is no clone
    qwen3-0.6b/lora                   a name of earlier versions: qwen3-0.6b/d2e-lora, and a warning that says so
    recipes/qwen3-0.6b/lora.yaml      a path of earlier versions: the same

What a user types is looked up on disk first and among the bundled recipes second.
"""

from __future__ import annotations

import difflib
import os
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import load_yaml
from d2e_sft.util.paths import bundled

DEFAULT_METHOD = "sft"
# Methods of earlier versions, which did not say their objective → the name today.
_RENAMED_METHODS = {"full": "d2e", "lora": "d2e-lora", "qlora": "d2e-qlora"}
# Paths of earlier versions that do not spell MODEL/METHOD.yaml → the name today, and the run folder where it differs.
_RENAMED: dict[str, tuple[str, str | None]] = {
    "boxes/causal-d2e": ("smollm2-135m-boxes/d2e", "runs/boxes/causal-d2e"),
    "boxes/causal-sft": ("smollm2-135m-boxes/sft", "runs/boxes/causal-sft"),
    "boxes/t5-base-sft": ("t5-base-boxes/sft", "runs/boxes/t5-base-sft"),
    "quickstart/d2e": ("smollm2-135m-quickstart/d2e", "runs/quickstart/d2e"),
    "quickstart/sft": ("smollm2-135m-quickstart/sft", None),
    "smollm2-135m/d2e-mini": ("smollm2-135m-mini/d2e", "runs/d2e-mini"),
    "smollm2-135m/evidence": ("smollm2-135m-evidence/d2e", "runs/evidence/d2e"),
    "smollm2-135m/sft-mini": ("smollm2-135m-mini/sft", "runs/sft-mini"),
}


@dataclass(frozen=True)
class RecipeSource:
    """Where a recipe is read from.

    Attributes:
        name: as it can be typed after `d2e train`.
        files: one file; or a model's and a method's, the second laid over the first.
        method: of a composed recipe; its run folder is the model's `train.output_dir` with this below it.
        output_dir: the run folder that a path of earlier versions had, where today's is another.
    """

    name: str
    files: tuple[Path, ...]
    method: str | None = None
    output_dir: str | None = None

    @property
    def words(self) -> list[str]:
        """As `d2e train` takes it: the name, and the run folder where it is not that of the name."""
        return [self.name] if self.output_dir is None else [self.name, f"train.output_dir={self.output_dir}"]


def bundled_models() -> list[str]:
    """What `--model` takes."""
    return sorted(file.stem for file in (bundled("recipes") / "models").glob("*.yaml"))


def bundled_methods() -> list[str]:
    """What `--method` takes."""
    return sorted(file.stem for file in (bundled("recipes") / "methods").glob("*.yaml"))


def bundled_recipes() -> list[str]:
    """Names of the bundled recipes, MODEL/METHOD, as they can be typed after `d2e train`.

    A method that trains an adapter is none for a model with random weights: training refuses it.
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
    content = _content(folder, name)
    extended = content.get("extends") or []
    section: dict[str, Any] = {}
    for base in map(Path, [extended] if isinstance(extended, str) else extended):
        if base.parent.name == folder:
            section |= _model_section(folder, base.stem)
    return {**section, **(content.get("model") or {})}


def _content(folder: str, name: str) -> dict[str, Any]:
    content: dict[str, Any] = load_yaml((bundled("recipes") / folder / f"{name}.yaml").read_text(encoding="utf-8"))
    return content


def bundled_parts() -> list[str]:
    """Names of the files that the bundled recipes are made of, as they can stand in `extends`."""
    root = bundled("recipes")
    return sorted(f"recipes/{file.relative_to(root).as_posix()}" for file in root.rglob("*.yaml"))


def is_bundled(path: Path) -> bool:
    """Whether a file is one of those that the bundled recipes are made of."""
    return path.resolve().is_relative_to(bundled("recipes").resolve())


def compose(model: str, method: str = DEFAULT_METHOD) -> RecipeSource:
    """The recipe of a bundled model and a bundled method; a method of earlier versions keeps its run folder.

    Raises:
        UserError: there is no such model or method.
    """
    if method in _RENAMED_METHODS and model in bundled_models():
        found = _formerly(model, method)
        _warn_of_new_name(f"{model}/{method}", f"{found.name} (plain SFT: {found.name.replace('/d2e', '/sft')})")
        return found
    for option, name, known in (("--model", model, bundled_models()), ("--method", method, bundled_methods())):
        if name not in known:
            raise UserError(
                f"{option} {name}: no such {option.removeprefix('--')}.{did_you_mean(name, known)}",
                remedy=f"choose one of {', '.join(known)}",
            )
    root = bundled("recipes")
    files = (root / "models" / f"{model}.yaml", root / "methods" / f"{method}.yaml")
    return RecipeSource(f"{model}/{method}", files, method)


def _formerly(model: str, method: str) -> RecipeSource:
    folder = f"{_content('models', model)['train']['output_dir']}/{method}"
    return replace(compose(model, _RENAMED_METHODS[method]), output_dir=folder)


def find_recipe(name: str | Path, *, bundled_first: bool = False) -> RecipeSource | None:
    """The file of that name, else the bundled recipe; a path of earlier versions is found with a warning.

    Args:
        bundled_first: the bundled recipe wins, as where one bundled file extends another.

    Returns:
        None where there is neither.
    """
    path = Path(name)
    on_disk = RecipeSource(str(path), (path,)) if path.is_file() else None
    if on_disk is not None and (path.is_absolute() or not bundled_first):
        return on_disk
    return _find_bundled(path) or on_disk


def require_recipe(name: str | Path) -> RecipeSource:
    """As `find_recipe`.

    Raises:
        UserError: there is none of that name; with the nearest that there is.
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
    return did_you_mean(below.removeprefix("paper/").removesuffix(".yaml"), bundled_recipes())


def _find_bundled(path: Path) -> RecipeSource | None:
    root = bundled("recipes")
    names = [path.as_posix().removeprefix("recipes/")]
    if is_bundled(path):  # from within the clone: ../recipes/…, or the whole path
        names.append(path.resolve().relative_to(root.resolve()).as_posix())
    for name in names:
        if (root / name).is_file():
            return RecipeSource(str(root / name), (root / name,))
        found = _find_renamed(name.removesuffix(".yaml"), path) if name.endswith(".yaml") else _composed(name)
        if found is not None:
            return found
    return None


def _composed(name: str) -> RecipeSource | None:
    model, _, method = name.partition("/")
    method = method or DEFAULT_METHOD
    known = method in bundled_methods() or method in _RENAMED_METHODS
    return compose(model, method) if model in bundled_models() and known else None


def _find_renamed(name: str, path: Path) -> RecipeSource | None:
    """What earlier versions had at recipes/NAME.yaml."""
    kind, _, stem = name.partition("/")
    method = _RENAMED_METHODS.get(stem, stem)
    if kind in ("shared", "methods") and method in bundled_methods():
        file = bundled("recipes") / "methods" / f"{method}.yaml"
        _warn_of_new_name(str(path), f"recipes/methods/{method}.yaml")
        return RecipeSource(str(file), (file,))
    today, output_dir = _RENAMED.get(name, (name.removeprefix("paper/"), None))
    model, _, method = today.partition("/")
    if model in bundled_models() and method in _RENAMED_METHODS:
        found = _formerly(model, method)
    elif model in bundled_models() and method in bundled_methods():
        found = replace(compose(model, method), output_dir=output_dir)
    else:
        return None
    model, _, method = found.name.partition("/")
    call = ["d2e train", "--model", model, "--method", method, *found.words[1:]]
    _warn_of_new_name(str(path), f"{found.name}: {' '.join(call)}")
    return found


@cache  # once, though a sweep reads its recipe for every point
def _warn_of_new_name(old: str, new: str) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"d2e: warning: {old} is now {new}", file=sys.stderr, flush=True)
