"""EventSample: the row of builders, training and evaluation, checked when read or written, as Parquet or JSONL."""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from d2e_sft.data.built import SWAPPED, manifest_of
from d2e_sft.data.conversation import Conversation
from d2e_sft.util.answers import contains, is_same_answer, normalise, on_one_line
from d2e_sft.util.errors import UserError, describe_validation_error, did_you_mean, shortened
from d2e_sft.util.files import object_with_unique_keys, replacing, surrogate_problem

Relation = Literal["temporal", "causal", "counterfactual", "subevent_conditional", "factual", "none"]
Format = Literal["nli", "scq", "mcq", "qa", "chat"]
Split = Literal["train", "dev", "test"]
Subset = Literal["aligned", "conflict", "unknown", "gold", "irrelevant", "unanswerable"]
RELATIONS: tuple[str, ...] = get_args(Relation)
FORMATS: tuple[str, ...] = get_args(Format)
WORDED = tuple(name for name in FORMATS if name != "chat")  # formats that a prompt set has words for
SUBSETS: tuple[Subset, ...] = get_args(Subset)
ENOUGH_ROWS = 20  # a subset of fewer rows is reported in a footnote, and no average or headline is about it
NLI_LABELS = ("positive", "negative")
RejectedFrom = Literal["rejected", "habit", "swap"]
BAD_ROWS_FILE = "bad_rows.jsonl"
BadRow = dict[str, Any]  # `file`, `line` (or `item` of a JSON array), `error`, and `row`, its content as read

_INDEX = "__index_level_"  # how pandas names an index without a name
_AS_JSON = ("meta", "conversation")  # text in Parquet: a struct column would force one shape on all rows
# About a million tokens of English. Without a limit, a context of 10 MB takes gigabytes to tokenise, then is too long.
MOST_CHARACTERS = 4_000_000
_LONGEST_LINE = 12 * MOST_CHARACTERS  # bytes; a character outside the basic plane is two escapes of six bytes
_TEXT, _TEXTS = pa.string(), pa.list_(pa.string())
_COLUMNS = {
    **dict.fromkeys(("id", "dataset", "split", "relation", "format"), _TEXT),
    **dict.fromkeys(("context", "refined_context", "question"), _TEXT),
    **dict.fromkeys(("options", "answers"), _TEXTS),
    "meta": _TEXT,
    # Only in files in which a row has another value than the default:
    "subset": _TEXT,
    "habit": _TEXTS,
    "rejected": _TEXTS,
    "conversation": _TEXT,
}
_TOO_LONG = f"has more than {_LONGEST_LINE:,} bytes; expected at most {MOST_CHARACTERS:,} characters of text in a row"

NonEmptyText = Annotated[str, StringConstraints(pattern=r"\S")]


class EventSample(BaseModel):
    """One event-reasoning sample (PIPER paper, section 2.1 and appendix A).

    Raises pydantic.ValidationError for a row that breaks a rule below.

    Attributes:
        id: Unique within its dataset and split (checked where a whole file is read).
        dataset: The source, for example `tracie`.
        relation: The event relation that the sample tests; `factual` for a fact without a relation of events;
            `none` if unknown.
        format: `nli`, `scq` (one correct option), `mcq` (one or more), `qa` (free text) or `chat` (free text in a
            conversation with its own wording).
        context: The passage; for nli the premise. Empty only if the task has none.
        refined_context: The relevant parts of the context, or None if no refiner has run.
        question: For nli the hypothesis.
        options: The candidates of scq and mcq, in order; empty otherwise.
        answers: nli: one of positive, negative. scq: the correct option. mcq: every correct option.
            qa: The accepted answers, each made one line; training uses the first.
        meta: Source row, licence and other notes of the builder. Must be JSON.
        subset: How the context relates to the usual answer: it confirms it (`aligned`), contradicts it (`conflict`),
            or there is no firm usual answer (`unknown`). Otherwise the context is relevant (`gold`) or not
            (`irrelevant`), or nobody can tell (`unanswerable`). Scores are also reported by subset.
        habit: The usual answer without the context, in all accepted forms, or empty.
        rejected: A worse answer, in the form of `answers`, for the objective `prefer`, or empty.
        conversation: Only for chat: the turns that the model sees, instead of a prompt set's.
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
    rejected: list[NonEmptyText] = Field(default_factory=list)
    conversation: Conversation | None = None

    @field_validator("answers", "habit", "rejected")
    @classmethod
    def _as_they_are_scored(cls, texts: list[str], row: ValidationInfo) -> list[str]:
        """Answers of qa on one line each, since a score reads the first line of an output."""
        return list(map(on_one_line, texts)) if row.data.get("format") == "qa" else texts

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        texts = [self.context, self.refined_context or "", self.question, *self.options, *self.answers]
        texts += [*self.habit, *self.rejected]
        texts += [turn.content for turn in self.conversation.turns] if self.conversation else []
        if (length := sum(map(len, texts))) > MOST_CHARACTERS:
            raise ValueError(f"the row's texts have {length:,} characters; expected at most {MOST_CHARACTERS:,}")
        return self

    @model_validator(mode="after")
    def _answers_fit_format(self) -> Self:
        fmt, options, answers = self.format, self.options, self.answers
        if fmt == "nli" and (len(answers) != 1 or answers[0] not in NLI_LABELS):
            raise ValueError(f"answers: {shortened(answers)} for an nli sample; expected one of {list(NLI_LABELS)}")
        if fmt in ("scq", "mcq"):
            if not options:
                raise ValueError(f"options: empty for a sample of format {fmt}; expected its candidates")
            known = set(options)
            if len(known) != len(options):
                raise ValueError(f"options: {shortened(options)} contains the same candidate twice")
            if strangers := [answer for answer in answers if answer not in known]:
                raise ValueError(f"answers: {shortened(strangers)} not among the options {shortened(options)}")
        elif options:
            raise ValueError(f"options: {shortened(options)} for a sample of format {fmt}; expected none")
        if fmt == "scq" and len(answers) != 1:
            raise ValueError(f"answers: {shortened(answers)} for an scq sample; expected exactly one")
        if (fmt == "chat") != (self.conversation is not None):
            expected = "one" if fmt == "chat" else "none"
            raise ValueError(f"conversation: expected {expected} for a sample of format {fmt}")
        return self

    @model_validator(mode="after")
    def _rejected_differs(self) -> Self:
        rejected = shortened(self.rejected)
        if self.candidates and not set(self.rejected) <= set(self.candidates):
            raise ValueError(f"rejected: {rejected} not among {shortened(list(self.candidates))}")
        if set(self.rejected) == set(self.answers) if self.format == "mcq" else set(self.rejected) & set(self.answers):
            raise ValueError(f"rejected: {rejected} is a right answer; expected another one, or nothing")
        pairs = () if self.candidates else ((text, right) for text in self.rejected for right in self.answers)
        for text, right in pairs:
            if is_same_answer(text, right):
                raise ValueError(
                    f"rejected: {shortened(text)} is the right answer {shortened(right)} up to letter case, "
                    "punctuation and articles; expected another one, or nothing"
                )
        return self

    @property
    def candidates(self) -> tuple[str, ...]:
        """The possible answers: the options, or the labels of nli; empty if the answer is free text."""
        return NLI_LABELS if self.format == "nli" else tuple(self.options)

    @property
    def rejected_answers(self) -> tuple[RejectedFrom, list[str]] | None:
        """Return a rejected answer, in the form of `answers`, and where it is from; None without one.

        It is `rejected`, else the habit, else the answer before a swap. Habits and former answers that are right, or
        no option of a sample with options, are passed over. So is free text that contains an accepted answer or is a
        part of one (`Lee` of `Ann Lee`), unless the row's subset is `conflict`.
        """
        swapped = self.meta.get(SWAPPED)
        former = swapped.get("from") if isinstance(swapped, dict) else None
        by_source: dict[RejectedFrom, list[str]] = {
            "rejected": self.rejected,
            "habit": self._wrong_answers(self.habit),
            "swap": self._wrong_answers([former]) if isinstance(former, str) else [],
        }
        shown = slice(None) if self.format == "mcq" else slice(1)
        return next(((source, answers[shown]) for source, answers in by_source.items() if answers), None)

    def _wrong_answers(self, forms: Sequence[str]) -> list[str]:
        """Return the answer with these accepted forms, as far as it is an answer; nothing if it is right."""
        if self.candidates:
            chosen, right = [form for form in forms if form in self.candidates], set(self.answers)
            return [] if (right == set(chosen) if self.format == "mcq" else right & set(chosen)) else chosen
        is_right = any(normalise(form) == normalise(answer) for form in forms for answer in self.answers)
        # Unless the row says so, a part of an accepted answer need not contradict it, nor what contains one.
        overlaps = self.subset != "conflict" and any(
            contains(form, answer) or contains(answer, form) for form in forms for answer in self.answers
        )
        return [] if is_right or overlaps else list(forms)


def check_row(row: Any) -> EventSample | str:
    """Return the row as an EventSample, or one line that says what is wrong with it."""
    try:
        sample = EventSample.model_validate(row)
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    except ValidationError as error:
        return describe_validation_error(error)
    except (ValueError, TypeError, RecursionError) as error:
        return f"cannot be written as JSON ({error}); NaN, infinity and deep nesting are not supported"
    return surrogate_problem(text) or sample


def pick_samples(
    samples: Sequence[EventSample], ids: Sequence[str], count: int, seed: int, *, option: str = "ids"
) -> list[EventSample]:
    """Return the samples with these ids, in that order, or at most `count` drawn with a seed, in the data's order.

    An id that several datasets have stands for a sample of each. Raises UserError, by the option's name, for an id
    that no sample has.
    """
    if not ids:
        return [samples[i] for i in sorted(random.Random(seed).sample(range(len(samples)), min(count, len(samples))))]
    known: dict[str, list[EventSample]] = {}
    for sample in samples:
        known.setdefault(sample.id, []).append(sample)
    for name in ids:
        if name not in known:
            raise UserError(
                f"{option}: got {name!r}; none of {len(samples):,} rows has it.{did_you_mean(name, known)}"
            )
    return [sample for name in dict.fromkeys(ids) for sample in known[name]]


def read_samples(path: str | Path, *, bad_rows: list[BadRow] | None = None) -> list[EventSample]:
    """Read and check EventSample rows from a `.parquet` or `.jsonl` file.

    Rows that fail the check are added to `bad_rows` with their error (see `write_bad_rows`), if it is given. Otherwise
    the first raises UserError with file, line, field, value and expectation. So does a missing or unreadable file, one
    without good rows, or a damaged manifest of its build.
    """
    path = Path(path)
    check_readable(path)
    check_ending(path, "read")
    manifest_of(path)  # raises if it is damaged
    samples: list[EventSample] = []
    first_line: dict[tuple[str, str, str], int] = {}
    refused = 0
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _jsonl_rows(path)
    for line, row, unparsed in rows:
        checked = unparsed or check_row(row)
        if isinstance(checked, EventSample):
            first = first_line.setdefault((checked.dataset, checked.split, checked.id), line)
            if first == line:
                samples.append(checked)
                continue
            checked = f"id: got {checked.id!r}, which line {first} has too; expected a unique id"
        if bad_rows is None:
            raise UserError(
                f"{path}, line {line}: {checked}",
                remedy="correct the row, or skip bad rows (--skip-bad, in a recipe data.skip_bad=true): "
                "they are then written to a side file and counted",
            )
        refused += 1
        bad_rows.append({"file": str(path), "line": line, "error": checked, "row": row})
    if not samples:
        found = f"no usable row ({refused} bad)" if refused else "no rows"
        raise UserError(f"{path}: {found}; expected at least one EventSample", "build the file again, or name another")
    return samples


def write_bad_rows(bad: Sequence[BadRow], target: Path) -> None:
    """Write rejected rows as JSONL, lone surrogates as escapes; without any, remove an earlier file."""
    if not bad:
        target.unlink(missing_ok=True)
        return
    with replacing(target) as partial, partial.open("w", encoding="utf-8", errors="backslashreplace") as out:
        out.writelines(json.dumps(entry, ensure_ascii=False, default=str) + "\n" for entry in bad)


def check_readable(path: Path) -> None:
    if path.is_dir():
        raise UserError(f"{path}: is a folder; expected a file of EventSample rows", f"give {path / 'train.parquet'}")
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected EventSample rows (.parquet or .jsonl).")


def check_ending(path: Path, verb: str = "write") -> None:
    """Raise UserError unless the file is `.parquet` or `.jsonl`."""
    if path.suffix in (".parquet", ".jsonl"):
        return
    spec, first = Path("mine.yaml"), "describe the rows in a file mine.yaml, build them"
    if path.suffix in (".yaml", ".yml"):
        spec, first = path, "build its rows"
    remedy = f"name one that ends so, as {path.stem}.jsonl"
    if verb == "read":
        remedy = f"{first}, and name what is written:\n    d2e data build --datasets {spec} --out data/{spec.stem}"
    ending = path.suffix or "a file without an ending"
    raise UserError(f"{path}: cannot {verb} {ending}; expected .parquet or .jsonl", remedy)


def write_samples(samples: Iterable[EventSample], path: str | Path) -> None:
    """Write `.parquet` or `.jsonl`, the same bytes for the same samples, without columns that few files need."""
    path = Path(path)
    check_ending(path)
    rows = [sample.model_dump() for sample in samples]
    tagged = any(row["subset"] or row["habit"] for row in rows)
    used = {name: any(row[name] for row in rows) for name in ("rejected", "conversation")}
    used |= {"subset": tagged, "habit": tagged}
    columns = {name: kind for name, kind in _COLUMNS.items() if used.get(name, True)}
    rows = [{name: row[name] for name in columns} for row in rows]
    with replacing(path) as partial:
        if path.suffix == ".parquet":
            for row in rows:
                for name in _AS_JSON:
                    if row.get(name) is not None:
                        row[name] = json.dumps(row[name], ensure_ascii=False, sort_keys=True)
            pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(columns)), partial, compression="zstd")
        else:
            with partial.open("w", encoding="utf-8") as out:
                out.writelines(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows)


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any, str | None]]:
    """Yield (line, row, problem); `problem` is set if the row could not be parsed."""
    try:
        file = pq.ParquetFile(path)
        if index := next((name for name in file.schema_arrow.names if name.startswith(_INDEX)), None):
            raise UserError(
                f"{path}: has the column {index}, which is pandas' index; expected only the columns of samples",
                remedy=f"write it without the index: frame.to_parquet({path.name!r}, index=False)",
            )
        rows = file.read().to_pylist()
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


def _jsonl_rows(path: Path) -> Iterator[tuple[int, Any, str | None]]:
    """Yield (line, row, problem) for each line that is not blank; of a line that is too long, only its beginning."""
    with path.open("rb") as source:
        for line, raw in enumerate(iter(lambda: source.readline(_LONGEST_LINE), b""), start=1):
            if len(raw) == _LONGEST_LINE:
                yield line, raw[:1000].decode("utf-8", errors="replace"), _TOO_LONG
                rest = raw
                while rest and not rest.endswith(b"\n"):
                    rest = source.readline(_LONGEST_LINE)
                continue
            if not raw.strip():
                continue
            try:
                row = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=object_with_unique_keys)
            except (ValueError, RecursionError) as error:
                yield line, raw.decode("utf-8", errors="replace"), f"not a JSON object in UTF-8 ({error})"
                continue
            problem = None if isinstance(row, dict) else f"got {shortened(row)}; expected a JSON object"
            yield line, row, problem
