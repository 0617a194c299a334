"""What to build: the typed options, and the `KEY=VALUE` texts among them checked against datasets and refiner."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ValidationError

from d2e_sft.data.sample import describe_validation_error
from d2e_sft.judge.judge import Judge
from d2e_sft.judge.options import JudgeOptions
from d2e_sft.util.errors import UserError, did_you_mean
from data_builders.build.suites import ContextBounds, Suite
from data_builders.raw.source import Source, SourceOptions
from data_builders.refine.rules import RefinerOptions
from data_builders.sources import SOURCES

JudgeJob = Literal["quality", "refine"]
JUDGE_JOBS: tuple[JudgeJob, ...] = get_args(JudgeJob)


@dataclass(frozen=True)
class BuildOptions:
    """What to build.

    Attributes:
        datasets: names, or files that describe own data, in the order in which their rows are written.
        out: folder for the results.
        raw: folder with `<dataset>/<file>`; None downloads.
        seed: for every draw.
        skip_bad: put bad raw rows aside instead of stopping at the first.
        settings: `KEY=VALUE` texts such as `boxes.boxes=3` or `refine.threshold=0.5`.
        suite: build this suite's split alone.
        bounds: of the contexts of training samples.
        size: rows to draw, for a suite with ratios; None takes the suite's own number.
        allow_shortfall: draw from the other datasets what one lacks.
        swap: share of each dataset's training rows in which answer and context get another entity.
        swap_test: share of each dataset's test rows that get a twin of which answer and context have another entity.
        against: benchmark files or build folders whose rows must not be among the training samples.
        judge: the language model that filters and refines training samples; None leaves both to rules.
        judge_options: what `judge` was made from.
        judge_jobs: which of the two jobs it gets.
    """

    datasets: Sequence[str]
    out: Path = Path()
    raw: Path | None = None
    seed: int = 0
    skip_bad: bool = False
    settings: Sequence[str] = ()
    suite: Suite | None = None
    bounds: ContextBounds = field(default_factory=ContextBounds)
    size: int | None = None
    allow_shortfall: bool = False
    swap: float = 0.0
    swap_test: float = 0.0
    against: Sequence[Path] = ()
    judge: Judge | None = None
    judge_options: JudgeOptions = field(default_factory=JudgeOptions)
    judge_jobs: frozenset[JudgeJob] = frozenset(JUDGE_JOBS)

    def judge_for(self, job: JudgeJob) -> Judge | None:
        return self.judge if job in self.judge_jobs else None

    def random(self, purpose: str) -> random.Random:
        """A generator that depends on seed and purpose only."""
        return random.Random(f"{self.seed}/{purpose}")


REFINE = "refine"
_FILE = "_file"


@dataclass(frozen=True)
class Settings:
    """Checked options.

    Attributes:
        sources: by dataset name.
        files: by dataset name and input key the raw file that the user chose among an input's candidates.
        refiner: of the rule refiner.
    """

    sources: Mapping[str, SourceOptions]
    files: Mapping[str, Mapping[str, str]]
    refiner: RefinerOptions


def parse_settings(texts: Iterable[str], sources: Sequence[Source]) -> Settings:
    """The checked options.

    Raises:
        UserError: a text without `=`, an unknown key, a key given twice, or a value that the option refuses.
    """
    models: dict[str, type[BaseModel]] = {source.name: source.options for source in sources}
    models[REFINE] = RefinerOptions
    choices = {
        f"{source.name}.{item.key}{_FILE}" for source in sources for item in source.inputs if len(item.candidates) > 1
    }
    known = [f"{name}.{key}" for name, model in models.items() for key in model.model_fields] + sorted(choices)
    given: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"got option {text!r}; expected KEY=VALUE, for example {known[0]}=VALUE")
        if key not in known:
            _refuse_key(key, known, models)
        if key in given:
            raise UserError(f"option {key!r} is given twice", remedy="give it once")
        given[key] = value
    values: dict[str, dict[str, str | None]] = {name: {} for name in models}
    files: dict[str, dict[str, str]] = {}
    for key, value in given.items():
        name, _, option = key.partition(".")
        if key in choices:
            files.setdefault(name, {})[option.removesuffix(_FILE)] = value
        else:
            values[name][option] = None if value.lower() in ("none", "null") else value
    checked = {name: _checked(name, model, values[name]) for name, model in models.items()}
    refiner = checked.pop(REFINE)
    assert isinstance(refiner, RefinerOptions)
    return Settings({name: _own(options) for name, options in checked.items()}, files, refiner)


def _own(options: BaseModel) -> SourceOptions:
    assert isinstance(options, SourceOptions)
    return options


def _refuse_key(key: str, known: list[str], models: Mapping[str, type[BaseModel]]) -> None:
    name = key.partition(".")[0]
    if name in SOURCES and name not in models:
        raise UserError(
            f"option {key!r} is for dataset {name!r}, which is not built", remedy=f"add {name} to --datasets"
        )
    raise UserError(f"unknown option {key!r}; expected some of {', '.join(known)}.{did_you_mean(key, known)}")


def _checked(name: str, model: type[BaseModel], values: Mapping[str, str | None]) -> BaseModel:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(f"option of {name}: {describe_validation_error(error)}") from None
