"""A measure of one result: what each item adds to a score, so that two results can be compared item by item.

A run keeps them as `measures.json` beside its `scores.json`; `d2e score` makes them from predictions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_whole
from eval.score.counts import FORMS, bootstrap_counts, score_of
from eval.score.statistics import Interval

MEASURES_FILE = "measures.json"


class Measure(BaseModel):
    """One score as a function of its items' counts.

    Attributes:
        name: such as `accuracy`; the first measure of a result is its headline.
        form: a key of `eval.score.counts.FORMS`.
        unit: what an item is, in the plural: questions, procedures.
        gold: digest of what is right; results with another one are not about the same thing.
        counts: by the item's id, of each as many numbers as the form takes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    form: str
    unit: str
    gold: str
    counts: dict[str, tuple[float, ...]]

    @model_validator(mode="after")
    def _is_sound(self) -> Measure:
        if self.form not in FORMS:
            raise ValueError(f"form is {self.form!r}; expected one of {', '.join(FORMS)}")
        if len({len(row) for row in self.counts.values()}) != 1:
            raise ValueError("counts are empty or of different lengths; expected as many of each item")
        return self

    @property
    def rows(self) -> list[tuple[float, ...]]:
        """The items' counts, in order."""
        return list(self.counts.values())

    @cached_property
    def interval(self) -> Interval:
        """The score with its interval over items."""
        return bootstrap_counts(self.form, self.rows)


def digest(gold: Any) -> str:
    """Of what is right, as plain JSON or dataclasses."""
    return hashlib.sha256(json.dumps(gold, sort_keys=True, default=vars).encode()).hexdigest()[:16]


def measure(name: str, form: str, unit: str, gold: str, counts: Mapping[str, Sequence[float]]) -> list[Measure]:
    """The measure, or nothing where it is undefined, as the accuracy of no question is.

    Items that count nothing, of a share of some questions the others, are left out.
    """
    kept = {str(name): tuple(map(float, row)) for name, row in counts.items() if any(row)}
    if not kept or score_of(form, list(kept.values())) is None:
        return []
    return [Measure(name=name, form=form, unit=unit, gold=gold, counts=kept)]


def shares(name: str, unit: str, gold: str, right: Mapping[str, float]) -> list[Measure]:
    """The mean of one value an item."""
    return measure(name, "share", unit, gold, {item: (value, 1) for item, value in right.items()})


def write_measures(measures: Sequence[Measure], folder: Path) -> None:
    """Write them as `FOLDER/measures.json`, a line a measure."""
    lines = ",\n".join(one.model_dump_json() for one in measures)
    write_whole(folder / MEASURES_FILE, f"[{lines}]\n")


def read_measures(folder: Path) -> list[Measure]:
    """The measures that a folder of results keeps.

    Raises:
        UserError: the file is missing, as of results from before there was one, or damaged.
    """
    path = folder / MEASURES_FILE
    again = "the same d2e eval again writes it, from the answers that are kept; nothing is decoded anew"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [Measure.model_validate(row) for row in content]
    except FileNotFoundError:
        raise UserError(
            f"{folder}: has scores, but no {MEASURES_FILE}, which holds them item by item", again
        ) from None
    except (ValueError, TypeError, ValidationError) as error:
        told = " ".join(str(error).split())
        raise UserError(f"{path}: damaged ({told[:200]})", again) from None
