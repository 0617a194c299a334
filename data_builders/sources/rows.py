"""What sources share: models of raw rows, and forms of raw files, which turn rows into drafts of samples."""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import getitem
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from d2e_sft.util.errors import UserError, describe_validation_error
from data_builders.raw.reader import RawInput
from data_builders.raw.row import BadRowError, Draft, Row, clean
from data_builders.raw.source import SourceOptions

T = TypeVar("T")
M = TypeVar("M", bound="RawRow")


def _not_empty(value: T) -> T:
    if not value:
        raise ValueError("expected text that is not empty" if isinstance(value, str) else "expected at least one")
    return value


Cleaned = Annotated[str, AfterValidator(clean)]  # may be empty
Text = Annotated[str, AfterValidator(clean), AfterValidator(_not_empty)]
Bit = Annotated[int, Field(ge=0, le=1)]  # Literal[0, 1] would accept true
Place = Annotated[list[NonNegativeInt], Field(min_length=2, max_length=2)]  # start, end
Texts = Annotated[list[Cleaned], AfterValidator(_not_empty)]  # at least one, which may be empty


class RawObject(BaseModel):
    """The fields that a source uses of an object inside a raw row; all other fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class RawRow(RawObject):
    """The fields that a source uses of a raw row; `number` is that of its line, or of its item in a JSON value."""

    number: int
    key: str = ""

    def draft(self, **parts: Any) -> Draft:
        """Return a draft of the given parts, with the row's own number, context, question, options and answers."""
        names = ("number", "context", "question", "options", "answers")
        return Draft(**{name: getattr(self, name) for name in names if hasattr(self, name)} | parts)


# substring: the letters "if" anywhere, even in "different" or "knife", but not a capital "If". Only this rule gives
# PIPER's published counts of Cosmos QA and ESTER. word: the word, in any letter case.
IfRule = Literal["substring", "word"]


class IfOptions(SourceOptions):
    """Options of a dataset whose conditional questions have the letters "if" (substring) or the word."""

    rule: IfRule = "substring"


def has_if(question: str, rule: IfRule) -> bool:
    """Return whether a question counts as conditional."""
    return "if" in question if rule == "substring" else re.search(r"\bif\b", question, re.IGNORECASE) is not None


@lru_cache(maxsize=1024)  # rows about one page follow each other
def fingerprint(text: str) -> str:
    """Return the letters and digits of a text in lower case: equal for copies with other spacing or punctuation."""
    return re.sub(r"[\W_]+", "", text.lower())


def contains_any(context: str, answers: Iterable[str]) -> bool:
    """Return whether the context has one of the answers, ignoring letter case."""
    folded = context.casefold()
    return any(answer and answer.casefold() in folded for answer in answers)


@dataclass(frozen=True)
class Form(Generic[M]):
    """How to read a raw file.

    Attributes:
        drafts: Turns a row into a draft of a sample, or into drafts or other rows that a filter turns into drafts.
        rows: Reads the file's rows; it depends on the file format.
    """

    model: type[M]
    drafts: Callable[[M], Draft | Iterable[Any]] = lambda row: [row]
    rows: Callable[[RawInput], Iterable[Row]] = RawInput.json_lines

    def read(self, raw: RawInput) -> list[Any]:
        """Return the drafts of all good rows."""

        def parse(row: Row) -> list[Any]:
            try:
                model = self.model.model_validate({**row.fields, "number": row.number, "key": row.key})
            except ValidationError as error:
                raise BadRowError(describe_validation_error(error)) from None
            drafts = self.drafts(model)
            return [drafts] if isinstance(drafts, Draft) else list(drafts)

        return [draft for drafts in raw.parse(self.rows(raw), parse) for draft in drafts]


def columns(model: type[RawRow]) -> list[str]:
    """Return the columns of a CSV or Parquet file that a row model needs."""
    return [item.alias or name for name, item in model.model_fields.items() if name not in RawRow.model_fields]


def derived_table(raw: RawInput, *keys: str) -> Any:
    """Return a value of a table that replaces the published files it was derived from; UserError without the keys."""
    for row in raw.json_lines():
        with suppress(KeyError, TypeError):
            return reduce(getitem, keys, row.fields)
    raise UserError(f"{raw.path}: expected a JSON object with {' → '.join(keys)}", remedy="get the table again")
