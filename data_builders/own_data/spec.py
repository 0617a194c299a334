"""The YAML file that describes own data: its files, its format, and the columns of each part of a sample.

All values are read as text: YAML would turn a label `yes` into true and a label `01` into 1, which the texts of the
data would not match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from d2e_sft.data.conversation import CONTEXT, LossChoice
from d2e_sft.data.sample import Format, Relation, Split
from d2e_sft.util.errors import UserError

ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
AnswerAs = Literal["text", "letter", "from-0", "from-1"]
Label = Literal["positive", "negative"]

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Text = Annotated[str, Field(min_length=1)]


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
    options: Annotated[list[Text], BeforeValidator(_one_or_more), Field(min_length=1)] = ["options"]
    messages: Annotated[list[Text], BeforeValidator(_one_or_more), Field(min_length=1)] = ["messages"]
    choices: Annotated[list[Text], BeforeValidator(_one_or_more), Field(min_length=1)] | None = None
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
        format: Format of all rows.
        relation: Relation of all rows; None reads it from its column, and is `none` without one.
        columns: Columns of the parts of a sample.
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
        weight: Number of training rows to draw for each row of a dataset with weight 1.
        name: Name of the dataset; empty for the file name of the description without its ending.
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
        for problem, holds in [*self._unused_keys(), *self._problems()]:
            if holds:
                raise ValueError(problem)
        return self

    def _unused_keys(self) -> Iterator[tuple[str, bool]]:
        fields = type(self).model_fields
        given = {
            key
            for key in self.model_fields_set
            if getattr(self, key) != fields[key].get_default(call_default_factory=True)
        }
        given |= {f"columns.{key}" for key in self.columns.model_fields_set}
        fmt, is_choice, is_chat = f"format {self.format}", self.format in ("scq", "mcq"), self.format == "chat"
        has_cells = any(ending_of(name) in DELIMITERS for name in self.files.values())
        turns = "with `prompt`" if self.prompt else f"for {fmt}"
        uses = [  # keys, whether they have an effect, else why not
            (("labels",), self.format == "nli", f"for {fmt}"),
            (("answer_as", "columns.options"), is_choice, f"for {fmt}"),
            (("separator",), self.format != "nli", f"for {fmt}"),
            (("delimiter",), has_cells, "without a CSV or TSV file"),
            (("columns.relation",), self.relation is None, f"with relation {self.relation}"),
            (("prompt",), is_chat, f"for {fmt}"),
            (("system",), is_chat and bool(self.prompt), "without `prompt`"),
            (("context_in", "context_block", "loss", "columns.messages"), self.by_turns, turns),
            (("columns.question", "columns.answer"), not self.by_turns, "for conversations"),
            (("columns.choices",), self.format in ("qa", "chat") and not self.by_turns, f"for {fmt}"),
        ]
        for keys, is_used, why in uses:
            unused = [key for key in keys if key in given]
            yield f"{', '.join(unused)}: not used {why}; drop it", bool(unused) and not is_used

    def _problems(self) -> Iterator[tuple[str, bool]]:
        yield "train: no file is named; expected one, as `train: mine.csv`", not self.files
        yield f"train: got {self.train!r}; expected a file (dev and test may be shares of it)", "train" in self.shares
        for split, share in self.shares.items():
            problem = f"{split}: got the share {share:g} of train; expected `train:` to name a file"
            yield problem, "train" not in self.files
            problem = f"{split}: got {share:g}; expected a file, or a share of train between 0 and 1"
            yield problem, not 0 < share < 1
        problem = f"{' and '.join(self.shares)}: take all of train; expected shares with a sum below 1"
        yield problem, sum(self.shares.values()) >= 1
        problem = f"name: got {self.name!r}; expected letters, digits, '_', '-' and '.'"
        yield problem, bool(self.name) and not _NAME.fullmatch(self.name)
        problem = f"prompt: got {self.prompt!r}; expected {{question}} and {CONTEXT} in it, each once"
        fits = self.prompt.count("{question}") == 1 == self.prompt.count(CONTEXT)
        yield problem, bool(self.prompt) and not fits
        has_column, place, block = "context" in self.columns.model_fields_set, self.context_in, self.context_block
        problem = f"context_in: got {place!r} as well as columns.context; expected one of the two"
        yield problem, bool(place) and has_column
        known = place in ("", "system", "user", "tool", "none") or re.fullmatch(r"<[\w-]+>", place)
        yield f"context_in: got {place!r}; expected `<NAME>`, system, user, tool or none", not known
        problem = f"columns.rejected: got {self.columns.rejected!r} with loss: each; expected loss: last or all"
        yield problem, self.columns.rejected is not None and self.loss == "each"
        problem = f"context_block: got {block!r}; expected {CONTEXT} in it, and a column (`columns.context`)"
        yield problem, bool(block) and (not has_column or block.count(CONTEXT) != 1)


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
