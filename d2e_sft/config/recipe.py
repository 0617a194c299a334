"""The recipe: all settings of a run, typed, in one YAML file.

It has five sections: `model`, `data`, `d2e`, `train` and `eval`. A file may extend others (`d2e_sft.config.lookup`),
and the command line overrides values as `section.key=value`. The resolved recipe is saved in the run folder; training
from that file repeats the run.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from d2e_sft.config.d2e import D2ESection
from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.config.lookup import EXTENDS, RecipeSource, merged, read_recipe, require_recipe
from d2e_sft.config.objectives import OF_THE_OBJECTIVE, View  # noqa: F401  (part of the recipe, too)
from d2e_sft.config.sections import (  # noqa: F401  (the same)
    DataSection,
    EvalSection,
    LoraSection,
    ModelSection,
    Overlong,
    Packing,
    Precision,
    Quantization,
    RecipeSection,
    TrainSection,
    fit_micro_batch,
)
from d2e_sft.util.errors import UserError, describe_problem, describe_validation_error, did_you_mean, shortened
from d2e_sft.util.files import load_yaml, write_whole
from d2e_sft.util.secrets import names_a_secret, secret_in
from d2e_sft.util.terminal import warn

RECIPE_FILE = "recipe.yaml"


class Recipe(RecipeSection):
    """All settings of one run; an absent section has its defaults."""

    model: ModelSection = Field(default_factory=ModelSection)
    """Which model is trained, and whether all of it is."""
    data: DataSection
    """Training rows and how they become tokens."""
    d2e: D2ESection = Field(default_factory=D2ESection)
    """The objective."""
    train: TrainSection
    """Optimisation, evaluation on the way, and what is kept."""
    eval: EvalSection = Field(default_factory=EvalSection)
    """Defaults of `d2e eval` for the trained run."""

    @model_validator(mode="after")
    def _check_evaluations(self) -> Self:
        train, dev, either = self.train, self.data.dev, self.data.dev or self.data.probe
        needing = {
            "train.eval_steps": (train.eval_steps, either, "data.dev"),
            "train.load_best_model_at_end": (train.load_best_model_at_end or None, either, "data.dev"),
            "train.early_stopping_patience": (train.early_stopping_patience, either, "data.dev"),
            "data.max_dev_samples": (self.data.max_dev_samples, dev, "data.dev"),
            "data.max_probe_samples": (self.data.max_probe_samples, self.data.probe, "data.probe"),
        }
        for key, (value, rows, setting) in needing.items():
            off = "false" if value is True else "null"
            if value is not None and rows is None:
                raise ValueError(
                    f"{key}={value} needs held-out rows to evaluate on; set {setting}=FILE, or {key}={off}"
                )
        evaluated, saved = train.eval_steps, train.save_steps
        if train.load_best_model_at_end and not (evaluated and saved and saved % evaluated == 0):
            raise ValueError(
                f"train.load_best_model_at_end with train.eval_steps={evaluated} and train.save_steps={saved}: what "
                "is best must be evaluated and saved; expected both, save_steps a multiple of eval_steps"
            )
        return self

    @model_validator(mode="after")
    def _without_context_there_is_one_view(self) -> Self:
        if self.data.without_context and self.d2e.views != ("original",):
            raise ValueError(
                f"data.without_context=true with the views {', '.join(self.d2e.views)}: without contexts they are the "
                "same; expected the objective sft (--method sft, or d2e.objective=sft)"
            )
        return self

    @model_validator(mode="after")
    def _contains_no_key(self) -> Self:
        name = secret_in([str(self.model_dump())])
        if name is not None:
            raise ValueError(
                f"a value contains that of ${name}; expected no key or token, since runs keep their recipe"
            )
        return self

    @property
    def decoding(self) -> DecodingConfig:
        """Decoding of the trained model: by `eval.alpha` if set, otherwise by the objective's α."""
        alpha = self.d2e.effective_alpha if self.eval.alpha is None else self.eval.alpha
        return DecodingConfig(alpha=alpha, max_new_tokens=self.eval.max_new_tokens, batch_size=self.eval.batch_size)

    def as_yaml(self) -> str:
        """The resolved recipe as the text of a file, every default spelt out."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)

    def save(self, folder: Path) -> None:
        """Write the resolved recipe, every default spelt out, to `folder/recipe.yaml`."""
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / RECIPE_FILE, self.as_yaml())


def load_recipe(recipe: str | Path | RecipeSource, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe, a file or a bundled one, and apply `section.key=value` overrides.

    Raises UserError if there is no such recipe, a file is not YAML, a key is unknown, or a value does not fit. The
    message names the recipe, the key, the value and what was expected.
    """
    source = recipe if isinstance(recipe, RecipeSource) else require_recipe(recipe)
    layers = read_recipe(source)
    content = merged(layers)
    before = content.get("d2e") or {}
    overridden = {_apply_override(content, override) for override in overrides}
    if ("d2e", "objective") in overridden and isinstance(before, dict):
        content["d2e"] = _without_options_of(before, content["d2e"], overridden)
    content = {section: {} if value is None else value for section, value in content.items()}
    if isinstance(content.get("train"), dict):
        keys_by_layer = [
            *(sections.get("train") or {} for _, sections in layers),
            [key for keys in overridden for key in keys[1:2]],
        ]
        content["train"] = fit_micro_batch(content["train"], keys_by_layer)

    def describe(item: Mapping[str, Any]) -> str:
        keys = tuple(map(str, item["loc"]))
        place = ".".join((*keys, ""))
        setting = [file for file, sections in layers if any(place.startswith(f"{key}.") for key, _ in flat(sections))]
        is_own = not setting or (source.method is None and setting[-1] == source.files[0])
        is_own |= any(keys[:n] in overridden for n in range(1, len(keys) + 1))
        return _describe(item, keys) + ("" if is_own else f" (in {setting[-1]}, which it extends)")

    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{source.name}: {describe_validation_error(error, describe)}") from None


def warn_if_trained_on_texts(recipe: Recipe | None) -> None:
    """Warn that a run which was trained on texts is about to be asked in a chat."""
    if recipe is not None and recipe.data.form == "completion":
        warn("the model was trained on texts that it continues (data.form=completion), and is asked in a chat here")


def unresolved_yaml(source: RecipeSource) -> str:
    """A recipe with all files it extends as the text of one file, without defaults."""
    sections = merged(read_recipe(source))
    ordered = {name: sections[name] for name in Recipe.model_fields if name in sections}
    return yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True)


def is_begun(recipe: Recipe) -> bool:
    """Whether its run folder contains a run, begun or finished."""
    return (Path(recipe.train.output_dir) / RECIPE_FILE).is_file()


def recipe_of(model: str) -> Recipe | None:
    """The recipe that a run folder, or one of its `checkpoint-N` folders, was trained with; None for other models."""
    file = recipe_file_of(Path(model))
    return None if file is None else load_recipe(file)


def recipe_file_of(folder: Path) -> Path | None:
    """The file of that recipe: in the folder, or for a checkpoint else in its run's."""
    holders = [folder, folder.parent] if folder.name.startswith("checkpoint-") else [folder]
    return next((holder / RECIPE_FILE for holder in holders if (holder / RECIPE_FILE).is_file()), None)


def _apply_override(content: dict[str, Any], override: str) -> tuple[str, ...]:
    key, equals, text = override.partition("=")
    if key == EXTENDS:
        raise UserError(
            f"override {shortened(override)}: what a recipe extends is part of its file",
            remedy=f"write a file with the line `extends: [RECIPE, {text or 'OTHER'}]`",
        )
    if not equals or not key:
        raise UserError(f"override {shortened(override)}: expected section.key=value, for example d2e.alpha=0.7")
    *sections, last = key.split(".")
    target = content
    for section in sections:
        inner = target.get(section)
        if inner is not None and not isinstance(inner, dict):
            raise UserError(f"override {shortened(override)}: {section!r} is a value, not a section")
        target[section] = dict(inner or {})
        target = target[section]
    try:
        target[last] = load_yaml(text)
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"override {shortened(override)}: the value is not YAML ({error})") from None
    return (*sections, last)


def _without_options_of(
    before: Mapping[str, Any], d2e: dict[str, Any], overridden: set[tuple[str, ...]]
) -> dict[str, Any]:
    """Drop options that equal the former objective's defaults: `debias: true` of `d2e` is no option of `teacher`."""
    try:
        former = D2ESection(objective=before.get("objective", "d2e"))
    except ValidationError:
        return d2e
    return {
        key: value
        for key, value in d2e.items()
        if ("d2e", key) in overridden or key not in OF_THE_OBJECTIVE or value != getattr(former, key)
    }


def _describe(item: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    if item["type"] == "value_error":
        return str(item["msg"]).removeprefix("Value error, ")
    if item["type"] != "extra_forbidden":
        return describe_problem(item)
    known: Mapping[str, FieldInfo] = Recipe.model_fields
    for step in keys[:-1]:
        section = section_in(known[step].annotation)
        known = section.model_fields if section is not None else {}
    value = "not shown" if names_a_secret(".".join(keys)) else shortened(item["input"])
    return (
        f"unknown key {'.'.join(keys)!r} (value {value}); {'.'.join(keys[:-1]) or 'a recipe'} has {', '.join(known)}."
        + _nearest_key(keys[-1], known)
    )


def _nearest_key(name: str, known: Mapping[str, FieldInfo]) -> str:
    """Return `" Did you mean 'x'?"`: a key whose name or meaning contains the name, otherwise one spelt like it."""
    words = name.replace("_", " ").lower()
    for key, field in known.items():
        meaning = (field.description or "").lower().replace("-", " ")
        if len(words) > 3 and (words in key.replace("_", " ") or words in meaning):
            return f" Did you mean {key!r}?"
    return did_you_mean(name, known)


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The class of the section that a key holds, as `model.lora` does; None for a plain value."""
    kinds = [annotation, *get_args(annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of nested sections."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
