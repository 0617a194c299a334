"""Read the rows of own data as samples; messages name the user's column, the value and what was expected."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from d2e_sft.data.built import SWAPPED, TAG
from d2e_sft.data.conversation import prompt_turns
from d2e_sft.data.foreign import nearest_columns
from d2e_sft.data.sample import RELATIONS, SUBSETS, EventSample, Relation, Subset
from d2e_sft.util.errors import did_you_mean
from data_builders.own_data.answers import (
    as_text,
    last_turn,
    read_answers,
    read_choice,
    read_choices,
    read_options,
)
from data_builders.own_data.spec import DELIMITERS, OwnSpec, ending_of
from data_builders.raw.reader import RawInput
from data_builders.raw.row import BadRowError, Row, cut

_META = "meta"  # column of rows that this project wrote


class RowParser:
    """Converts the rows of a file to samples as the description says.

    Attributes:
        has_ids: whether rows have ids of their own; None before the first row.
    """

    def __init__(self, spec: OwnSpec, raw: RawInput) -> None:
        self.spec = spec
        self.raw = raw
        self.has_ids: bool | None = None
        self._first_line: dict[str, int] = {}

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the file, by its ending.

        Rows of CSV, TSV and Parquet have the required columns, and the optional ones that the file has. Rows of JSON
        have all keys of the object, since each may have others.
        """
        raw, ending = self.raw, ending_of(self.raw.path.name)
        if ending == ".jsonl":
            return raw.json_lines()
        if ending == ".json":
            return raw.json_items()
        if ending == ".parquet":
            return raw.parquet_rows(self.columns, optional=self.optional)
        return raw.csv_rows(self.columns, optional=self.optional, delimiter=self.spec.delimiter or DELIMITERS[ending])

    @property
    def columns(self) -> list[str]:
        """The columns that every row must have."""
        spec, columns = self.spec, self.spec.columns
        named = columns.model_fields_set
        if spec.by_turns:
            own = [*columns.messages, *([columns.context] if "context" in named else [])]
        else:
            options = columns.options if spec.format in ("scq", "mcq") else []
            own = [columns.context, columns.question, *options, columns.answer]
        given = [name for part, name in self._optional().items() if part in named]
        optional = (columns.subset, columns.habit, columns.rejected, *(columns.choices or ()))
        tags = [name for name in optional if name is not None]
        return list(dict.fromkeys([*own, *given, *tags]))

    @property
    def optional(self) -> list[str]:
        """The columns that are read if present."""
        return [name for name in (*self._optional().values(), _META) if name not in self.columns]

    def _optional(self) -> dict[str, str]:
        columns, relation = self.spec.columns, self.spec.fixed_relation is None
        found = {"id": columns.id, "refined_context": columns.refined_context}
        return found | ({"relation": columns.relation} if relation else {})

    def __call__(self, row: Row) -> EventSample:
        """Return the sample of a row; BadRowError if a part is missing, empty or does not fit the format."""
        self.check_columns(row.fields)
        columns, spec = self.spec.columns, self.spec
        options, question = read_options(spec, self.raw.own_spec, row.fields), row.text(columns.question)
        return self.sample(
            row,
            options,
            context=row.text(columns.context),
            question=question,
            options=[option for option in options if option],
            answers=self._answers(columns.answer, row.fields.get(columns.answer), options),
            conversation=prompt_turns(spec.prompt, spec.system, question) if spec.prompt else None,
        )

    def sample(self, row: Row, places: Sequence[str] = (), *, turn: int = 0, **parts: Any) -> EventSample:
        """Return the sample of a row from its parts and those that rows of all formats have.

        Args:
            places: the options by place, which a habit or a rejected answer may name.
            turn: number of the conversation's answer, if each gives a sample.
        """
        fields, spec, columns = row.fields, self.spec, self.spec.columns
        choices = {"choices": found} if (found := read_choices(spec, fields)) else {}
        meta = {"source": self.raw.name, "line": row.number, "licence": self.raw.licence}
        answers = dict[str, list[str]]()
        for part, name in (("habit", columns.habit), ("rejected", columns.rejected)):
            value = last_turn(name, fields[name]) if name and spec.by_turns else fields[name] if name else None
            if name and value not in (None, "", []):
                answers[part] = self._answers(name, value, places)
        return EventSample(
            id=self._id(row) + (f"-{turn}" if turn else ""),
            dataset=self.raw.dataset,
            split=self.raw.split,
            relation=spec.fixed_relation or cast(Relation, read_choice(row, columns.relation, RELATIONS) or "none"),
            format=spec.format,
            refined_context=as_text(columns.refined_context, fields.get(columns.refined_context)) or None,
            subset=cast(Subset, read_choice(row, columns.subset, SUBSETS) or None) if columns.subset else None,
            meta=meta | choices | _earlier_meta(fields, tagged=columns.habit is not None),
            **answers,
            **parts,
        )

    def check_columns(self, row: Mapping[str, Any]) -> None:
        for name in self.columns:
            if name not in row:
                keys = cut(", ".join(map(repr, row)) or "none")
                likely = nearest_columns(
                    self.spec.format, row, self.spec.columns.model_dump(), by_turns=self.spec.by_turns
                )
                raise BadRowError(
                    f"{name}: missing; the row has {keys}.{did_you_mean(name, row)} "
                    f"Columns are named under `columns:` in {self.raw.own_spec}, here perhaps `{likely}`"
                )

    def _answers(self, name: str, value: object, options: Sequence[str]) -> list[str]:
        return read_answers(self.spec, self.raw.own_spec, name, value, options)

    def _id(self, row: Row) -> str:
        name, raw = self.spec.columns.id, self.raw
        # An id made for a row without one could be that of another row.
        if self.has_ids is None:
            self.has_ids = name in row.fields
        elif self.has_ids != (name in row.fields):
            raise BadRowError.at(name, row.get(name), "an id in every row of the file, or in none")
        if not self.has_ids:
            return f"{raw.dataset}-{raw.split}-{row.number}"
        text = as_text(name, row.fields[name])
        if not text:
            raise BadRowError.at(name, row.get(name), "an id")
        if (first := self._first_line.setdefault(text, row.number)) != row.number:
            raise BadRowError.at(name, row.get(name), f"a unique id (the row at {first} has this one, too)")
        return text


def _earlier_meta(fields: Mapping[str, Any], *, tagged: bool) -> dict[str, Any]:
    """The entries of a row's own meta that stay true: its swap, and if habits are read the tag of their model."""
    meta = fields.get(_META)
    if isinstance(meta, str):
        with suppress(ValueError, RecursionError):  # somebody else's column
            meta = json.loads(meta)
    if not isinstance(meta, Mapping):
        return {}
    kept = {TAG: meta[TAG]} if tagged and TAG in meta else {}
    swapped = meta.get(SWAPPED)
    if isinstance(swapped, Mapping) and all(isinstance(swapped.get(key), str) for key in ("from", "to")):
        kept[SWAPPED] = dict(swapped)
    return kept
