"""EventSample: the one row type that builders write, and training and evaluation read.

A row is checked when it crosses the boundary (a file is read or written), never again after that.
Parquet is the storage form; JSONL is accepted everywhere Parquet is, so that own data needs no converter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from d2e_sft.data.conversation import Conversation
from d2e_sft.util.errors import UserError, describe_validation_error, shortened
from d2e_sft.util.files import object_with_unique_keys, replacing

Relation = Literal["temporal", "causal", "counterfactual", "subevent_conditional", "factual", "none"]
Format = Literal["nli", "scq", "mcq", "qa", "chat"]
Split = Literal["train", "dev", "test"]
Subset = Literal["aligned", "conflict", "gold", "irrelevant", "unanswerable"]
RELATIONS: tuple[str, ...] = get_args(Relation)
FORMATS: tuple[str, ...] = get_args(Format)
WORDED = tuple(name for name in FORMATS if name != "chat")  # those that a prompt set has words for
SUBSETS: tuple[Subset, ...] = get_args(Subset)
NLI_LABELS = ("positive", "negative")
BAD_ROWS_FILE = "bad_rows.jsonl"

# A rejected row: `file`, `line` (or `item`, where the rows are items of a JSON array), `error` (what was wrong with
# it) and `row` (its content as it was read).
BadRow = dict[str, Any]

_AS_JSON = {"meta", "conversation"}  # columns that Parquet has as JSON text

NonEmptyText = Annotated[str, StringConstraints(pattern=r"\S")]

_PARQUET_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("dataset", pa.string()),
        ("split", pa.string()),
        ("relation", pa.string()),
        ("format", pa.string()),
        ("context", pa.string()),
        ("refined_context", pa.string()),
        ("question", pa.string()),
        ("options", pa.list_(pa.string())),
        ("answers", pa.list_(pa.string())),
        # Free-form, so stored as JSON text: a struct column would force one shape on all datasets.
        ("meta", pa.string()),
    ]
)
# Columns of a file in which some row has a value for one of them; other files are written without both.
_SUBSET_FIELDS = [pa.field("subset", pa.string()), pa.field("habit", pa.list_(pa.string()))]
_WEIGHT_FIELD = pa.field("weight", pa.float64())  # likewise, where some row has another than 1
_CONVERSATION_FIELD = pa.field("conversation", pa.string())  # likewise; JSON, since its turns are as many as they are


class EventSample(BaseModel):
    """One event-reasoning sample (PIPER paper, section 2.1 and appendix A).

    Attributes:
        id: unique within its dataset and split (checked where a whole file is read).
        dataset: the source, for example `tracie`.
        relation: the event relation that the sample probes; `factual` where it asks for a fact, of no relation of
            events; `none` where nothing is said of it.
        format: `nli`, `scq` (one correct option), `mcq` (one or more), `qa` (free text) or `chat` (free text in a
            conversation with its own wording).
        context: the passage; for nli the premise. Empty only where the task has none.
        refined_context: the context's relevant parts, or None where no refiner has run.
        question: the question; for nli the hypothesis.
        options: the candidates of scq and mcq, in order; empty otherwise.
        answers: nli: one of positive, negative. scq: the correct option. mcq: every correct option.
            qa: the accepted answers; training uses the first.
        meta: source row, licence and whatever else a builder records. Must be JSON.
        subset: how the context stands to what one would answer without it: `aligned` (the same answer), `conflict`
            (another), `gold` (relevant, nothing known of the habit), `irrelevant` (it does not help), `unanswerable`
            (nobody can tell); None where a dataset does not say. Scores are also given by subset.
        habit: what one who has not read would answer, in all accepted forms; empty where nothing is known of it.
        weight: how often the sample's loss counts in training.
        conversation: chat alone: the turns that the model sees, in place of a prompt set's wording.

    Raises:
        pydantic.ValidationError: for a row that breaks any of the above.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: NonEmptyText
    dataset: NonEmptyText
    split: Split
    relation: Relation
    format: Format
    context: str
    refined_context: str | None = None
    question: NonEmptyText
    options: list[NonEmptyText] = Field(default_factory=list)
    answers: list[NonEmptyText] = Field(min_length=1)
    meta: dict[str, Any] = Field(default_factory=dict)
    subset: Subset | None = None
    habit: list[NonEmptyText] = Field(default_factory=list)
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    conversation: Conversation | None = None

    @model_validator(mode="after")
    def _answers_fit_format(self) -> Self:
        if self.format == "nli" and (len(self.answers) != 1 or self.answers[0] not in NLI_LABELS):
            raise ValueError(
                f"answers: {shortened(self.answers)} for an nli sample; expected one of {list(NLI_LABELS)}"
            )
        if self.format in ("scq", "mcq"):
            if not self.options:
                raise ValueError(f"options: empty for a sample of format {self.format}; expected its candidates")
            if len(set(self.options)) != len(self.options):
                raise ValueError(f"options: {shortened(self.options)} holds the same candidate twice")
            options = set(self.options)
            strangers = [answer for answer in self.answers if answer not in options]
            if strangers:
                raise ValueError(f"answers: {shortened(strangers)} not among the options {shortened(self.options)}")
        elif self.options:
            raise ValueError(f"options: {shortened(self.options)} for a sample of format {self.format}; expected none")
        if self.format == "scq" and len(self.answers) != 1:
            raise ValueError(f"answers: {shortened(self.answers)} for an scq sample; expected exactly one")
        if (self.format == "chat") != (self.conversation is not None):
            found = "none" if self.conversation is None else "one"
            raise ValueError(f"conversation: {found} for a sample of format {self.format}; only chat has one")
        return self

    @property
    def candidates(self) -> tuple[str, ...]:
        """What may be answered: the options, of nli the labels; nothing where the answer is free text."""
        return NLI_LABELS if self.format == "nli" else tuple(self.options)


def check_row(row: Any) -> EventSample | str:
    """The row as an EventSample, or what is wrong with it, in one line."""
    try:
        sample = EventSample.model_validate(row)
    except ValidationError as error:
        return describe_validation_error(error)
    except RecursionError:
        return "meta: nests too deeply; expected at most some hundred levels"
    return _unwritable(row) or sample


def _unwritable(row: Any) -> str:
    """What no output could hold: half of a character in a text, a number beyond a double's range, endless nesting."""
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        return f"holds what is no JSON value ({error}); NaN and Infinity are none"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        around = shortened(text[max(0, error.start - 30) : error.start + 1])
        return f"holds a lone surrogate (half of a character) at the end of {around}; expected whole characters"
    return ""


def read_samples(path: str | Path, *, bad_rows: list[BadRow] | None = None) -> list[EventSample]:
    """Read and check EventSample rows from a `.parquet` or `.jsonl` file.

    Args:
        path: the file.
        bad_rows: takes the rows that fail the check, with their error (see `write_bad_rows`); None makes the
            first bad row an error.

    Returns:
        the good rows, in file order.

    Raises:
        UserError: the file is missing, unreadable, empty of good rows, or holds a bad row; the message
            names file, line, field, value and expectation.
    """
    path = Path(path)
    check_readable(path)
    samples: list[EventSample] = []
    first_line: dict[tuple[str, str, str], int] = {}
    refused = 0
    check_ending(path, "read")
    rows = _iter_parquet(path) if path.suffix == ".parquet" else _iter_jsonl(path)
    for line, row, unparsed in rows:
        checked = unparsed or check_row(row)
        if isinstance(checked, EventSample):
            key = (checked.dataset, checked.split, checked.id)
            if key not in first_line:
                first_line[key] = line
                samples.append(checked)
                continue
            checked = f"id: got {checked.id!r}, which line {first_line[key]} has too; expected an id of its own"
        if bad_rows is None:
            raise UserError(
                f"{path}, line {line}: {checked}",
                remedy="mend the row, or skip bad rows (--skip-bad, in a recipe data.skip_bad=true): "
                "they are then written to a side file and counted",
            )
        refused += 1
        bad_rows.append({"file": str(path), "line": line, "error": checked, "row": row})
    if not samples:
        raise UserError(f"{path}: no usable row ({refused} bad); expected at least one EventSample")
    return samples


def check_readable(path: Path) -> None:
    """Raise UserError unless there is a file that `read_samples` could read."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder; expected a file of EventSample rows", f"give {path / 'train.parquet'}")
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected EventSample rows (.parquet or .jsonl)")


def write_bad_rows(bad: Sequence[BadRow], target: Path) -> None:
    """Write rejected rows as JSONL beside the output they are missing from; none removes an earlier file.

    What is wrong with a row never keeps it from being written: a lone surrogate is written as its escape, and a row
    that JSON cannot hold is replaced by a note that says so.
    """
    if not bad:
        target.unlink(missing_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8") as out:
        for entry in bad:
            out.write(_bad_row_line(entry) + "\n")


def _bad_row_line(entry: BadRow) -> str:
    for only_ascii in (False, True):
        try:
            line = json.dumps(entry, ensure_ascii=only_ascii, default=str)
            line.encode("utf-8")
            return line
        except UnicodeEncodeError:
            continue
        except (TypeError, ValueError, RecursionError):
            break
    note = f"cannot be written as JSON ({type(entry.get('row')).__name__})"
    return json.dumps({**{str(key): str(value) for key, value in entry.items() if key != "row"}, "row": note})


def check_ending(path: Path, verb: str = "write") -> None:
    """Raise UserError unless `read_samples` and `write_samples` know the file's ending."""
    if path.suffix not in (".parquet", ".jsonl"):
        ending = path.suffix or "a file without an ending"
        raise UserError(f"{path}: cannot {verb} {ending}; expected .parquet or .jsonl")


def write_samples(samples: Iterable[EventSample], path: str | Path) -> None:
    """Write samples to `.parquet` or `.jsonl`; the same samples give the same bytes.

    Raises:
        UserError: for another file ending.
    """
    path = Path(path)
    check_ending(path)
    rows = [sample.model_dump() for sample in samples]
    with_subsets = any(row["subset"] or row["habit"] for row in rows)
    with_conversations = any(row["conversation"] for row in rows)
    with_weights = any(row["weight"] != 1 for row in rows)
    used = {"subset": with_subsets, "habit": with_subsets, "conversation": with_conversations, "weight": with_weights}
    idle = [name for name, is_used in used.items() if not is_used]
    rows = [{name: value for name, value in row.items() if name not in idle} for row in rows]
    with replacing(path) as partial:
        if path.suffix == ".parquet":
            for row in rows:
                for name in _AS_JSON & row.keys():
                    if row[name] is not None:
                        row[name] = json.dumps(row[name], ensure_ascii=False, sort_keys=True)
            added = [*(_SUBSET_FIELDS if with_subsets else []), *([_WEIGHT_FIELD] if with_weights else [])]
            added += [_CONVERSATION_FIELD] if with_conversations else []
            schema = pa.schema([*_PARQUET_SCHEMA, *added])
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), partial, compression="zstd")
        else:
            with partial.open("w", encoding="utf-8") as out:
                for row in rows:
                    out.write(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n")


def _iter_parquet(path: Path) -> Iterator[tuple[int, Any, str | None]]:
    """(line, row, problem) for each row; `problem` is set where the row could not even be parsed."""
    try:
        rows = pq.ParquetFile(path).read().to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: not a readable Parquet file ({path.stat().st_size:,} bytes: {error})",
            remedy="the file is truncated or not Parquet; build or copy it again",
        ) from None
    for line, row in enumerate(rows, start=1):
        problem = None
        for name in _AS_JSON:
            if isinstance(row.get(name), str):
                try:
                    row[name] = json.loads(row[name])
                except (ValueError, RecursionError) as error:
                    problem = f"{name}: got {shortened(row[name])}; expected a JSON object ({error})"
        yield line, row, problem


def _iter_jsonl(path: Path) -> Iterator[tuple[int, Any, str | None]]:
    with path.open("rb") as source:
        for line, raw in enumerate(source, start=1):
            if not raw.strip():
                continue
            try:
                row = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=object_with_unique_keys)
            except (ValueError, RecursionError) as error:
                yield line, raw.decode("utf-8", errors="replace"), f"not a JSON object in UTF-8 ({error})"
                continue
            problem = None if isinstance(row, dict) else f"got {shortened(row)}; expected a JSON object"
            yield line, row, problem
