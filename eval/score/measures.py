"""Measures of a related system: what each item adds to a score, so that results can be compared item by item.

A run keeps its measures as `measures.json` next to `scores.json`; `d2e score` makes them from predictions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_json_as, write_whole
from eval.score.statistics import FORMS, Interval, bootstrap_counts, score_of

MEASURES_FILE = "measures.json"


class Measure(BaseModel):
    """One score as a function of its items' counts.

    Attributes:
        form: A key of `eval.score.statistics.FORMS`.
        unit: Plural name of the items.
        gold: Digest of the gold answers, which must be equal in a comparison.
        counts: Item → as many numbers as the form takes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    form: str
    unit: str
    gold: str
    counts: dict[str, tuple[float, ...]]

    @model_validator(mode="after")
    def _check(self) -> Measure:
        if self.form not in FORMS:
            raise ValueError(f"form is {self.form!r}; expected one of {', '.join(FORMS)}")
        if len({len(row) for row in self.counts.values()}) != 1:
            raise ValueError("counts are empty or of different lengths; expected the same length for each item")
        return self

    @cached_property
    def interval(self) -> Interval:
        return bootstrap_counts(self.form, list(self.counts.values()))


def digest(gold: Any) -> str:
    """Digest of gold answers given as plain JSON or dataclasses."""
    return hashlib.sha256(json.dumps(gold, sort_keys=True, default=vars).encode()).hexdigest()[:16]


def measure(name: str, form: str, unit: str, gold: str, counts: Mapping[str, Sequence[float]]) -> list[Measure]:
    """Make the measure, without items whose counts are all zero; empty if the score is undefined."""
    kept = {str(name): tuple(map(float, row)) for name, row in counts.items() if any(row)}
    if not kept or score_of(form, list(kept.values())) is None:
        return []
    return [Measure(name=name, form=form, unit=unit, gold=gold, counts=kept)]


def shares(name: str, unit: str, gold: str, right: Mapping[str, float], *, form: str = "share") -> list[Measure]:
    """Make the mean of one value for each item, from 0 to 1, or from −1 with the form `correlation`."""
    return measure(name, form, unit, gold, {item: (value, 1) for item, value in right.items()})


def write_measures(measures: Sequence[Measure], folder: Path) -> None:
    """Write `FOLDER/measures.json`, one measure on each line."""
    lines = ",\n".join(item.model_dump_json() for item in measures)
    write_whole(folder / MEASURES_FILE, f"[{lines}]\n")


def read_measures(folder: Path) -> list[Measure]:
    """Read the measures of a folder of results; UserError if the file is missing or damaged."""
    path = folder / MEASURES_FILE
    remedy = "the same d2e eval writes it again from the answers that it kept, without decoding"
    if not path.is_file():
        raise UserError(f"{folder}: has scores, but no {MEASURES_FILE}, which holds them item by item", remedy)
    return read_json_as(list[Measure], path, "a list of measures", remedy)
