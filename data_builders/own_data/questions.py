"""Rows without answers, for `d2e predict`: the same files and descriptions that own data are built from.

The answer column is neither needed nor read. Where no description is given, the columns have the names of a sample's
parts, and a row may say its own `format`, so that the rows of a benchmark can be asked as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from d2e_sft.data.sample import NLI_LABELS, RELATIONS, WORDED, BadRow, EventSample, Format, Relation
from d2e_sft.util.errors import UserError, did_you_mean
from data_builders.own_data.row import OwnRow, RowParser
from data_builders.own_data.source import is_own, rows_of
from data_builders.own_data.spec import ENDINGS, OwnSpec, ending_of, read_spec
from data_builders.raw.reader import BadRows, RawInput
from data_builders.raw.row import MISSING, BadRowError, Row

_FORMAT, _OPTIONS, _RELATION = "format", "options", "relation"
_NO_MAPPING = "a description, given with --mapping"


def read_questions(
    file: Path, *, mapping: Path | None, fmt: str | None, relation: Relation = "none", skip_bad: bool = False
) -> tuple[list[EventSample], list[BadRow]]:
    """The rows of a file as samples to be answered, in its order, and those that do not fit.

    A row without an id is named by its line, of Parquet and JSON arrays by its item. The answers of the samples mean
    nothing: a sample has to have one.

    Args:
        file: `.csv`, `.tsv`, `.jsonl`, `.json` or `.parquet`; or a description (YAML), whose one file or, where it
            names several, whose `test` file is read.
        mapping: a description of own data, whose columns, format, separator and options hold for `file`.
        fmt: of rows that say none where there is no description; None: scq where they have options, else qa.
        relation: of rows that say none, where no description does; it decides whether the prompt speaks of events.
        skip_bad: put rows aside that do not fit, instead of stopping at the first.

    Raises:
        UserError: a file is missing or of another ending, the description is wrong, a row does not fit, or none does.
    """
    if is_own(str(file)):
        if mapping is not None:
            raise UserError(f"--mapping {mapping}: {file} is a description itself; expected one of the two", "drop it")
        mapping, spec = file, read_spec(file)
        file = file.parent / _file_of(file, spec)
    elif mapping is not None:
        spec = read_spec(mapping, with_files=False)
    else:
        spec = OwnSpec(train=file.name, format="qa", relation=relation)
    if mapping is not None and fmt is not None:
        raise UserError(f"--format {fmt}: {mapping} says the format; expected one of the two", "drop it")
    if spec.by_turns:
        raise UserError(
            f"{mapping}: describes whole conversations; expected questions, which d2e predict asks one by one",
            remedy="give columns for context and question, and a `prompt:` that holds both",
        )
    _check(file)
    parser = QuestionParser(
        spec, _NO_MAPPING if mapping is None else mapping.name, fmt, relation, described=mapping is not None
    )
    bad = BadRows(skip=skip_bad)
    raw = RawInput(file.stem, "test", file.name, file, bad, own_spec=parser.spec_name)
    samples = [_sample(row, found, file.stem) for found, row in raw.parse(rows_of(raw, spec, parser), parser)]
    if not samples:
        raise UserError(f"{file}: holds no row that can be answered ({len(bad.entries)} bad)", "give a file of rows")
    return samples, bad.entries


class QuestionParser(RowParser):
    """Makes of a row its format and its parts, of which the answers are empty.

    Args:
        spec, spec_name: as for `RowParser`.
        fmt, relation: of rows that say none, see `read_questions`.
        described: the format is the description's, and not read from the rows.
    """

    def __init__(self, spec: OwnSpec, spec_name: str, fmt: str | None, relation: Relation, *, described: bool) -> None:
        # A subset and a habit are about answers that are known.
        columns = spec.columns.model_copy(update={"subset": None, "habit": None})
        super().__init__(spec.model_copy(update={"relation": spec.relation or "none", "columns": columns}), spec_name)
        self.spec_name = spec_name
        self._default, self._described = fmt, described

    @property
    def columns(self) -> list[str]:
        """The columns that every row must have."""
        return [name for name in super().columns if name != self._spec.columns.answer]

    @property
    def optional(self) -> list[str]:
        """The columns that are read where they are there."""
        return [*super().optional, *(() if self._described else (_FORMAT, _OPTIONS, _RELATION))]

    def __call__(self, row: Row) -> tuple[Format, OwnRow]:  # type: ignore[override]
        """The checked row; raises as `RowParser`."""
        if not self._described:
            self._spec = self._spec.model_copy(update={"format": self._format(row)})
        return self._spec.format, super().__call__(row)

    def _format(self, row: Row) -> str:
        said = row.get(_FORMAT)
        if said is MISSING or said is None or said == "":
            return self._default or ("scq" if row.fields.get(_OPTIONS) else "qa")
        if said not in WORDED:
            hint = did_you_mean(str(said), WORDED)
            raise BadRowError.at(_FORMAT, said, f"one of {', '.join(WORDED)}, or nothing.{hint}")
        return str(said)

    def _relation(self, row: Mapping[str, Any]) -> Relation:
        said = None if self._described else row.get(_RELATION)
        if said is None or said == "":
            return super()._relation(row)
        if said not in RELATIONS:
            raise BadRowError.at(_RELATION, said, f"one of {', '.join(RELATIONS)}, or nothing")
        return cast(Relation, said)

    def _answers(self, name: str, value: object, options: Any) -> list[str]:
        return []


def _sample(row: OwnRow, fmt: Format, dataset: str) -> EventSample:
    anything = NLI_LABELS[0] if fmt == "nli" else row.options[0] if row.options else "(not known)"
    return EventSample(
        id=row.id or str(row.number),
        dataset=dataset,
        split="test",
        relation=row.relation,
        format=fmt,
        context=row.context,
        question=row.question,
        options=list(row.options),
        answers=[anything],
        conversation=row.conversation,
    )


def _file_of(path: Path, spec: OwnSpec) -> str:
    """The file of a description that is asked about."""
    files: Mapping[str, str] = cast(Mapping[str, str], spec.files)
    if len(files) == 1:
        return next(iter(files.values()))
    if "test" in files:
        return files["test"]
    raise UserError(
        f"{path}: names several files ({', '.join(files.values())}) and none for test, so it cannot be told which "
        "rows to answer",
        remedy=f"name the file, and the description with it: d2e predict MODEL FILE --mapping {path}",
    )


def _check(file: Path) -> None:
    if ending_of(file.name) not in ENDINGS or file.name.lower().endswith(".parquet.gz"):
        raise UserError(f"{file}: cannot be read; expected a file that ends in {', '.join(ENDINGS)}, or .yaml")
    if not file.is_file():
        there = [found.name for found in file.parent.iterdir()] if file.parent.is_dir() else []
        raise UserError(f"{file}: no such file; expected rows to answer.{did_you_mean(file.name, there)}")
