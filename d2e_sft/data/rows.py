"""Rows in Python → samples: dicts with `context`, `question` and `answer`, or with `messages`, or a file.

A row without a format is a free question (`qa`), or a choice (`scq`, `mcq`) if it has options. The context of a
conversation is a column or a `<context>` span; `loss: all` is like TRL's `assistant_only_loss`. TRL's preferences
(`prompt`, `chosen`, `rejected`, as text or turns; without `prompt` whole conversations) are read, too. A `prompt` of
text that quotes the column `context` is a user turn, in its own wording; otherwise it is a question.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from d2e_sft.data.cells import is_nan
from d2e_sft.data.conversation import ContextRule, Loss, chat_rows, read_turns
from d2e_sft.data.hub_rows import fetch_rows, is_hub
from d2e_sft.data.sample import EventSample, check_row, read_samples, write_samples
from d2e_sft.util.errors import UserError, did_you_mean, shortened

_EXPECTED = "expected `question`, `answer` (or `answers`) and optionally `context`; or `messages`"
CHATS = ("messages", "conversations")  # columns of conversations
_ASKED = ("question", "answer", "answers", "prompt", "chosen", *CHATS)  # names of columns, not of sets
_NAMES_OF = {"question": ("question",), "answer": ("answer", "answers", "completion", "chosen")}
NOT_KNOWN = "(not known)"  # placeholder for an answer
_USED = {*EventSample.model_fields, *CHATS, "answer", "prompt", "completion", "chosen", "loss"}


def samples_of(rows: Any, name: str, *, loss: Loss = "last", answered: bool = True) -> list[EventSample]:
    """Check rows and complete them to samples; raises UserError with number and columns of a row that is no sample.

    They are a `datasets.Dataset`, a list of dicts or of EventSamples, or a `.parquet` or `.jsonl` file of the latter.

    Args:
        name: For messages; rows of `eval_dataset` and `probe_dataset` are of the split dev, of `test_dataset` test.
        loss: Of conversations without a column `loss`.
        answered: False completes rows without an answer by a placeholder.
    """
    if isinstance(rows, str | Path):
        return read_samples(rows)
    if is_row(rows):
        single = not all(isinstance(value, list) for value in rows.values()) or any(rows.get(key) for key in CHATS)
        form, remedy = (
            ("one row", "put it in a list") if single else ("columns", "use datasets.Dataset.from_dict(rows)")
        )
        raise UserError(f"{name}: got {form} in a dict, {', '.join(map(str, rows))}; expected a list of rows", remedy)
    if isinstance(rows, Mapping):
        raise UserError(f"{name}: has the splits {', '.join(map(str, rows))}; expected one of them, {name}[...]")
    if hasattr(rows, "iterrows"):
        raise UserError(f"{name}: got a DataFrame; expected rows", "use datasets.Dataset.from_pandas(rows)")
    if not isinstance(rows, Iterable) or not hasattr(rows, "__len__"):
        raise UserError(
            f"{name}: got a {type(rows).__name__} without a length; expected a datasets.Dataset, a list of rows, or a "
            "file",
            remedy="read a stream with list(rows)",
        )
    rows = [plain(row) for row in rows]
    if not answered:
        rows = [_with_answer(row) if isinstance(row, Mapping) else row for row in rows]
    samples = [
        row if isinstance(row, EventSample) else _sample(row, number, name, loss) for number, row in enumerate(rows)
    ]
    if not samples:
        raise UserError(f"{name}: no rows; {_EXPECTED}")
    unused = sorted({key for row in rows if isinstance(row, Mapping) for key in row} - _USED)
    if unused:
        print(f"{name}: unused columns: {', '.join(unused)}", file=sys.stderr)
    # Only a column's context that no turn quotes has the rule's block.
    places = [
        sample.conversation and sample.conversation.context_block
        for row, sample in zip(rows, samples, strict=True)
        if isinstance(row, Mapping) and not row.get("conversation") and sample.format == "chat" and row.get("context")
    ]
    if apart := places.count(ContextRule().block):
        print(
            f"{name}: in {apart} of {len(places)} rows no turn quotes the column context; it is before a user turn",
            file=sys.stderr,
        )
    return samples


def refuse_repeated_ids(samples: Iterable[EventSample], name: str) -> None:
    """Raise UserError if two samples have the same id: a file of them could not be read again."""
    first_row: dict[tuple[str, str, str], int] = {}
    for number, sample in enumerate(samples):
        if (first := first_row.setdefault((sample.dataset, sample.split, sample.id), number)) != number:
            raise UserError(
                f"{name}, row {number}: id: got {sample.id!r}, which row {first} has too; expected a unique id",
                remedy="make them unique, or leave the column `id` out, and the rows are numbered",
            )


def is_row(rows: Any) -> bool:
    """Whether the dict is a row, or has a list for each column, instead of several sets of rows."""
    if not isinstance(rows, Mapping) or not any(name in rows for name in _ASKED):
        return False
    return not any(hasattr(value, "column_names") for value in rows.values())


def plain(value: Any) -> Any:
    """The value with lists and numbers instead of tensors and arrays (`Dataset.with_format`), and None for NaN."""
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return None if is_nan(value) else value


def _sample(row: Any, number: int, name: str, loss: Loss) -> EventSample:
    where = f"{name}, row {number}"
    if not isinstance(row, Mapping):
        raise UserError(f"{where}: got {row!r:.60}, a {type(row).__name__}; expected a dict")
    if row.get("label") is False and row.get("completion"):
        raise UserError(
            f"{where}: label=False marks a wrong completion (rows of TRL's KTO), and it would be trained on as right",
            remedy="leave such rows out, or give pairs: columns prompt, chosen and rejected, with objective='prefer'",
        )
    fields = {key: value for key, value in row.items() if key in EventSample.model_fields and value is not None}
    split = "dev" if name.startswith(("eval", "probe")) else "test" if name.startswith("test") else "train"
    defaults = {"id": str(number), "dataset": "rows", "split": split, "relation": "none", "context": ""}
    chat = next((key for key in CHATS if row.get(key)), None)
    # TRL's other shapes, as turns or as text; a preference may lack the prompt, which its answers then repeat.
    prompt, completion = row.get("prompt"), row.get("completion", row.get("chosen"))
    if prompt is None and isinstance(row.get("chosen"), list):
        prompt = []
    turns = row[chat] if chat else [*prompt, *completion] if isinstance(prompt, list) and completion else None
    if "rejected" in fields:
        fields["rejected"] = _rejected(fields["rejected"], completion, where)
    context = fields.get("context", "")
    if not isinstance(context, str) and (turns is not None or isinstance(prompt, str)):
        raise UserError(f"{where}: `context`: got {shortened(context, 60)}; expected text")
    if turns is not None:
        fields |= _of_turns(turns, context, row.get("loss") or loss, chat or "prompt", where)
    else:
        if isinstance(completion, str):  # TRL joins it to the prompt, so it may begin with a blank
            completion = completion.strip()
        as_question = {"question": prompt, "answer": completion, **row} if isinstance(prompt, str) else row
        fields |= _of_question(as_question, row, name, where)
        options = fields.get("options") or []
        defaults["format"] = "qa" if not options else "scq" if len(fields["answers"]) == 1 else "mcq"
        from_prompt = isinstance(prompt, str) and "question" not in row
        if from_prompt and context.strip() and context.strip() in fields["question"]:
            # A wording would add the context to the text, and remove only its own copy of it from the imagined view.
            if options:
                raise UserError(
                    f"{where}: `options` with a `prompt` that quotes its context, which is asked as it is",
                    remedy="rename prompt to question and leave the context out of it; or leave options out",
                )
            answers = fields["answers"]
            texts = (("user", fields["question"]), ("assistant", answers[0] if answers else ""))
            turns = [{"role": role, "content": text} for role, text in texts]
            fields |= _of_turns(turns, context, "last", "prompt", where) | {"answers": answers}
    checked = check_row({**defaults, **fields})
    if isinstance(checked, str):
        raise UserError(f"{where}: {checked}")
    return checked


def _with_answer(row: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in CHATS:
        if row.get(name):
            last = row[name][-1] if isinstance(row[name], list) else None
            unanswered = isinstance(last, Mapping) and (last.get("role") or last.get("from")) in ("user", "human")
            return {**row, name: [*row[name], {"role": "assistant", "content": NOT_KNOWN}]} if unanswered else row
    if any(_given(row.get(name)) for name in ("answer", "answers", "completion", "chosen")):
        return row
    if isinstance(row.get("prompt"), list):
        return {**row, "completion": [{"role": "assistant", "content": NOT_KNOWN}]}
    return {**row, "answer": next(iter(row.get("options") or [NOT_KNOWN])), "answers": None}


def _given(answer: Any) -> bool:
    """Return whether an answer, a list of them or SQuAD's form of it has any."""
    return bool(answer.get("text") if isinstance(answer, Mapping) else answer) or answer == 0


def _rejected(value: Any, chosen: Any, where: str) -> list[str]:
    """Return the rejected answer: text, accepted forms, or the last of turns that otherwise are those of `chosen`."""
    if isinstance(value, str):
        return [value.strip()]
    if not (isinstance(value, list) and value and isinstance(value[0], Mapping)):
        return value  # checked with the sample
    try:
        *before, last = read_turns(value, "rejected")
        same_turns = not isinstance(chosen, list) or before == read_turns(chosen, "chosen")[:-1]
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    if not same_turns or last.role != "assistant":
        raise UserError(f"{where}: rejected: expected the turns of `chosen`, except for the assistant's last one")
    return [last.content.strip()]


def _of_question(row: Mapping[str, Any], user_row: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """Return a row's question and answers; `user_row` is the row with the user's own columns, for messages."""
    answers = row.get("answer") if row.get("answers") is None else row["answers"]
    if isinstance(answers, Mapping):  # SQuAD's, {"text": [...], "answer_start": [...]}
        answers = answers.get("text")
    for key, value in (("question", row.get("question")), ("answer", answers)):
        empty = next((candidate for candidate in _NAMES_OF[key] if candidate in user_row), None)
        texts = value if key == "answer" and isinstance(value, list | tuple) else [value]
        if value is not None and all(isinstance(text, str) for text in texts):
            continue
        if value is not None:
            column = next((candidate for candidate in _NAMES_OF[key] if user_row.get(candidate) is not None), key)
            not_text = next(text for text in texts if not isinstance(text, str))
            kind = type(not_text).__name__
            raise UserError(f"{where}: `{column}`: got {shortened(not_text, 60)}, of type {kind}; expected text")
        hint = "; answer_samples takes rows without answers" * (key == "answer")
        if "input_ids" in user_row:
            raise UserError(
                f"{where}: has input_ids, which do not say where its context is",
                remedy="give the rows from before they were tokens; or `answer` and one column of prompt ids for each "
                "view, `original`, `imagined` and `refined`",
            )
        if empty is not None:
            raise UserError(f"{where}: `{empty}` is None; expected text", f"fill it, or leave the row out{hint}")
        if key == "question" and "chosen" in user_row:
            raise UserError(f"{where}: `chosen` is text without a `prompt`", "add the column prompt, what was asked")
        if isinstance(user_row.get("text"), str) and not {"context", *_ASKED} & user_row.keys():
            raise UserError(
                f"{where}: has only `text`, which does not say where the answer begins; {_EXPECTED}",
                remedy="divide it where the answer begins, for example at '### Response:':\n    rows = rows.map("
                'lambda row: dict(zip(["prompt", "completion"], row["text"].split("### Response:", 1))))',
            )
        raise UserError(
            f"{where}: no `{key}`; it has {', '.join(map(str, user_row))}; {_EXPECTED}."
            f"{did_you_mean(key, map(str, user_row))}",
            remedy=f"rename the column, for example {name}.rename_column(OLD, {key!r}){hint}",
        )
    return {"question": row["question"], "answers": [answers] if isinstance(answers, str) else answers}


def _of_turns(turns: Any, context: str, loss: Any, column: str, where: str) -> dict[str, Any]:
    if loss not in get_args(Loss):
        raise UserError(f"{where}: loss: {loss!r:.60}; expected last or all, the assistant turns to train on")
    try:
        (chat,) = chat_rows(read_turns(turns, column), ContextRule(), loss, context)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    return {"format": "chat", **vars(chat), "conversation": chat.conversation.model_dump()}


def file_of(name: str, split: Literal["train", "dev"] = "train") -> Path:
    """Return the file of samples that a recipe names: a path, or a dataset of the Hub as a file in the cache.

    Rows of the Hub are completed as in `samples_of`.
    """
    if not is_hub(name):
        return Path(name)
    fetched = fetch_rows(name, split)
    target = fetched.path.with_suffix(".samples.jsonl")
    if not (fetched.commit and target.is_file()):
        # Not splitlines(): a text may contain a line separator that JSON leaves as it is.
        rows = [json.loads(line) for line in fetched.path.read_text(encoding="utf-8").split("\n") if line]
        for row in rows:
            row.update(
                {key: json.loads(row[key]) for key in ("meta", "conversation") if isinstance(row.get(key), str)}
            )
        write_samples(samples_of(rows, name), target)
    return target
