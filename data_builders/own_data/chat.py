"""Read conversations (OpenAI's, TRL's and ShareGPT's formats) as own rows: one each, or one per assistant turn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from d2e_sft.data.chat_rows import ContextRule, chat_rows, read_turns
from d2e_sft.data.conversation import CONTEXT, Turn
from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from data_builders.own_data.answers import parsed
from data_builders.own_data.row import RowParser
from data_builders.own_data.spec import OwnSpec
from data_builders.raw.row import BadRowError, Row

_TAG = "<context>"  # place of the context by default


def read_conversations(parser: RowParser) -> list[EventSample]:
    """Return the samples of a file of conversations.

    UserError for a bad row that is not skipped, or if no conversation has a context in the named place.
    """
    spec, raw = parser.spec, parser.raw
    found = [sample for samples in raw.parse(parser.rows(), partial(_samples, parser)) for sample in samples]
    if found and spec.context_in != "none" and not any(sample.context for sample in found):
        place, number = _place(spec), len({sample.meta["line"] for sample in found})
        raise UserError(
            f"{raw.path}: none of {number:,} conversations has a context{f' in {place}' if place else ''}",
            remedy=f"name its place in {raw.own_spec}: `context_in: <NAME>` for text between <NAME> and </NAME>, "
            "`context_in: system` (or user, tool) for a turn, `columns: {context: COLUMN}` for a column; "
            "or `context_in: none` if there is no context",
        )
    return found


def _samples(parser: RowParser, row: Row) -> list[EventSample]:
    """Return the samples of one conversation; BadRowError if it is malformed or has no assistant turn."""
    parser.check_columns(row.fields)
    spec, columns = parser.spec, parser.spec.columns
    block = spec.context_block.replace("\\n", "\n") or f"{CONTEXT}\n\n"
    rule = ContextRule("" if spec.context_in == "none" else _place(spec), block)
    try:
        turns = [turn for number in range(len(columns.messages)) for turn in _turns(row, columns.messages, number)]
        field = row.fields[columns.context] if "context" in columns.model_fields_set else ""
        if not isinstance(field, str | None):
            raise ValueError(f"{columns.context}: got {field!r}; expected text")
        found = chat_rows(turns, rule, spec.loss, field or "")
    except ValueError as error:
        raise BadRowError(str(error)) from None
    return [
        parser.sample(
            row,
            turn=chat.number if spec.loss == "each" else 0,
            context=chat.context,
            question=chat.question,
            options=[],
            answers=[chat.answer],
            conversation=chat.conversation,
        )
        for chat in found
    ]


def _turns(row: Row, columns: Sequence[str], number: int) -> list[Turn]:
    """Return the turns in a column; plain texts in several columns are turns of user and assistant."""
    value = parsed(row.fields[columns[number]])
    if isinstance(value, str) and len(columns) > 1:
        return [Turn(role="assistant" if number % 2 else "user", content=value)]
    return read_turns(value, columns[number])


def _place(spec: OwnSpec) -> str:
    """Return the place of a conversation's context; empty if it is in a column."""
    return "" if "context" in spec.columns.model_fields_set else spec.context_in or _TAG
