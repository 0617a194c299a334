"""The skeleton of a benchmark with a scorer: gold, prompts, predictions and scores, and the options of both.

A subclass of `Benchmark` reads the gold file, asks a model, reads a file of predictions and scores answers. How a run
is kept, scored files are compared, and options are read is the same for all of them (`run.py`).
"""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from d2e_sft.data.chat_template import Form
from d2e_sft.util.errors import UserError, describe_validation_error, did_you_mean
from d2e_sft.util.table import Table
from eval.score.measures import Measure
from eval.systems.asking import Asker
from eval.systems.reading import file_in

_NOT_IN_NAMES = re.compile(r"[^\w+.]")  # of folders
Unit = TypeVar("Unit")
Gold = TypeVar("Gold")
Answers = TypeVar("Answers")


class BenchmarkOptions(BaseModel):
    """Options of a benchmark, on the command line `--set NAME=VALUE`; a benchmark derives its own, with defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    # Options that only change how answers are scored.
    scoring: ClassVar[frozenset[str]] = frozenset()
    # The values with which the prompts have options to choose from; None if they never have.
    choosing: ClassVar[Mapping[str, Any] | None] = None

    @property
    def variant(self) -> str:
        """The options that differ from the defaults, for the name of the results' folder; may be empty.

        Options in `scoring` are left out, and fields with `exclude=True`, which `scores.json` does not have either.
        """
        defaults = {name: value for name, value in self.defaults().items() if name not in self.scoring}
        values = self.model_dump(include=set(defaults))
        changed = {name: value for name, value in values.items() if value != defaults[name]}
        texts = {name: value.stem if isinstance(value, Path) else str(value) for name, value in changed.items()}
        return "-".join(f"{name}={_NOT_IN_NAMES.sub('_', text)}" for name, text in texts.items())

    @property
    def can_choose(self) -> bool:
        """Whether the prompts have options, so that `--answer likelihood` can take the likeliest."""
        return self.choosing is not None and self.choosing.items() <= dict(self).items()

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        return {name: option.get_default(call_default_factory=True) for name, option in cls.model_fields.items()}


@dataclass(frozen=True)
class BenchmarkResult:
    """The result of a run or a scorer.

    Attributes:
        scores: Plain JSON with fractions, not percent. The headline scores are at the top level.
        tables: Tables to print, the main one first.
        files: Text files to keep with the scores, by name; usually predictions in the official format.
        measures: The scores item by item, the headline first. Two results are compared by them.
    """

    scores: dict[str, Any]
    tables: Sequence[Table]
    files: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    measures: Sequence[Measure] = ()

    @property
    def text(self) -> str:
        return "\n\n".join(table.terminal() for table in self.tables)


@dataclass(frozen=True)
class BenchmarkCall:
    """A run of a benchmark.

    Attributes:
        data: The folder with the official files, or one of the files.
        max_samples: Limit on the units that the benchmark counts, drawn with the seed; None takes all.
        by_likelihood: Score options instead of generating; only if the options allow it (`can_choose`).
        form: The asker applies it, and some benchmarks have other wording for it.
    """

    data: Path
    options: Any
    max_samples: int | None
    seed: int
    by_likelihood: bool = False
    form: Form = "chat"

    def drawn(self, units: Sequence[Unit]) -> list[Unit]:
        """Return at most `max_samples` of the units, drawn with the seed, in their order."""
        if self.max_samples is None or self.max_samples >= len(units):
            return list(units)
        places = random.Random(self.seed).sample(range(len(units)), self.max_samples)
        return [units[place] for place in sorted(places)]

    def drawn_from(self, items: Mapping[str, Unit]) -> dict[str, Unit]:
        """Return the items with the names that are drawn."""
        return {name: items[name] for name in self.drawn(list(items))}

    @property
    def sampling(self) -> dict[str, Any]:
        """Temperature and seed of answers, if the benchmark has an option `temperature`."""
        return {"temperature": getattr(self.options, "temperature", 0.0), "seed": self.seed}


class Benchmark(Generic[Gold, Answers]):
    """A benchmark; a subclass reads gold, asks a model, reads predictions and scores.

    `title` has name, authors and venue, `official_files` is for messages, `obtain` the command that gets these files.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    official_files: ClassVar[str]
    obtain: ClassVar[str] = ""
    options: ClassVar[type[BenchmarkOptions]]
    score_options: ClassVar[type[BenchmarkOptions]]

    def gold_files(self, options: Any) -> Sequence[str]:
        """Return the names of gold in a folder of official files, best first; none if `read_gold` takes folders."""
        return ()

    def read_gold(self, path: Path, options: Any) -> Gold:
        """Read the gold file; UserError, with file, place, value and what is expected, if it is missing or damaged."""
        raise NotImplementedError

    def ask(self, gold: Gold, call: BenchmarkCall, asker: Asker) -> Answers:
        """Ask a model, and return its answers to the gold items that the call draws."""
        raise NotImplementedError

    def prediction_files(self, options: Any) -> Sequence[str]:
        """Return the names under which a run keeps what the scorer reads, best first."""
        return ()

    def read_predictions(self, path: Path, gold: Gold, options: Any) -> Answers:
        """Read a file of predictions, official or flat; UserError if it is damaged, or does not fit the gold file."""
        raise NotImplementedError

    def evaluate(self, gold: Gold, answers: Answers, options: Any, seed: int) -> BenchmarkResult:
        raise NotImplementedError

    def files(self, gold: Gold, answers: Answers) -> dict[str, str]:
        """Return the files that a run keeps, by name: predictions in the official format."""
        return {}

    def template(self, gold: Gold, options: Any) -> Iterable[dict[str, Any]]:
        """Return the lines of a flat file of predictions to fill in."""
        raise NotImplementedError

    def run(self, call: BenchmarkCall, asker: Asker) -> BenchmarkResult:
        """Ask a model about the benchmark and score its answers; UserError if files are damaged or the model fails."""
        gold = self.read_gold(self.gold_at(call.data, call.options, "--data"), call.options)
        answers = self.ask(gold, call, asker)
        result = self.evaluate(gold, answers, call.options, call.seed)
        return replace(result, files={**result.files, **self.files(gold, answers)})

    def score(self, predictions: Path, gold: Path, options: Any) -> BenchmarkResult:
        """Score a file of predictions against a gold file; both may be folders that hold one."""
        file = self.predictions_at(predictions, options)
        truth = self.read_gold(self.gold_at(gold, options), options)
        return self.evaluate(truth, self.read_predictions(file, truth, options), options, options.seed)

    def gold_at(self, path: Path, options: Any, option: str = "--gold") -> Path:
        """Return the gold file itself, or the one in a folder of official files; UserError if no such file."""
        names = self.gold_files(options)
        if names:
            return file_in(path, names, option, f"the official files (get them: {self.obtain})")
        if not path.exists():
            raise UserError(f"{option} {path}: no such file or folder", remedy=f"get the files: {self.obtain}")
        return path

    def predictions_at(self, path: Path, options: Any) -> Path:
        """Return the file of predictions itself, or the one in a run's folder."""
        return file_in(path, self.prediction_files(options), "--predictions", "predictions of a run")


def parse_options(options: type[BenchmarkOptions], settings: Sequence[str], name: str) -> BenchmarkOptions:
    """Read `NAME=VALUE` texts as a benchmark's options; UserError for a text, option or value that does not fit."""
    help_of = {option: field.description for option, field in options.model_fields.items()}
    defaults = (f"{o}={value}" + f" ({help_of[o]})" * bool(help_of[o]) for o, value in options.defaults().items())
    remedy = f"options of {name} and their defaults: {'; '.join(defaults)}"
    if not options.model_fields:
        remedy = f"{name} has no options here"
    values: dict[str, str] = {}
    for text in settings:
        option, equals, value = text.partition("=")
        if not equals or not option:
            raise UserError(f"--set {text}: expected NAME=VALUE", remedy)
        if option not in options.model_fields:
            hint = did_you_mean(option, options.model_fields)
            raise UserError(f"--set {text}: {name} has no option {option!r}.{hint}", remedy)
        if option in values:
            raise UserError(f"--set {text}: {option} is given twice", "give it once")
        values[option] = value
    try:
        return options.model_validate(values)
    except ValidationError as error:
        raise UserError(f"--set: {describe_validation_error(error)}", remedy) from None
