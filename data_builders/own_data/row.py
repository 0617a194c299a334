"""One row of own data, checked part by part: the messages name the user's column, the value and what was expected."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from d2e_sft.data.conversation import Conversation, prompt_turns
from d2e_sft.data.foreign import nearest_columns
from d2e_sft.data.sample import NLI_LABELS, RELATIONS, SUBSETS, EventSample, Relation, Split, Subset
from d2e_sft.util.errors import did_you_mean
from data_builders.own_data.spec import OwnSpec
from data_builders.raw.row import BadRowError, Row, clean, cut, shown

_SEPARATOR = "|"


@dataclass(frozen=True)
class OwnRow:
    """A row whose parts are sound; the id, refined context, subset and habit are empty where the data gives none."""

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
    turn: int = 0  # which of a conversation's answers it is, where it gives several rows


class RowParser:
    """Makes an `OwnRow` of a row of the file, as the description says.

    Args:
        spec: the description.
        spec_name: its file, for messages.
    """

    def __init__(self, spec: OwnSpec, spec_name: str) -> None:
        self._spec = spec
        self._spec_name = spec_name
        self._first_line: dict[str, int] = {}
        self._has_ids: bool | None = None  # whether the rows bring ids; not known before the first

    @property
    def columns(self) -> list[str]:
        """The columns that every row must have."""
        spec = self._spec
        options = spec.columns.options if spec.format in ("scq", "mcq") else []
        given = [name for part, name in self._optional().items() if part in spec.columns.model_fields_set]
        relation = [spec.columns.relation] if spec.fixed_relation is None else []
        tags = [name for name in (spec.columns.subset, spec.columns.habit) if name is not None]
        own = [spec.columns.context, spec.columns.question, *options, spec.columns.answer]
        if spec.by_turns:
            own = [
                *spec.columns.messages,
                *([spec.columns.context] if "context" in spec.columns.model_fields_set else []),
            ]
        return list(dict.fromkeys([*own, *relation, *given, *tags]))

    @property
    def optional(self) -> list[str]:
        """The columns that are read where they are there."""
        return [name for name in self._optional().values() if name not in self.columns]

    def _optional(self) -> dict[str, str]:
        return {"id": self._spec.columns.id, "refined_context": self._spec.columns.refined_context}

    def __call__(self, row: Row) -> OwnRow:
        """The checked row.

        Raises:
            BadRowError: a part is missing, empty, or does not fit the format.
        """
        self.check_columns(row.fields)
        columns, spec = self._spec.columns, self._spec
        options, question = self._options(row.fields), row.text(columns.question)
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
        """The parts of an `OwnRow` that do not depend on how the row asks."""
        name = self._spec.columns.refined_context
        return {
            "id": self._id(row.number, row.fields),
            "relation": self._relation(row.fields),
            "refined_context": _as_text(name, row.fields.get(name)),
            "subset": self._subset(row.fields),
            "habit": tuple(self._habit(row.fields, options)),
        }

    def check_columns(self, row: Mapping[str, Any]) -> None:
        for name in self.columns:
            if name not in row:
                keys = cut(", ".join(map(repr, row)) or "none")
                raise BadRowError(
                    f"{name}: missing; the row has {keys}.{did_you_mean(name, row)} "
                    f"Which is read is said under `columns:` in {self._spec_name}, here perhaps "
                    f"`{nearest_columns(self._spec.format, row, by_turns=self._spec.by_turns)}`"
                )

    def _relation(self, row: Mapping[str, Any]) -> Relation:
        if self._spec.fixed_relation is not None:
            return self._spec.fixed_relation
        name = self._spec.columns.relation
        text = _as_text(name, row[name])
        if text not in RELATIONS:
            raise BadRowError.at(name, row[name], f"one of {', '.join(RELATIONS)}.{did_you_mean(text, RELATIONS)}")
        return cast(Relation, text)

    def _subset(self, row: Mapping[str, Any]) -> Subset | None:
        name = self._spec.columns.subset
        text = "" if name is None else _as_text(name, row[name])
        if name is not None and text and text not in SUBSETS:
            raise BadRowError.at(name, text, f"one of {', '.join(SUBSETS)}, or nothing.{did_you_mean(text, SUBSETS)}")
        return cast(Subset, text) if text else None

    def _habit(self, row: Mapping[str, Any], options: Sequence[str]) -> list[str]:
        name = self._spec.columns.habit
        if name is None or row[name] is None or row[name] in ("", []):
            return []
        return self._answers(name, row[name], options)

    def _id(self, line: int, row: Mapping[str, Any]) -> str:
        name = self._spec.columns.id
        # The ids that rows without one are given could be those of other rows.
        if self._has_ids is None:
            self._has_ids = name in row
        elif self._has_ids != (name in row):
            raise BadRowError.at(name, row.get(name), "an id in every row of the file, or in none")
        if name not in row:
            return ""
        text = _as_text(name, row[name])
        if not text:
            raise BadRowError.at(name, row[name], "an id")
        if text in self._first_line:
            expected = f"an id of its own (the row at {self._first_line[text]} has this one too)"
            raise BadRowError.at(name, row[name], expected)
        self._first_line[text] = line
        return text

    def _options(self, row: Mapping[str, Any]) -> list[str]:
        """The options at their places; a place is empty where one of several columns is."""
        names = self._spec.columns.options
        if self._spec.format not in ("scq", "mcq"):
            return []
        if len(names) > 1:
            place, options = ", ".join(names), [_as_text(name, row[name]) for name in names]
        else:
            place, options = names[0], self._several(names[0], row[names[0]])
        given = [option for option in options if option]
        if len(given) < 2:
            raise BadRowError.at(place, given, f"two options or more{self._how_to_separate(names)}")
        twice = next((option for option in given if given.count(option) > 1), None)
        if twice is not None:
            raise BadRowError(f"{place}: {twice!r} is there twice; expected different options, got {shown(given)}")
        return options

    def _how_to_separate(self, names: Sequence[str]) -> str:
        if len(names) > 1:
            return ""
        separator = self._spec.separator or _SEPARATOR
        return f", as a list or with {separator!r} between them (`separator:` in {self._spec_name} sets another)"

    def _several(self, name: str, value: object) -> list[str]:
        if isinstance(value, list):
            texts = [_as_text(f"{name}.{number}", item) for number, item in enumerate(value)]
        else:
            texts = [clean(part) for part in _as_text(name, value).split(self._spec.separator or _SEPARATOR)]
        return texts

    def _answers(self, name: str, value: object, options: Sequence[str]) -> list[str]:
        """What the column names: a label, options, or accepted answers."""
        spec = self._spec
        if spec.format == "nli":
            return [self._label(name, value)]
        # A `|` in a free answer is more likely to be part of it than to divide it, unless the user says so.
        one = spec.format == "scq" or (
            spec.format in ("qa", "chat") and spec.separator is None and not isinstance(value, list)
        )
        texts = [_as_text(name, value)] if one else self._several(name, value)
        if not texts or not all(texts):
            raise BadRowError.at(name, value, "text that is not empty")
        chosen = [self._option(name, text, options) for text in texts] if options else texts
        return list(dict.fromkeys(chosen))

    def _label(self, name: str, value: object) -> str:
        text, labels = _as_text(name, value), self._spec.labels
        label = labels.get(text, text if text in NLI_LABELS else None)
        if label is None:
            known = dict.fromkeys([*NLI_LABELS, *labels])
            raise BadRowError.at(
                name,
                value,
                f"one of {', '.join(known)}. Another label is mapped in {self._spec_name}, "
                f"as `labels: {{{text or 'entailment'}: positive}}`",
            )
        return label

    def _option(self, name: str, text: str, options: Sequence[str]) -> str:
        if self._spec.answer_as == "text":
            if text in options:
                return text
            hint = did_you_mean(text, options)
            if text.isdecimal() or (len(text) == 1 and text in string.ascii_letters):
                hint += f" If it names the option's place, add `answer_as: {_likely(text)}` to {self._spec_name}"
            raise BadRowError.at(name, text, f"one of the options {shown([o for o in options if o])}.{hint}")
        place = _place(text, self._spec.answer_as)
        if place is None or not 0 <= place < len(options) or not options[place]:
            raise BadRowError.at(name, text, f"{_range(self._spec.answer_as, len(options))} of {shown(list(options))}")
        return options[place]


def to_sample(spec: OwnSpec, name: str, split: Split, file: str, row: OwnRow) -> EventSample:
    """The row as a sample of a split.

    Raises:
        pydantic.ValidationError: never for a row that `RowParser` passed.
    """
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


def _as_text(name: str, value: object) -> str:
    """A text or number as text; true and false as JSON writes them; "" for null."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        raise BadRowError.at(name, value, "text or a number")
    return clean(value)


def _place(text: str, answer_as: str) -> int | None:
    if answer_as == "letter":
        letter = text.strip("().").upper()
        return string.ascii_uppercase.index(letter) if len(letter) == 1 and letter in string.ascii_uppercase else None
    return int(text) - (answer_as == "from-1") if text.isascii() and text.isdecimal() else None


def _range(answer_as: str, count: int) -> str:
    if answer_as == "letter":
        return f"a letter from A to {string.ascii_uppercase[min(count, 26) - 1]}"
    first = int(answer_as == "from-1")
    return f"a number from {first} to {count - 1 + first}"


def _likely(text: str) -> str:
    return "letter" if not text.isdecimal() else "from-0 (or from-1)"
