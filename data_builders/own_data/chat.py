"""Rows that are conversations (OpenAI's, TRL's, ShareGPT's shapes): own rows, one or one for each assistant turn."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from d2e_sft.data.conversation import CONTEXT, ChatRow, ContextRule, chat_rows, read_turns
from d2e_sft.util.errors import UserError
from data_builders.own_data.row import OwnRow, RowParser
from data_builders.own_data.spec import OwnSpec
from data_builders.raw.reader import RawInput
from data_builders.raw.row import BadRowError, Row

_TAG = "<context>"  # where the context is looked for if the description does not say


def conversation_rows(raw: RawInput, spec: OwnSpec, parser: RowParser, rows: Iterable[Row]) -> list[OwnRow]:
    """The own rows of a file of conversations.

    Raises:
        UserError: a row is bad and bad rows are not skipped, or no conversation has its context where it should be.
    """
    found = [row for several in raw.parse(rows, _Conversations(spec, parser)) for row in several]
    if found and spec.context_in != "none" and not any(row.context for row in found):
        place, number = _place(spec), len({row.number for row in found})
        raise UserError(
            f"{raw.path}: none of {number:,} conversations has a context{f' in {place}' if place else ''}",
            remedy=f"say in {raw.own_spec} where it is: `context_in: <NAME>` for text between <NAME> and </NAME>, "
            "`context_in: system` (or user, tool) for a turn, `columns: {context: COLUMN}` for a column; "
            "or `context_in: none` if there is none",
        )
    return found


class _Conversations:
    """Makes the own rows of one conversation."""

    def __init__(self, spec: OwnSpec, parser: RowParser) -> None:
        self._spec, self._parser = spec, parser
        block = spec.context_block.replace("\\n", "\n") or f"{CONTEXT}\n\n"
        self._rule = ContextRule("" if spec.context_in == "none" else _place(spec), block)

    def __call__(self, row: Row) -> list[OwnRow]:
        """Its rows.

        Raises:
            BadRowError: it is no conversation, or has no assistant turn.
        """
        self._parser.check_columns(row.fields)
        tags = self._parser.tags(row)
        columns, spec = self._spec.columns, self._spec
        try:
            turns = [turn for name in columns.messages for turn in read_turns(_parsed(row.fields[name]), name)]
            field = row.fields[columns.context] if "context" in columns.model_fields_set else ""
            if not isinstance(field, str | None):
                raise ValueError(f"{columns.context}: got {field!r}; expected text")
            found = chat_rows(turns, self._rule, spec.loss, field or "")
        except ValueError as error:
            raise BadRowError(str(error)) from None
        return [_own_row(row.number, chat, tags, several=spec.loss == "each") for chat in found]


def _own_row(number: int, chat: ChatRow, tags: dict[str, Any], *, several: bool) -> OwnRow:
    return OwnRow(
        number,
        **tags,
        context=chat.context,
        question=chat.question,
        options=(),
        answers=(chat.answer,),
        conversation=chat.conversation,
        turn=chat.number if several else 0,
    )


def _place(spec: OwnSpec) -> str:
    """Where conversations have their context; empty: in a column."""
    return "" if "context" in spec.columns.model_fields_set else spec.context_in or _TAG


def _parsed(value: object) -> object:
    """The list in a cell of CSV, where it stands as JSON."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
