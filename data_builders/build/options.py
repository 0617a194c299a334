"""Options of a build, with `KEY=VALUE` settings checked against datasets and refiner."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ValidationError

from d2e_sft.judge.judge import Judge, make_judge
from d2e_sft.judge.options import JudgeOptions
from d2e_sft.util.errors import UserError, describe_validation_error, did_you_mean
from data_builders.build.suites import ContextBounds, Suite
from data_builders.raw.source import Source, SourceOptions
from data_builders.refine.rules import RefinerOptions
from data_builders.sources import SOURCES
from data_builders.swap.candidates import SwapOptions

JudgeJob = Literal["quality", "refine"]
JUDGE_JOBS: tuple[JudgeJob, ...] = get_args(JudgeJob)


@dataclass(frozen=True)
class BuildOptions:
    """Options of a build.

    Attributes:
        datasets: Names, or files that describe own data, in the order in which their rows are written.
        raw: Folder with the raw files as `<dataset>/<file>`; None downloads them.
        skip_bad: Put bad raw rows aside instead of stopping at the first.
        settings: `KEY=VALUE` texts such as `boxes.boxes=3` or `refine.threshold=0.5`.
        size: Rows to draw, for a suite with ratios; None for the suite's own number.
        allow_shortfall: If a dataset has too few rows, draw more from the others.
        swap: Share of each dataset's training rows whose entity is swapped.
        swap_test: Share of each dataset's test rows that get a twin with another entity.
        unanswerable: Share of each dataset's training rows whose context becomes one that does not answer.
        unanswerable_test: Share of each dataset's test rows that get a twin with such a context.
        refusal: Answer of these rows; empty for the one that own data declares, otherwise `not stated`.
        distractors: Passages of other rows that are put next to each context.
        against: Benchmark files or build folders whose rows must not be trained on.
        judge: Language model that filters and refines training samples; None for rules.
        asking: Whether models are asked; an estimate needs no key.
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
    unanswerable: float = 0.0
    unanswerable_test: float = 0.0
    refusal: str = ""
    distractors: int = 0
    against: Sequence[Path] = ()
    overwrite: bool = False
    judge: Judge | None = None
    judge_jobs: Sequence[JudgeJob] = JUDGE_JOBS
    asking: bool = True

    @cached_property
    def refining(self) -> RefinerOptions:
        """The refiner's options, of all settings."""
        return parse_settings((text for text in self.settings if text.startswith(f"{REFINE}.")), ()).refiner

    @cached_property
    def refiner(self) -> Judge | None:
        """The model that refines instead of the judge; None without one."""
        refining = self.refining
        if not refining.by_model:
            return None
        shared = JudgeOptions() if self.judge is None else self.judge.options
        if refining.by != shared.backend:  # another kind of place, whose address and prices differ
            shared = JudgeOptions(**shared.model_dump(include={"cache", "concurrency", "max_tokens", "prompts"}))
        chosen = {"backend": refining.by, "model": refining.model, "dtype": refining.dtype}
        return make_judge(JudgeOptions.model_validate(shared.model_dump() | chosen), asking=self.asking)

    def judge_for(self, job: JudgeJob) -> Judge | None:
        """The model that does a job; `--refine` takes that one from the judge."""
        if job == "refine" and "by" in self.refining.model_fields_set:
            return self.refiner
        return self.judge if job in self.judge_jobs else None

    def random(self, purpose: str) -> random.Random:
        """Return a generator that depends only on seed and purpose."""
        return random.Random(f"{self.seed}/{purpose}")


REFINE, SWAP = "refine", "swap"
_FILE = "_file"


@dataclass(frozen=True)
class Settings:
    """Checked settings; `sources` are options by dataset name.

    `files` are raw files that the user chose among an input's candidates, by dataset name and input key.
    """

    sources: Mapping[str, SourceOptions]
    files: Mapping[str, Mapping[str, str]]
    refiner: RefinerOptions
    swap: SwapOptions


def parse_settings(texts: Iterable[str], sources: Sequence[Source]) -> Settings:
    """Return the checked settings; UserError for a text without `=`, an unknown or repeated key, or a wrong value."""
    models: dict[str, type[BaseModel]] = {source.name: source.options for source in sources}
    models |= {REFINE: RefinerOptions, SWAP: SwapOptions}
    choices = {f"{s.name}.{item.key}{_FILE}" for s in sources for item in s.inputs if len(item.candidates) > 1}
    known = [f"{name}.{key}" for name, model in models.items() for key in model.model_fields] + sorted(choices)
    values: dict[str, dict[str, str | None]] = {name: {} for name in models}
    files: dict[str, dict[str, str]] = {}
    seen = set()
    for text in texts:
        key, equals, value = text.partition("=")
        name, _, option = key.partition(".")
        if not equals:
            raise UserError(f"got option {text!r}; expected KEY=VALUE, for example {known[0]}=VALUE")
        if name in SOURCES and name not in models:
            raise UserError(f"option {key!r} is for dataset {name!r}, which is not built", f"add {name} to --datasets")
        if key not in known:
            raise UserError(f"unknown option {key!r}; expected some of {', '.join(known)}.{did_you_mean(key, known)}")
        if key in seen:
            raise UserError(f"option {key!r} is given twice", remedy="give it once")
        seen.add(key)
        if key in choices:
            files.setdefault(name, {})[option.removesuffix(_FILE)] = value
        else:
            values[name][option] = None if value.lower() in ("none", "null") else value
    options: dict[str, Any] = {}
    for name, model in models.items():
        try:
            options[name] = model.model_validate(values[name])
        except ValidationError as error:
            raise UserError(f"option of {name}: {describe_validation_error(error)}") from None
    return Settings(refiner=options.pop(REFINE), swap=options.pop(SWAP), sources=options, files=files)
