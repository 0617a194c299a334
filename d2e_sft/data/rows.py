"""Rows as Python has them → samples: dicts with `context`, `question` and `answer`, or with `messages`, or a file.

What a row does not say is filled in: it is a free question (`qa`), or a choice (`scq`, `mcq`) where it has options.
Of a conversation the last assistant turn is the answer, and the context a column of its own or a `<context>` span;
with `loss: all` in the row the loss is on its earlier assistant turns, too, as by TRL's `assistant_only_loss`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from d2e_sft.data.conversation import ContextRule, Loss, chat_rows, read_turns
from d2e_sft.data.hub_rows import fetch_rows, is_hub
from d2e_sft.data.sample import EventSample, check_row, read_samples, write_samples
from d2e_sft.util.errors import UserError, did_you_mean

_EXPECTED = "expected `question`, `answer` (or `answers`) and, where there is one, `context`; or `messages`"
_CHATS = ("messages", "conversations")


def samples_of(rows: Any, name: str) -> list[EventSample]:
    """Check and complete rows.

    Args:
        rows: a `datasets.Dataset`, a list of dicts or of EventSamples, or a `.parquet` or `.jsonl` file of the latter.
        name: what they are called in messages, `train_dataset`, `eval_dataset` or `probe_dataset`; the latter two
            are of the split dev.

    Raises:
        UserError: something else, no rows, or a row that is no sample; with its number and the columns that it has.
    """
    if isinstance(rows, str | Path):
        return read_samples(rows)
    if isinstance(rows, Mapping):
        raise UserError(f"{name}: has the splits {', '.join(map(str, rows))}; expected one of them, {name}[...]")
    if not isinstance(rows, Iterable) or not hasattr(rows, "__len__"):
        raise UserError(
            f"{name}: got a {type(rows).__name__}, whose length is not known; expected a datasets.Dataset, a list of "
            "rows, or a file",
            remedy="a stream is read whole by list(rows)",
        )
    samples = [row if isinstance(row, EventSample) else _sample(row, number, name) for number, row in enumerate(rows)]
    if not samples:
        raise UserError(f"{name}: holds no rows; {_EXPECTED}")
    unused = sorted({key for row in rows if isinstance(row, Mapping) for key in row} - _TAKEN)
    if unused:
        print(f"{name}: columns that are not used: {', '.join(unused)}", file=sys.stderr)
    return samples


_TAKEN = {*EventSample.model_fields, *_CHATS, "answer", "prompt", "completion", "loss"}


def _sample(row: Any, number: int, name: str) -> EventSample:
    if not isinstance(row, Mapping):
        raise UserError(f"{name}, row {number}: got {row!r:.60}, a {type(row).__name__}; expected a dict")
    given = {key: value for key, value in row.items() if key in EventSample.model_fields and value is not None}
    split = "dev" if name.startswith(("eval", "probe")) else "train"
    defaults = {"id": str(number), "dataset": "rows", "split": split, "relation": "none", "context": ""}
    chat = next((key for key in _CHATS if row.get(key)), None)
    prompt, completion = row.get("prompt"), row.get("completion")  # TRL's other shape, as turns or as text
    turns = row[chat] if chat else [*prompt, *completion] if isinstance(prompt, list) and completion else None
    if turns is not None:
        where = f"{name}, row {number}"
        loss = _loss(row.get("loss") or "last", where)
        given |= _of_turns(turns, str(given.get("context", "")), loss, chat or "prompt", where)
        return _checked({**defaults, **given}, f"{name}, row {number}")
    row = {"question": prompt, "answer": completion, **row} if isinstance(prompt, str) else row
    given |= {"question": row["question"]} if row.get("question") is not None else {}
    answers = row.get("answers", row.get("answer"))
    if isinstance(answers, Mapping):  # SQuAD's, {"text": [...], "answer_start": [...]}
        answers = answers.get("text")
    for key, value in (("question", row.get("question")), ("answer", answers)):
        if value is None:
            raise UserError(
                f"{name}, row {number}: no `{key}`; it has {', '.join(map(str, row))}; {_EXPECTED}."
                f"{did_you_mean(key, map(str, row))}",
                remedy=f"rename the column that holds it, for example {name}.rename_column(OLD, {key!r})",
            )
    given["answers"] = [answers] if isinstance(answers, str) else answers
    options = given.get("options") or []
    free = "qa" if not options else "scq" if len(given["answers"]) == 1 else "mcq"
    return _checked({**defaults, "format": free, **given}, f"{name}, row {number}")


def _loss(value: Any, where: str) -> Loss:
    loss: Loss
    for loss in get_args(Loss):
        if value == loss:
            return loss
    raise UserError(f"{where}: loss: {value!r:.60}; expected last or all, the assistant turns that the loss is on")


def _of_turns(turns: Any, context: str, loss: Loss, column: str, where: str) -> dict[str, Any]:
    """What a conversation says of its sample."""
    try:
        (chat,) = chat_rows(read_turns(turns, column), ContextRule(), loss, context)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    return {
        "format": "chat",
        "context": chat.context,
        "question": chat.question,
        "answers": [chat.answer],
        "conversation": chat.conversation.model_dump(),
    }


def _checked(row: dict[str, Any], where: str) -> EventSample:
    checked = check_row(row)
    if isinstance(checked, str):
        raise UserError(f"{where}: {checked}")
    return checked


def file_of(name: str, split: Literal["train", "dev"] = "train") -> Path:
    """The file of samples that a recipe names: a path as it is, a dataset of the Hub as a file in the cache.

    Rows of the Hub are completed as by `samples_of`; what `d2e data push` sent is read as it was built.

    Raises:
        UserError: as `fetch_rows` and `samples_of`.
    """
    if not is_hub(name):
        return Path(name)
    fetched = fetch_rows(name, split)
    target = fetched.path.with_suffix(".samples.jsonl")
    if not (fetched.commit and target.is_file()):
        rows = [json.loads(line) for line in fetched.path.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            row.update(
                {key: json.loads(row[key]) for key in ("meta", "conversation") if isinstance(row.get(key), str)}
            )
        write_samples(samples_of(rows, name), target)
    return target
