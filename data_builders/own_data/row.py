"""Check one row of own data; messages name the user's column, the value and what was expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from d2e_sft.data.conversation import Conversation, prompt_turns
from d2e_sft.data.foreign import nearest_columns
from d2e_sft.data.sample import RELATIONS, SUBSETS, EventSample, Relation, Split, Subset
from d2e_sft.util.errors import did_you_mean
from data_builders.own_data.answers import as_text, read_answers, read_options
from data_builders.own_data.spec import OwnSpec
from data_builders.raw.row import BadRowError, Row, cut


@dataclass(frozen=True)
class OwnRow:
    """A checked row; id, refined context, subset and habit are empty if the data has none.

    Attributes:
        turn: number of the conversation's answer, if each gives a row; else 0.
    """

    number: int
    id: str
    relation: Relation
    context: str
    refined_context: str
    question: str
    options: tuple[str, ...]
    answers: tuple[str, ...]
    subset: Subset | None
    habit: tuple[str, ...]
    conversation: Conversation | None = None
    turn: int = 0


class RowParser:
    """Converts rows of a file to `OwnRow` as the description says.

    Args:
        spec: the description.
        spec_name: its file, for messages.
    """

    def __init__(self, spec: OwnSpec, spec_name: str) -> None:
        self.spec = spec
        self.spec_name = spec_name
        self._first_line: dict[str, int] = {}
        self._has_ids: bool | None = None  # whether rows have ids; unknown before the first row

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
        relation = [columns.relation] if spec.fixed_relation is None else []
        given = [name for part, name in self._optional().items() if part in named]
        tags = [name for name in (columns.subset, columns.habit) if name is not None]
        return list(dict.fromkeys([*own, *relation, *given, *tags]))

    @property
    def optional(self) -> list[str]:
        """The columns that are read if present."""
        return [name for name in self._optional().values() if name not in self.columns]

    def _optional(self) -> dict[str, str]:
        return {"id": self.spec.columns.id, "refined_context": self.spec.columns.refined_context}

    def __call__(self, row: Row) -> OwnRow:
        """Return the checked row; BadRowError if a part is missing, empty or does not fit the format."""
        self.check_columns(row.fields)
        columns, spec = self.spec.columns, self.spec
        options, question = read_options(spec, self.spec_name, row.fields), row.text(columns.question)
        return OwnRow(
            row.number,
            **self.tags(row, options),
            context=row.text(columns.context),
            question=question,
            options=tuple(option for option in options if option),
            answers=tuple(self._answers(columns.answer, row.fields.get(columns.answer), options)),
            conversation=prompt_turns(spec.prompt, spec.system, question) if spec.prompt else None,
        )

    def tags(self, row: Row, options: Sequence[str] = ()) -> dict[str, Any]:
        """Return the parts of an `OwnRow` that conversations also have."""
        fields, columns = row.fields, self.spec.columns
        habit = fields[columns.habit] if columns.habit else None
        return {
            "id": self._id(row.number, fields),
            "relation": self._relation(fields),
            "refined_context": as_text(columns.refined_context, fields.get(columns.refined_context)),
            "subset": self._subset(fields),
            "habit": () if habit in (None, "", []) else tuple(self._answers(str(columns.habit), habit, options)),
        }

    def check_columns(self, row: Mapping[str, Any]) -> None:
        for name in self.columns:
            if name not in row:
                keys = cut(", ".join(map(repr, row)) or "none")
                likely = nearest_columns(self.spec.format, row, by_turns=self.spec.by_turns)
                raise BadRowError(
                    f"{name}: missing; the row has {keys}.{did_you_mean(name, row)} "
                    f"Columns are named under `columns:` in {self.spec_name}, here perhaps `{likely}`"
                )

    def _answers(self, name: str, value: object, options: Sequence[str]) -> list[str]:
        return read_answers(self.spec, self.spec_name, name, value, options)

    def _relation(self, row: Mapping[str, Any]) -> Relation:
        if self.spec.fixed_relation is not None:
            return self.spec.fixed_relation
        name = self.spec.columns.relation
        text = as_text(name, row[name])
        if text not in RELATIONS:
            raise BadRowError.at(name, row[name], f"one of {', '.join(RELATIONS)}.{did_you_mean(text, RELATIONS)}")
        return cast(Relation, text)

    def _subset(self, row: Mapping[str, Any]) -> Subset | None:
        name = self.spec.columns.subset
        text = as_text(name, row[name]) if name else ""
        if name and text and text not in SUBSETS:
            raise BadRowError.at(name, text, f"one of {', '.join(SUBSETS)}, or nothing.{did_you_mean(text, SUBSETS)}")
        return cast(Subset, text) if text else None

    def _id(self, line: int, row: Mapping[str, Any]) -> str:
        name = self.spec.columns.id
        # An id made for a row without one could be that of another row.
        if self._has_ids is None:
            self._has_ids = name in row
        elif self._has_ids != (name in row):
            raise BadRowError.at(name, row.get(name), "an id in every row of the file, or in none")
        if name not in row:
            return ""
        text = as_text(name, row[name])
        if not text:
            raise BadRowError.at(name, row[name], "an id")
        if (first := self._first_line.setdefault(text, line)) != line:
            raise BadRowError.at(name, row[name], f"a unique id (the row at {first} has this one, too)")
        return text


def to_sample(spec: OwnSpec, name: str, split: Split, file: str, row: OwnRow) -> EventSample:
    """Return the row as a sample of a split."""
    return EventSample(
        id=(row.id or f"{name}-{split}-{row.number}") + (f"-{row.turn}" if row.turn else ""),
        dataset=name,
        split=split,
        relation=row.relation,
        format=spec.format,
        context=row.context,
        refined_context=row.refined_context or None,
        question=row.question,
        options=list(row.options),
        answers=list(row.answers),
        subset=row.subset,
        habit=list(row.habit),
        conversation=row.conversation,
        meta={"source": file, "line": row.number, "licence": spec.licence or "not stated"},
    )
