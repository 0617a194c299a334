"""What sources share: models of raw rows, filters with a name and a reason, and reading all splits of a dataset."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Annotated, Any, Generic, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from d2e_sft.data.sample import Split
from d2e_sft.util.errors import UserError, describe_validation_error
from data_builders.raw.reader import Draft, RawInput
from data_builders.raw.row import BadRowError, Row, clean
from data_builders.raw.source import SPLITS, Job, Samples, SplitRows

T = TypeVar("T")
M = TypeVar("M", bound="RawRow")
AnyDraft = TypeVar("AnyDraft", bound=Draft)


def _not_empty(value: T) -> T:
    if not value:
        raise ValueError("expected text that is not empty" if isinstance(value, str) else "expected at least one")
    return value


Cleaned = Annotated[str, AfterValidator(clean)]  # may be empty
Text = Annotated[str, AfterValidator(clean), AfterValidator(_not_empty)]
Bit = Annotated[int, Field(ge=0, le=1)]  # Literal[0, 1] would accept true
Texts = Annotated[list[Cleaned], AfterValidator(_not_empty)]  # at least one, which may be empty


class RawObject(BaseModel):
    """The fields that a source uses of an object inside a raw row; all other fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class RawRow(RawObject):
    """The fields that a source uses of a raw row.

    Attributes:
        number: Of its line, or of its item if the file is one JSON value.
        key: Its key if the file is a JSON object of rows.
    """

    number: int
    key: str = ""


@dataclass(frozen=True)
class Form(Generic[M]):
    """How to read a raw file.

    Attributes:
        model: The fields of a row.
        drafts: Turns a row into one or more drafts of samples.
        rows: Reads the file's rows; it depends on the file format.
    """

    model: type[M]
    drafts: Callable[[M], Draft | Iterable[Draft]]
    rows: Callable[[RawInput], Iterable[Row]] = RawInput.json_lines

    def read(self, raw: RawInput) -> list[Draft]:
        """Return the drafts of all good rows."""
        return [draft for drafts in raw.parse(self.rows(raw), self._parse) for draft in drafts]

    def _parse(self, row: Row) -> list[Draft]:
        found = self.drafts(parse_row(self.model, row))
        return [found] if isinstance(found, Draft) else list(found)


def parse_row(model: type[M], row: Row) -> M:
    """Return the row as its model.

    Raises:
        BadRowError: A field is missing or has a wrong value.
    """
    try:
        return model.model_validate({**row.fields, "number": row.number, "key": row.key})
    except ValidationError as error:
        raise BadRowError(describe_validation_error(error)) from None


def read_models(model: type[M], raw: RawInput, rows: Iterable[Row]) -> list[M]:
    """Return all good rows of a file as models."""
    return raw.parse(rows, lambda row: parse_row(model, row))


def derived_table(raw: RawInput, *keys: str) -> Any:
    """Return a value of a table that was derived from published files and replaces them.

    Raises:
        UserError: The table lacks the keys.
    """
    for row in raw.json_lines():
        with suppress(KeyError, TypeError):
            return reduce(getitem, keys, row.fields)
    raise UserError(f"{raw.path}: expected a JSON object with {' → '.join(keys)}", remedy="get the table again")


def columns(model: type[RawRow]) -> list[str]:
    """Return the columns of a CSV or Parquet file that a row model needs."""
    return [item.alias or name for name, item in model.model_fields.items() if name not in RawRow.model_fields]


@dataclass(frozen=True)
class Filter:
    """Leaves rows out; name, reason and counts are recorded in the manifest.

    Attributes:
        keep: (rows, rows of the splits read before) → the rows that stay.
        splits: The splits that are filtered.
        unit: What is counted.
    """

    name: str
    reason: str
    keep: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
    splits: tuple[Split, ...] = SPLITS
    unit: str = "rows"


def keep_if(name: str, reason: str, test: Callable[[Any], object], unit: str = "rows") -> Filter:
    """Keep the rows that pass a test."""
    return Filter(name, reason, lambda rows, _: [row for row in rows if test(row)], unit=unit)


def keep_first(
    name: str, reason: str, key: Callable[[Any], Hashable], splits: tuple[Split, ...] = ("train",), unit: str = "rows"
) -> Filter:
    """Keep the first row of each key."""
    return Filter(name, reason, lambda rows, _: first_of_each(rows, key), splits, unit)


def keep_unseen(
    name: str,
    reason: str,
    *keys: Callable[[Any], Hashable],
    splits: tuple[Split, ...] = ("train",),
    unit: str = "rows",
) -> Filter:
    """Keep the rows that share no key with a row of the splits read before."""
    return Filter(name, reason, lambda rows, before: not_in_test(rows, before, *keys), splits, unit)


NO_BLANK = keep_if(
    "no blank answer",
    "samples with a blank answer are excluded (PIPER)",
    lambda row: row.answers and all((*row.answers, *row.options)),
)


def apply_filters(
    rows: SplitRows[Any], filters: Iterable[Filter], split: Split, before: Sequence[Any] = ()
) -> SplitRows[Any]:
    """Apply a split's filters in order; `before` are the rows of the splits read before."""
    for one in filters:
        if split in one.splits:
            rows.keep(one.name, one.reason, one.keep(rows.rows, before), one.unit)
    return rows


def read_splits(
    job: Job,
    form: Form[Any] | Mapping[Split, Form[Any]],
    filters: Sequence[Filter] = (),
) -> dict[Split, Samples]:
    """Read all wanted splits of a dataset that has one file per split.

    The test is read first, then dev, then train, so that filters can keep the later splits apart from the earlier.

    Args:
        form: How to read the files; by split where they differ.
        filters: Applied in order.
    """
    found: dict[Split, Samples] = {}
    before: list[Draft] = []
    for split in reversed(SPLITS):
        if split not in job.files:
            continue
        raw = job.input(split)
        drafts = (form if isinstance(form, Form) else form[split]).read(raw)
        if job.wants(split):
            found[split] = to_samples(raw, apply_filters(SplitRows(drafts), filters, split, before))
        before += drafts
    return {split: found[split] for split in SPLITS if split in found}


def to_samples(raw: RawInput, drafts: SplitRows[AnyDraft]) -> Samples:
    """Turn a split's drafts into samples; rows that `EventSample` rejects are bad rows."""
    return drafts.become(raw.parse(drafts.rows, raw.sample))


def first_of_each(rows: Iterable[T], key: Callable[[T], Hashable]) -> list[T]:
    """Return the first row of each key, in order."""
    first: dict[Hashable, T] = {}
    for row in rows:
        first.setdefault(key(row), row)
    return list(first.values())


def not_in_test(rows: Iterable[T], test: Iterable[Any], *keys: Callable[[Any], Hashable]) -> list[T]:
    """Return the rows that share no key with a test row; an empty key is never shared."""
    taken = [{key(row) for row in test} - {""} for key in keys]
    return [row for row in rows if not any(key(row) in met for key, met in zip(keys, taken, strict=True))]


def draw_share(keys: Iterable[T], share: float, rng: random.Random) -> set[T]:
    """Draw a share of the distinct keys."""
    distinct = list(dict.fromkeys(keys))
    return set(rng.sample(distinct, round(share * len(distinct))))


def labelled(model: type[RawRow], rows: RawInput, labels: RawInput) -> Iterator[Row]:
    """Return each row of a JSON-lines file with its `label`, the same line of a second file.

    Labels that the model does not list are bad rows of the second file.

    Raises:
        UserError: A line has a row but no label, or a label but no row, so no label can be trusted.
    """
    found = list(rows.json_lines())
    choices = get_args(model.model_fields["label"].annotation)
    label_of: dict[int, str] = {}
    for line in labels.lines():
        if (label := clean(line.text)) in choices:
            label_of[line.number] = label
        else:
            labels.reject(line.number, line.text, f"label: got {label!r}; expected one of {', '.join(choices)}")
    if unpaired := set(rows.numbers) ^ set(labels.numbers):
        raise UserError(
            f"{labels.path}: {len(labels.numbers):,} labels for {len(rows.numbers):,} rows of {rows.path}; "
            f"expected a label on the line of each row, but only one of the files has line {min(unpaired):,}",
            remedy="take both files from the same release",
        )
    for row in found:
        if row.number in label_of:
            yield Row(row.number, {**row.fields, "label": label_of[row.number]})
