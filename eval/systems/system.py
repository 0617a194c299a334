"""What a related system's benchmark is: options, a run with a model, and a scorer of prediction files."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from d2e_sft.data.sample import describe_validation_error
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.table import Table
from eval.compare.measures.measure import Measure
from eval.systems.asker import Asker
from eval.systems.score_files import file_in

Unit = TypeVar("Unit")


class SystemOptions(BaseModel):
    """Options of a benchmark; on the command line `--set NAME=VALUE`. A system derives its own, with defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    # Options that change what is made of the answers, and not the answers.
    scoring: ClassVar[frozenset[str]] = frozenset()

    @property
    def variant(self) -> str:
        """The options that are not the defaults, for the name of the results' folder; empty where all are.

        Those of scoring are left out, since the answers are the same; so are fields with `exclude=True`, here and in
        `scores.json`: they say how a file is opened.
        """
        default = {name: value for name, value in self.defaults().items() if name not in self.scoring}
        own = self.model_dump(include=set(default))
        return "-".join(f"{name}={_slug(value)}" for name, value in own.items() if value != default[name])

    @property
    def can_choose(self) -> bool:
        """Whether the questions have options, so that `--answer likelihood` can take the likeliest."""
        return False

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Each option's default."""
        return {name: item.get_default(call_default_factory=True) for name, item in cls.model_fields.items()}


@dataclass(frozen=True)
class SystemResult:
    """What a run or a scorer found.

    Attributes:
        scores: plain JSON; fractions, not percent. The headline scores stand at the top level.
        tables: what is printed, the main one first.
        files: text files to keep beside the scores, by name: predictions in the official format, mostly.
        warnings: what the scores must not be read without; told on stderr.
        measures: the scores item by item, the headline first; what two results are compared by.
    """

    scores: dict[str, Any]
    tables: Sequence[Table]
    files: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    measures: Sequence[Measure] = ()


@dataclass(frozen=True)
class SystemCall:
    """A run of a benchmark.

    Attributes:
        data: the folder with the official files, or one of them.
        options: of the system's own class.
        max_samples: at most so many of what the system counts, drawn with the seed; None takes all.
        seed: of subsets, samples and intervals.
        by_likelihood: options are scored and nothing is generated; asked for only where the options `can_choose`.
    """

    data: Path
    options: Any
    max_samples: int | None
    seed: int
    by_likelihood: bool = False

    def drawn(self, units: Sequence[Unit]) -> list[Unit]:
        """At most `max_samples` of the units, drawn with the seed, in their order."""
        if self.max_samples is None or self.max_samples >= len(units):
            return list(units)
        places = random.Random(self.seed).sample(range(len(units)), self.max_samples)
        return [units[place] for place in sorted(places)]


@dataclass(frozen=True)
class System:
    """One related system.

    Attributes:
        name: on the command line.
        title: name, authors and venue.
        files: the official files that it reads, for messages.
        obtain: the command that gets them.
        options: class of its options.
        score_options: class of the scorer's options.
        run: asks a model all questions and scores its answers; a `UserError` where the official files are missing or
            damaged, or the model cannot be asked.
        score: scores a file of predictions in the official format against a gold file, with options; a `UserError`
            that names file and place where one is missing or damaged, or the two do not fit.
        prediction_files: by the scorer's options the names under which a run keeps what it scores, best first.
        gold_files: the same of gold in a folder of official files; None where `score` takes folders itself.
        template: from a gold file and the scorer's options, the lines of a flat file of predictions to fill in.
    """

    name: str
    title: str
    files: str
    obtain: str
    options: type[SystemOptions]
    score_options: type[SystemOptions]
    run: Callable[[SystemCall, Asker], SystemResult]
    score: Callable[[Path, Path, Any], SystemResult]
    prediction_files: Callable[[Any], Sequence[str]]
    gold_files: Callable[[Any], Sequence[str]] | None
    template: Callable[[Path, Any], Iterable[dict[str, Any]]] = lambda gold, options: ()

    def scored(self, predictions: Path, gold: Path, options: Any) -> SystemResult:
        """As `score`, of files or of folders that hold them.

        Raises:
            UserError: as `score`, or a folder holds no such file.
        """
        found = file_in(
            predictions, self.prediction_files(options), "--predictions", f"predictions as {self.name} keeps them"
        )
        return self.score(found, self.gold_at(gold, options), options)

    def gold_at(self, gold: Path, options: Any) -> Path:
        """The gold file itself, or the one that a folder of official files holds.

        Raises:
            UserError: there is none.
        """
        if self.gold_files is not None:
            return file_in(gold, self.gold_files(options), "--gold", f"the official files of {self.title}")
        if not gold.exists():
            raise UserError(f"--gold {gold}: no such file or folder", remedy=f"expected {self.files}")
        return gold


def parse_options(options: type[SystemOptions], given: Sequence[str], system: str) -> SystemOptions:
    """`NAME=VALUE` texts as a system's options.

    Raises:
        UserError: a text without `=`, an unknown option, one given twice, or a value that does not fit.
    """
    known = list(options.model_fields)
    values: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"--set {text}: expected NAME=VALUE", remedy=_about(options, system))
        if name not in known:
            raise UserError(
                f"--set {text}: {system} has no option {name!r}.{did_you_mean(name, known)}", _about(options, system)
            )
        if name in values:
            raise UserError(f"--set {text}: {name} is given twice", remedy="give it once")
        values[name] = value
    try:
        return options.model_validate(values)
    except ValidationError as error:
        raise UserError(f"--set: {describe_validation_error(error)}", remedy=_about(options, system)) from None


def _about(options: type[SystemOptions], system: str) -> str:
    if not options.model_fields:
        return f"{system} has no options here"
    about = {name: item.description for name, item in options.model_fields.items()}
    texts = [f"{name}={value}" + f" ({about[name]})" * bool(about[name]) for name, value in options.defaults().items()]
    return f"options of {system} and their defaults: {'; '.join(texts)}"


def _slug(value: Any) -> str:
    text = Path(value).stem if isinstance(value, Path) else str(value)
    return "".join(c if c.isalnum() or c in "+._" else "_" for c in text)
