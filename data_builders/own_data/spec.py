"""The YAML file that describes own data: its files, its format, and the columns of each part of a sample.

All values are read as text: YAML would turn a label `yes` into true and `01` into 1, which match no text of the data.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from d2e_sft.data.conversation import CONTEXT, LossChoice
from d2e_sft.data.hub_rows import is_hub, is_saved
from d2e_sft.data.sample import Format, Relation, Split
from d2e_sft.util.errors import UserError, describe_problem, describe_validation_error, did_you_mean
from d2e_sft.util.files import load_yaml
from data_builders.raw.source import SPLITS

EXAMPLE = """\
    train: mine.csv
    test: 0.2
    format: qa
    relation: none
    columns: {context: passage, question: query, answer: label}"""
ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
AnswerAs = Literal["text", "letter", "from-0", "from-1"]
Label = Literal["positive", "negative"]

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_SHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")


Text = Annotated[str, Field(min_length=1)]
_AsList = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
_OneOrMore = Annotated[list[Text], _AsList, Field(min_length=1)]


class Columns(BaseModel):
    """The column (in JSON, the key) of each part of a sample.

    Attributes:
        options: One column with all options (scq and mcq), or one column per option.
        messages: The column of a conversation (chat), or several consecutive ones (`[prompt, completion]`). The
            context is then only in a column if `context` names one.
        choices: One column with wrong answers of qa or chat rows, or one column per wrong answer. They are not asked;
            `d2e data build --swap` takes other answers from them.
        relation: Read only if the description does not set one relation for all rows. Rows without one have `none`.
        id: Optional column; without it, split and line are the id.
        refined_context: Optional column; the refiner fills empty cells.
        subset, habit, rejected: Columns of these fields of `EventSample`. They must be named here, since a column may
            have such a name by chance. In conversations a rejected answer is text, or turns that end in it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    context: Text = "context"
    question: Text = "question"
    answer: Text = "answer"
    options: _OneOrMore = ["options"]
    messages: _OneOrMore = ["messages"]
    choices: _OneOrMore | None = None
    relation: Text = "relation"
    id: Text = "id"
    refined_context: Text = "refined_context"
    subset: Text | None = None
    habit: Text | None = None
    rejected: Text | None = None


class OwnSpec(BaseModel):
    """A description of own data.

    Attributes:
        train, dev, test: A file, relative to the description. dev and test may instead be a share of train (`0.1`). It
            is drawn with the seed and shares no context with the rest.
        relation: Relation of all rows; None reads it from its column, and is `none` without one.
        labels: The nli label of each value of the answer column.
        answer_as: How scq and mcq name the correct option: by its text, its letter (A, B, …) or its number.
        separator: Separates texts in one cell: options, answers of mcq, and, if set, accepted answers of qa. None
            means `|` for options and answers of mcq.
        delimiter: Separates the cells of a CSV or TSV file, if it is not the usual one.
        prompt, system: Wording of chat rows that have a context, a question and an answer. Without it, rows are
            conversations.
        context_in: Place of a conversation's context: `<NAME>` (between such tags), a role, or `none`.
        context_block: Template of the context in the user turn, for conversations with a column of contexts.
        loss: The assistant turns of a conversation to train on.
        rows: Number of rows from each split of a dataset on the Hub or a folder of `datasets`; None takes all.
        refusal: What the answer column has where the context does not answer (qa and chat). Such rows have the subset
            `unanswerable`, and all given texts are accepted.
        weight: Number of training rows to draw for each row of a dataset with weight 1.
        name: Empty for the file name of the description without its ending.
        licence: Licence of the rows. Rows without one are not published.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    train: str = ""
    dev: str = ""
    test: str = ""
    format: Format
    relation: Relation | None = None
    columns: Columns = Columns()
    labels: dict[str, Label] = Field(default_factory=dict)
    answer_as: AnswerAs = "text"
    separator: Text | None = None
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    prompt: str = ""
    system: str = ""
    context_in: str = ""
    context_block: str = ""
    loss: LossChoice = "last"
    rows: Annotated[int, Field(ge=1)] | None = None
    refusal: _OneOrMore | None = None
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    name: str = ""
    licence: str = ""

    @property
    def by_turns(self) -> bool:
        """Whether rows are conversations."""
        return self.format == "chat" and not self.prompt

    @property
    def fixed_relation(self) -> Relation | None:
        """The relation of all rows; None reads it from its column, if there is one. Chat rows have none."""
        if self.relation is None and self.format == "chat" and "relation" not in self.columns.model_fields_set:
            return "none"
        return self.relation

    @property
    def files(self) -> dict[Split, str]:
        """Split → its file."""
        return {split: text for split, text in self._splits().items() if _share(text) is None}

    @property
    def shares(self) -> dict[Split, float]:
        """Split → the share of the training rows that is drawn for it."""
        return {split: share for split, text in self._splits().items() if (share := _share(text)) is not None}

    def _splits(self) -> dict[Split, str]:
        texts: dict[Split, str] = {"train": self.train, "dev": self.dev, "test": self.test}
        return {split: text for split, text in texts.items() if text}

    @model_validator(mode="after")
    def _check(self) -> Self:
        for holds, problem in (*self._unused_keys(), *self._problems()):
            if holds:
                raise ValueError(problem)
        return self

    def _unused_keys(self) -> Iterator[tuple[bool, str]]:
        fields, columns = type(self).model_fields, self.columns.model_fields_set
        defaults = {key: fields[key].get_default(call_default_factory=True) for key in self.model_fields_set}
        changed = {key for key, value in defaults.items() if getattr(self, key) != value}
        changed |= {f"columns.{key}" for key in columns}
        fmt, is_chat = f"format {self.format}", self.format == "chat"
        has_cells = any(ending_of(name) in DELIMITERS for name in self.files.values())
        turns = "with `prompt`" if self.prompt else f"for {fmt}"
        uses = {  # keys: whether they have an effect, else why not
            ("labels",): (self.format == "nli", f"for {fmt}"),
            ("answer_as", "columns.options"): (self.format in ("scq", "mcq"), f"for {fmt}"),
            ("separator",): (self.format != "nli", f"for {fmt}"),
            ("delimiter",): (has_cells, "without a CSV or TSV file"),
            ("columns.relation",): (self.relation is None, f"with relation {self.relation}"),
            ("prompt",): (is_chat, f"for {fmt}"),
            ("system",): (is_chat and bool(self.prompt), "without `prompt`"),
            ("context_in", "context_block", "loss", "columns.messages"): (self.by_turns, turns),
            ("columns.question", "columns.answer"): (not self.by_turns, "for conversations"),
            ("refusal",): (self.format in ("qa", "chat"), f"for {fmt}"),
            ("columns.choices",): (self.format in ("qa", "chat") and not self.by_turns, f"for {fmt}"),
        }
        for keys, (is_used, why) in uses.items():
            unused = [key for key in keys if key in changed]
            yield bool(unused) and not is_used, f"{', '.join(unused)}: not used {why}; drop it"

    def _problems(self) -> Iterator[tuple[bool, str]]:
        shares, has_train = self.shares, "train" in self.files
        yield not self.files, "train: no file is named; expected one, as `train: mine.csv`"
        yield "train" in shares, f"train: got {self.train!r}; expected a file (dev and test may be shares of it)"
        for split, name in self.files.items():
            percent = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", name)
            number = f"{float(percent[1]) / 100:g}" if percent else ""
            yield percent is not None, f"{split}: got {name!r}; expected a share as a number: `{split}: {number}`"
        for split, share in shares.items():
            yield not has_train, f"{split}: got the share {share:g} of train; expected `train:` to name a file"
            yield not 0 < share < 1, f"{split}: got {share:g}; expected a file, or a share of train between 0 and 1"
        yield sum(shares.values()) >= 1, f"{' and '.join(shares)}: take all of train; expected a sum below 1"
        bad_name = bool(self.name) and not _NAME.fullmatch(self.name)
        yield bad_name, f"name: got {self.name!r}; expected letters, digits, '_', '-' and '.'"
        fits = not self.prompt or self.prompt.count("{question}") == 1 == self.prompt.count(CONTEXT)
        yield not fits, f"prompt: got {self.prompt!r}; expected {{question}} and {CONTEXT} in it, each once"
        has_column, place, block = "context" in self.columns.model_fields_set, self.context_in, self.context_block
        twice = bool(place) and has_column
        yield twice, f"context_in: got {place!r} as well as columns.context; expected one of the two"
        known = place in ("", "system", "user", "tool", "none") or re.fullmatch(r"<[\w-]+>", place)
        yield not known, f"context_in: got {place!r}; expected `<NAME>`, system, user, tool or none"
        rejected, per_turn = self.columns.rejected, self.columns.rejected is not None and self.loss == "each"
        yield per_turn, f"columns.rejected: got {rejected!r} with loss: each; expected loss: last or all"
        unplaced = bool(block) and (not has_column or block.count(CONTEXT) != 1)
        yield unplaced, f"context_block: got {block!r}; expected {CONTEXT} in it, and a column (`columns.context`)"


def read_spec(path: Path, *, with_files: bool = True) -> OwnSpec:
    """Read and check a description; without `with_files` it is only used for its columns.

    Raises:
        UserError: it is missing, not YAML, or has a wrong value or an unknown key (the nearest one is suggested). Also
            if one of its files does not exist or has an unknown ending.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected the description of own data", f"write one:\n{EXAMPLE}")
    try:
        content = load_yaml(path.read_text(encoding="utf-8"), texts_only=True)
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: not a YAML file ({error})") from None
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise UserError(f"{path}: contains {kind}; expected keys and values", f"for example:\n{EXAMPLE}")
    try:
        # An empty value (`dev:`) is ignored. Files and columns keep their names; other texts are compared with rows'.
        filled = {key: value for key, value in content.items() if value != ""}
        names = {*SPLITS, "columns"}
        spec = OwnSpec.model_validate({key: v if key in names else composed(v) for key, v in filled.items()})
    except ValidationError as error:
        raise UserError(f"{path}: {describe_validation_error(error, _describe)}") from None
    places: dict[Path, Split] = {}
    for split, name in spec.files.items() if with_files else ():
        file = path.parent / name
        if is_hub(name) or is_saved(file):
            continue
        check_file(file, f"{path}: {split}: ")
        if earlier := places.get(file.resolve()):
            raise UserError(
                f"{path}: {split}: {name!r} is also the file of {earlier}; expected a file for each split",
                remedy=f"write `{split}: 0.1` for a share of train",
            )
        places[file.resolve()] = split
    return spec


def composed(value: Any) -> Any:
    """Return a value with its texts in one Unicode form (NFC): files of macOS may have `ü` as two characters."""
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, list):
        return [composed(item) for item in value]
    return {composed(key): composed(item) for key, item in value.items()} if isinstance(value, dict) else value


def check_file(file: Path, key: str = "") -> None:
    """Raise UserError unless the file exists and has a known ending; `key` goes before the messages."""
    if ending_of(file.name) not in ENDINGS or file.name.lower().endswith(".parquet.gz"):
        remedy = "save the sheet as CSV (UTF-8), and name that file" if ending_of(file.name) in _SHEETS else None
        raise UserError(f"{key}got {str(file)!r}; expected a file that ends in {', '.join(ENDINGS)}", remedy)
    if not file.is_file():
        names = [entry.name for entry in file.parent.iterdir()] if file.parent.is_dir() else []
        remedy = "paths are relative to the folder of the description" if key else None
        raise UserError(f"{key}{file}: no such file.{did_you_mean(file.name, names)}", remedy)


def _describe(problem: Mapping[str, Any]) -> str:
    """Return a problem that pydantic found; unknown keys get the nearest known one."""
    if problem["type"] != "extra_forbidden":
        return describe_problem(problem)
    *above, key = problem["loc"]
    known, value = list((Columns if above else OwnSpec).model_fields), problem["input"]
    hint = did_you_mean(str(key), known)
    if above and value in known:  # `passage: context`
        hint = f" The part of the sample comes first: `{value}: {key}`."
    name = ".".join(map(str, problem["loc"]))
    return f"unknown key {name!r} (value {value!r}); expected some of {', '.join(known)}.{hint}"


def name_of(path: Path, spec: OwnSpec) -> str:
    """Return the dataset's name; UserError if the description gives none and its own name cannot be one."""
    if not spec.name and not _NAME.fullmatch(path.stem):
        raise UserError(f"{path}: {path.stem!r} cannot name a dataset", "add a line such as `name: mine`")
    return spec.name or path.stem


def ending_of(name: str) -> str:
    """Return the ending that decides how a file is read; `.gz` is ignored."""
    return Path(name.lower().removesuffix(".gz")).suffix


def _share(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
