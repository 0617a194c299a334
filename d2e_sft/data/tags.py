"""Tags of a model: a row's subset and habit by what the model answers without the context (`d2e data tag`).

A habit is one model's. So each tagged row names the model (`meta.tag`), and rows of another model's tags are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from d2e_sft.config.recipe import recipe_of
from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError

TAG = "tag"  # key of a row's meta: model, confidence, threshold and probability


def taggers(samples: Iterable[EventSample]) -> dict[str, int]:
    """Return the models that tagged the samples, with their numbers of rows."""
    tags = (sample.meta.get(TAG) for sample in samples)
    return dict(Counter(str(tag["model"]) for tag in tags if isinstance(tag, Mapping) and "model" in tag))


def other_taggers(tagged_by: Iterable[str], model: str) -> list[str]:
    """Return the models among `tagged_by` that are neither `model` nor one that it was trained from."""
    own = set(map(_place, _lineage(model)))
    return [name for name in tagged_by if _place(name) not in own]


def tags_of_another(tagged_by: Mapping[str, int], model: str) -> str | None:
    """Return one line about rows that another model tagged; None if there are none."""
    others = other_taggers(tagged_by, model)
    if not others:
        return None
    rows = sum(tagged_by[name] for name in others)
    names = ", ".join(others)
    return (
        f"{rows:,} row{'s were' if rows > 1 else ' was'} tagged with the habit of {names}, not of {model}: aligned "
        "and conflict are about that model; tag the rows again with d2e data tag"
    )


def _lineage(model: str) -> list[str]:
    """The model, the model that it was trained from, and so on."""
    found = [model]
    while True:
        try:
            recipe: Any = recipe_of(found[-1])
        except UserError:
            return found  # a recipe of another version
        if recipe is None or recipe.model.name in found:
            return found
        found.append(recipe.model.name)


def _place(name: str) -> str:
    """The name, or the folder that it is."""
    return str(Path(name).resolve()) if Path(name).is_dir() else name
