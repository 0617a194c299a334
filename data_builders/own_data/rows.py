"""From a row of own data to samples, as the description says; messages name the user's column and the value."""

import json
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any, cast

from d2e_sft.data.built import SWAPPED, TAG
from d2e_sft.data.cells import as_text
from d2e_sft.data.conversation import CONTEXT, ContextRule, Turn, chat_rows, prompt_turns, read_turns
from d2e_sft.data.foreign import nearest_columns
from d2e_sft.data.sample import NLI_LABELS, RELATIONS, SUBSETS, EventSample, Relation, Subset
from d2e_sft.util.answers import contains, is_same_answer, on_one_line
from d2e_sft.util.errors import UserError, did_you_mean
from data_builders.own_data.spec import DELIMITERS, OwnSpec, composed, ending_of
from data_builders.raw.reader import RawInput
from data_builders.raw.row import BadRowError, Row, clean, cut, shown

_META = "meta"  # column of rows that this project wrote
_JOINED = "texts of several lines on one, which `format: chat` keeps"
_TAG = "<context>"  # place of a conversation's context by default


class RowParser:
    """Converts the rows of a file to samples.

    Attributes:
        has_ids: Whether the rows have ids; None before the first row.
        rewritten: Number of cells whose text is not the file's, by column and kind (`cells.py`).
    """

    def __init__(self, spec: OwnSpec, raw: RawInput) -> None:
        self.spec, self.raw = spec, raw
        self.has_ids: bool | None = None
        self.rewritten = Counter[tuple[str, str]]()
        self._first_line: dict[str, int] = {}

    def read(self) -> list[EventSample]:
        """Return the samples; UserError for a bad row that is not skipped, or if no conversation has its context."""
        if not self.spec.by_turns:
            return self.raw.parse(self.rows(), self)
        samples = [sample for samples in self.raw.parse(self.rows(), self._conversation) for sample in samples]
        self._check_contexts(samples)
        return samples

    def _check_contexts(self, samples: Sequence[EventSample]) -> None:
        """Raise UserError if no conversation has its context where the description says."""
        if samples and self.spec.context_in != "none" and not any(sample.context for sample in samples):
            place, number = self._place(), len({sample.meta["line"] for sample in samples})
            raise UserError(
                f"{self.raw.path}: none of {number:,} conversations has a context{f' in {place}' if place else ''}",
                remedy=f"name its place in {self.raw.own_spec}: `context_in: <NAME>` for text between <NAME> and "
                "</NAME>, `context_in: system` (or user, tool) for a turn, `columns: {context: COLUMN}` for a column; "
                "or `context_in: none` if there is no context",
            )

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the file, by its ending.

        Rows of CSV, TSV and Parquet have the required columns, and the optional ones that the file has. Rows of JSON
        have all keys of the object, since each may have others. Texts are composed, apart from ids.
        """
        raw, ending = self.raw, ending_of(self.raw.path.name)
        if ending in (".jsonl", ".json"):
            rows = raw.json_lines() if ending == ".jsonl" else raw.json_items()
        elif ending == ".parquet":
            rows = raw.parquet_rows(self.columns, optional=self.optional)
        else:
            delimiter = self.spec.delimiter or DELIMITERS[ending]
            rows = raw.csv_rows(self.columns, optional=self.optional, delimiter=delimiter)
        for row in rows:
            kept = self.spec.columns.id
            yield replace(row, fields={k: v if k == kept else composed(v) for k, v in row.fields.items()})

    @property
    def columns(self) -> list[str]:
        """The columns that every row must have."""
        spec, columns = self.spec, self.spec.columns
        named = columns.model_fields_set
        if spec.by_turns:
            required = [*columns.messages, *([columns.context] if "context" in named else [])]
        else:
            options = columns.options if spec.format in ("scq", "mcq") else []
            required = [columns.context, columns.question, *options, columns.answer]
        required += [name for part, name in self._optional().items() if part in named]
        tags = (columns.subset, columns.habit, columns.rejected, *(columns.choices or ()))
        return list(dict.fromkeys([*required, *(name for name in tags if name is not None)]))

    @property
    def optional(self) -> list[str]:
        """The columns that are read if present."""
        return [name for name in (*self._optional().values(), _META) if name not in self.columns]

    def _optional(self) -> dict[str, str]:
        columns, relation = self.spec.columns, self.spec.fixed_relation is None
        optional = {"id": columns.id, "refined_context": columns.refined_context}
        return optional | ({"relation": columns.relation} if relation else {})

    def __call__(self, row: Row) -> EventSample:
        """Return the sample of a row; BadRowError if a part is missing, empty or does not fit the format."""
        self._check_columns(row.fields)
        columns, spec = self.spec.columns, self.spec
        options, question = self._options(row.fields), row.text(columns.question)
        return self._sample(
            row,
            options,
            context=row.text(columns.context),
            question=question,
            options=[option for option in options if option],
            answers=self._answers(columns.answer, row.fields.get(columns.answer), options),
            conversation=prompt_turns(spec.prompt, spec.system, question) if spec.prompt else None,
        )

    def _conversation(self, row: Row) -> list[EventSample]:
        """The samples of a conversation (OpenAI's, TRL's or ShareGPT's format): one, or one per assistant turn."""
        self._check_columns(row.fields)
        spec, columns = self.spec, self.spec.columns
        block = spec.context_block.replace("\\n", "\n") or f"{CONTEXT}\n\n"
        rule = ContextRule("" if spec.context_in == "none" else self._place(), block)
        try:
            turns = self._turns(row)
            field = row.fields[columns.context] if "context" in columns.model_fields_set else ""
            if not isinstance(field, str | None):
                raise ValueError(f"{columns.context}: got {field!r}; expected text")
            chats = chat_rows(turns, rule, spec.loss, field or "")
        except ValueError as error:
            raise BadRowError(str(error)) from None
        numbers = range(1, len(chats) + 1) if spec.loss == "each" else (0,)
        return [self._sample(row, turn=n, **vars(chat)) for n, chat in zip(numbers, chats, strict=True)]

    def _turns(self, row: Row) -> list[Turn]:
        """The turns of a conversation; ValueError or BadRowError for what is none."""
        names, turns = self.spec.columns.messages, list[Turn]()
        for number, name in enumerate(names):
            value = _parsed(row.fields[name])
            if isinstance(value, str) and len(names) > 1:  # texts of user and assistant
                turns.append(Turn(role="assistant" if number % 2 else "user", content=value))
            else:
                turns += read_turns(value, name)
        return turns

    def _place(self) -> str:
        """The place of a conversation's context; empty if it is in a column."""
        return "" if "context" in self.spec.columns.model_fields_set else self.spec.context_in or _TAG

    def _sample(self, row: Row, places: Sequence[str] = (), *, turn: int = 0, **parts: Any) -> EventSample:
        """The sample of a row from its parts and those that rows of all formats have.

        `places` are the options by place, which a habit or a rejected answer may name. `turn` is the number of the
        conversation's answer, if each gives a sample.
        """
        fields, spec, columns = row.fields, self.spec, self.spec.columns
        wrong = [text for name in columns.choices or () for text in self._several(name, fields[name])]
        choices = list(dict.fromkeys(filter(None, wrong)))
        answers = dict[str, list[str]]()
        for part, name in (("habit", columns.habit), ("rejected", columns.rejected)):
            value = last_turn(name, fields[name]) if name and spec.by_turns else fields[name] if name else None
            if name and value not in (None, "", []):
                answers[part] = self._answers(name, value, places)
        subset = read_choice(row, columns.subset, SUBSETS) if columns.subset else ""
        if "habit" in answers:
            self._check_habit(row, subset, answers["habit"], parts["answers"])
        refined = self._text(columns.refined_context, fields.get(columns.refined_context))
        if any(is_same_answer(answer, text) for answer in parts["answers"] for text in spec.refusal or ()):
            subset = subset or "unanswerable"
            refined = refined or parts["context"]  # nothing in it is relevant
            parts["answers"] = list(dict.fromkeys([*(spec.refusal or ()), *parts["answers"]]))
        return EventSample(
            id=self._id(row) + (f"-{turn}" if turn else ""),
            dataset=self.raw.dataset,
            split=self.raw.split,
            relation=spec.fixed_relation or cast(Relation, read_choice(row, columns.relation, RELATIONS) or "none"),
            format=spec.format,
            refined_context=refined or None,
            subset=cast(Subset, subset or None),
            meta={
                "source": self.raw.name,
                "line": row.number,
                "licence": self.raw.licence,
                **({"choices": choices} if choices else {}),
                **_earlier_meta(fields, tagged=columns.habit is not None),
            },
            **answers,
            **parts,
        )

    def _check_habit(self, row: Row, subset: str, habit: Sequence[str], answers: Sequence[str]) -> None:
        """BadRowError if an aligned row's habit is no accepted answer, or a conflict row's is one."""
        is_right = is_near = set(habit) == set(answers)
        if self.spec.format in ("qa", "chat"):  # free text that has an answer, or a part of one, may mean the same
            pairs = list(product(habit, answers))
            is_right = any(is_same_answer(*pair) for pair in pairs)
            is_near = is_right or any(contains(form, text) or contains(text, form) for form, text in pairs)
        if (subset == "conflict" and is_right) or (subset == "aligned" and not is_near):
            expected, columns = "one of" if subset == "aligned" else "an answer other than", self.spec.columns
            raise BadRowError.at(
                str(columns.habit),
                row.get(str(columns.habit)),
                f"{expected} {shown(list(answers))}, since {columns.subset} is {subset!r}. Are the columns of subset, "
                f"habit and answer in {self.raw.own_spec} the right ones?",
            )

    def _check_columns(self, row: Mapping[str, Any]) -> None:
        if name := next((name for name in self.columns if name not in row), None):
            spec, keys = self.spec, cut(", ".join(map(repr, row)) or "none")
            likely = nearest_columns(spec.format, row, spec.columns.model_dump(), by_turns=spec.by_turns)
            raise BadRowError(
                f"{name}: missing; the row has {keys}.{did_you_mean(name, row)} "
                f"Columns are named under `columns:` in {self.raw.own_spec}, here perhaps `{likely}`"
            )

    def _id(self, row: Row) -> str:
        name, raw = self.spec.columns.id, self.raw
        # An id made for a row without one could be that of another row.
        if self.has_ids is None:
            self.has_ids = name in row.fields
        elif self.has_ids != (name in row.fields):
            raise BadRowError.at(name, row.get(name), "an id in every row of the file, or in none")
        if not self.has_ids:
            return f"{raw.dataset}-{raw.split}-{row.number}"
        text = self._text(name, row.fields[name])
        if not text:
            raise BadRowError.at(name, row.get(name), "an id")
        if (first := self._first_line.setdefault(text, row.number)) != row.number:
            expected = f"a unique id (the row at {first} has this one, too)"
            chosen = name != type(self.spec.columns).model_fields["id"].default
            raise BadRowError.at(name, row.get(name), expected + ", or leave id out of columns" * chosen)
        return text

    def _options(self, row: Mapping[str, Any]) -> list[str]:
        """The options of a row; with one column per option, an option may be empty."""
        names = self.spec.columns.options
        if self.spec.format not in ("scq", "mcq"):
            return []
        if len(names) > 1:
            options, hint = [self._text(name, row[name]) for name in names], ""
        else:
            options, separator = self._several(names[0], row[names[0]]), self.spec.separator or "|"
            hint = f", as a list or with {separator!r} between them (`separator:` in {self.raw.own_spec} sets another)"
        filled = [option for option in options if option]
        if len(filled) < 2:
            raise BadRowError.at(", ".join(names), filled, f"two options or more{hint}")
        if len(set(filled)) < len(filled):
            twice = next(option for option in filled if filled.count(option) > 1)
            places = ", ".join(names)
            raise BadRowError(f"{places}: {twice!r} is there twice; expected different options, got {shown(filled)}")
        return options

    def _answers(self, name: str, value: object, options: Sequence[str]) -> list[str]:
        """A column's answers: a label, options, or accepted answers; BadRowError for an empty or unknown one."""
        spec = self.spec
        if spec.format == "nli":
            text = self._text(name, value)
            if (label := spec.labels.get(text, text)) in NLI_LABELS:
                return [label]
            known = ", ".join(dict.fromkeys([*NLI_LABELS, *spec.labels]))
            example = f"`labels: {{{text or 'entailment'}: positive}}`"
            hint = f"{self.raw.own_spec} can map other labels, as {example}"
            raise BadRowError.at(name, value, f"one of {known}. {hint}")
        # A `|` in a free answer is more likely part of it than a separator, unless the description names one.
        is_free = spec.format in ("qa", "chat") and spec.separator is None and not isinstance(value, list)
        texts = [self._text(name, value)] if spec.format == "scq" or is_free else self._several(name, value)
        if not texts or not all(texts):
            raise BadRowError.at(name, value, "text that is not empty")
        if spec.format == "qa":  # as `EventSample` has them
            self.rewritten.update((name, _JOINED) for text in texts if on_one_line(text) != text)
        return list(dict.fromkeys([self._option(name, text, options) for text in texts] if options else texts))

    def _option(self, name: str, text: str, options: Sequence[str]) -> str:
        """The option that the text names, by itself, its letter or its number."""
        named_by = self.spec.answer_as
        if named_by == "text":
            if text in options:
                return text
            hint = did_you_mean(text, options)
            if text.isdecimal() or (len(text) == 1 and text in string.ascii_letters):
                likely = "from-0 (or from-1)" if text.isdecimal() else "letter"
                hint += f" If it names the option's place, add `answer_as: {likely}` to {self.raw.own_spec}"
            filled = [option for option in options if option]
            raise BadRowError.at(name, text, f"one of the options {shown(filled)}.{hint}")
        if named_by == "letter":
            names, text = list(string.ascii_uppercase[: len(options)]), text.strip("().").upper()
        else:
            first = int(named_by == "from-1")
            names, text = [str(first + place) for place in range(len(options))], text.lstrip("0") or "0"
        if text not in names or not options[names.index(text)]:
            raise BadRowError.at(name, text, f"one of {', '.join(names)} for {shown(list(options))}")
        return options[names.index(text)]

    def _several(self, name: str, value: object) -> list[str]:
        if isinstance(value, list):
            return [self._text(name, item, number) for number, item in enumerate(value)]
        return [clean(part) for part in self._text(name, value).split(self.spec.separator or "|")]

    def _text(self, name: str, value: object, number: int | None = None) -> str:
        """The text of a cell, or of an item of its list, counted if it is not the file's."""
        text, change = _as_text(name if number is None else f"{name}.{number}", value)
        if change:
            self.rewritten[name, change] += 1
        return text


def read_choice(row: Row, name: str, known: Sequence[str]) -> str:
    """Return the known word in a column; "" without one; BadRowError for another word."""
    text, _ = _as_text(name, row.fields.get(name))
    if text in known or not text:
        return text
    raise BadRowError.at(name, row.get(name), f"one of {', '.join(known)}, or nothing.{did_you_mean(text, known)}")


def last_turn(name: str, value: object) -> object:
    """Return the text of the last of several turns; other values as they are. BadRowError if it is no assistant's."""
    turns = _parsed(value)
    if not (isinstance(turns, list) and turns and isinstance(turns[0], dict)):
        return value
    try:
        last = read_turns(turns, name)[-1]
    except ValueError as error:
        raise BadRowError(str(error)) from None
    if last.role != "assistant":
        raise BadRowError.at(name, last.role, "turns that end with the assistant's")
    return last.content


def _as_text(name: str, value: object) -> tuple[str, str]:
    """A cell as text and how it was changed, as `as_text`; BadRowError for a value without a text."""
    try:
        text, change = as_text(value)
    except ValueError as error:
        raise BadRowError.at(name, value, str(error)) from None
    return clean(text), change


def _parsed(value: object) -> object:
    """The list that a CSV cell has as JSON, or with one turn (LLaMA-Factory's `chosen`); else the value."""
    if isinstance(value, dict):
        return [value]
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError):
            return json.loads(value)
    return value


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
