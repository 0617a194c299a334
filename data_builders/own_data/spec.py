"""The YAML file that describes own data: which files, which format, which column is which part of a sample.

Everything in it is read as text: YAML would turn a label `yes` into true and a label `01` into 1, and the texts of the
data would then match neither.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from d2e_sft.data.conversation import CONTEXT, LossChoice
from d2e_sft.data.hub_rows import is_hub, is_saved
from d2e_sft.data.sample import FORMATS, NLI_LABELS, Format, Relation, Split
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import load_yaml

ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
AnswerAs = Literal["text", "letter", "from-0", "from-1"]
Label = Literal["positive", "negative"]

EXAMPLE = """\
    train: mine.csv
    test: 0.2
    format: qa
    relation: causal
    columns: {context: passage, question: query, answer: label}"""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Text = Annotated[str, Field(min_length=1)]


class Columns(BaseModel):
    """Which column (of JSON: which key) holds which part of a sample.

    Attributes:
        options: of scq and mcq: one column with all of them, or one column for each.
        messages: of chat: the conversation, one column or several that follow each other (`[prompt, completion]`). The
            context is then in a column only where `context` names one.
        relation: read where the description gives no relation for all rows.
        id: read where there is such a column; else the split and the line are the id.
        refined_context: likewise; where it is empty the refiner writes one.
        subset, habit: of `EventSample`; read only where they are named, as a column may be called so by chance.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    context: Text = "context"
    question: Text = "question"
    answer: Text = "answer"
    options: Annotated[list[Text], BeforeValidator(_one_or_more), Field(min_length=1)] = ["options"]
    messages: Annotated[list[Text], BeforeValidator(_one_or_more), Field(min_length=1)] = ["messages"]
    relation: Text = "relation"
    id: Text = "id"
    refined_context: Text = "refined_context"
    subset: Text | None = None
    habit: Text | None = None


class OwnSpec(BaseModel):
    """A description of own data.

    Attributes:
        train, dev, test: a file, by its path from the description; dev and test may be a share of train instead
            (`0.1`), which is drawn by the seed and shares no context with the rest.
        format: of all rows.
        relation: of all rows; None reads it from its column.
        columns: where the parts of a sample are.
        labels: for nli the label of each value of the answer column.
        answer_as: how scq and mcq name the correct option: by its text, by its letter (A, B, …), or by its number.
        separator: what stands between several texts in one cell: options, answers of mcq, and, where it is given,
            accepted answers of qa. None is `|` for options and answers of mcq.
        delimiter: what stands between two cells of a CSV or TSV file, where it is not what its ending says.
        prompt, system: of chat: the wording of rows of context, question and answer; without it, conversations.
        context_in: of conversations: where the context is: `<NAME>` (between such tags), a role, or `none`.
        context_block: of conversations with a column of contexts: how it is written into the user turn.
        loss: of conversations: which assistant turns are trained on.
        rows: of a dataset of the Hub, or a folder of `datasets`: the first so many of each split; None takes all.
        weight: how many training rows are drawn of this dataset for one of another of weight 1; see `weigh`.
        name: of the dataset; the name of the description without its ending where it is empty.
        licence: of the rows. Without one they are not published to where others read them.
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
        """Whether a row is a conversation."""
        return self.format == "chat" and not self.prompt

    @property
    def fixed_relation(self) -> Relation | None:
        """The relation of all rows; None reads it from its column. Chat rows need none."""
        if self.relation is None and self.format == "chat" and "relation" not in self.columns.model_fields_set:
            return "none"
        return self.relation

    @property
    def files(self) -> dict[Split, str]:
        """Split → the file that it is read from."""
        return {split: text for split, text in self._given().items() if _share(text) is None}

    @property
    def shares(self) -> dict[Split, float]:
        """Split → the share of the training rows that is drawn for it."""
        shares = {split: _share(text) for split, text in self._given().items()}
        return {split: share for split, share in shares.items() if share is not None}

    def _given(self) -> dict[Split, str]:
        texts: dict[Split, str] = {"train": self.train, "dev": self.dev, "test": self.test}
        return {split: text for split, text in texts.items() if text}

    @model_validator(mode="after")
    def _splits_can_be_had(self) -> Self:
        if not self.files:
            raise ValueError("train: no file is named; expected one, as `train: mine.csv`")
        if "train" in self.shares:
            raise ValueError(f"train: got {self.train!r}; expected a file (dev and test may be shares of it)")
        for split, share in self.shares.items():
            if "train" not in self.files:
                raise ValueError(f"{split}: got the share {share:g} of train; expected `train:` to name a file")
            if not 0 < share < 1:
                raise ValueError(f"{split}: got {share:g}; expected a file, or a share of train between 0 and 1")
        if sum(self.shares.values()) >= 1:
            raise ValueError(f"{' and '.join(self.shares)}: take all of train; expected shares with a sum below 1")
        return self

    @model_validator(mode="after")
    def _keys_have_a_meaning(self) -> Self:
        choice = self.format in ("scq", "mcq")
        idle = {
            "labels": bool(self.labels) and self.format != "nli",
            "answer_as": self.answer_as != "text" and not choice,
            "columns.options": "options" in self.columns.model_fields_set and not choice,
            "separator": self.separator is not None and self.format == "nli",
            "columns.relation": "relation" in self.columns.model_fields_set and self.relation is not None,
            "delimiter": self.delimiter is not None
            and not any(ending_of(name) in DELIMITERS for name in self.files.values()),
        }
        for key, has_none in idle.items():
            if has_none:
                where = {
                    "delimiter": "without a CSV or TSV file",
                    "columns.relation": f"beside relation {self.relation}",
                }
                raise ValueError(f"{key}: has no meaning {where.get(key, f'for format {self.format}')}; drop it")
        if problem := _problem_of_chat(self):
            raise ValueError(problem)
        if self.name and not _NAME.fullmatch(self.name):
            raise ValueError(f"name: got {self.name!r}; expected letters, digits, '_', '-' and '.'")
        return self


def _problem_of_chat(spec: OwnSpec) -> str:
    """What is wrong with the keys of chat; empty where nothing is."""
    if spec.by_turns:
        problems = _problems_of_turns(spec)
    else:
        turns = ("context_in", "context_block", "loss")
        idle = [key for key in turns if key in spec.model_fields_set]
        idle += ["columns.messages"] if "messages" in spec.columns.model_fields_set else []
        idle += [key for key in ("prompt", "system") if spec.format != "chat" and getattr(spec, key)]
        where = "beside `prompt`; drop it" if spec.format == "chat" else f"for format {spec.format}, only for chat"
        asked = spec.prompt.count("{question}") == 1 == spec.prompt.count(CONTEXT)
        problems = {
            f"{', '.join(idle)}: has no meaning {where}": bool(idle),
            f"prompt: got {spec.prompt!r}; expected {{question}} and {CONTEXT} in it, each once": spec.format == "chat"
            and not asked,
        }
    return next((problem for problem, holds in problems.items() if holds), "")


def _problems_of_turns(spec: OwnSpec) -> dict[str, bool]:
    named, place, block = spec.columns.model_fields_set, spec.context_in, spec.context_block
    known = ("", "system", "user", "tool", "none")
    idle = next((f"columns.{key}" for key in ("question", "answer") if key in named), "")
    return {
        "system: has no meaning without `prompt`, as a conversation brings its own; drop it, or add a prompt": bool(
            spec.system
        ),
        f"{idle}: has no meaning for conversations; name their column (`messages`), or add a `prompt:`": bool(idle),
        f"context_in: got {place!r} beside columns.context; expected one of the two": bool(place)
        and "context" in named,
        f"context_in: got {place!r}; expected `<NAME>`, system, user, tool or none": place not in known
        and not re.fullmatch(r"<[\w-]+>", place),
        f"context_block: got {block!r}; expected {CONTEXT} in it, and a column (`columns.context`)": bool(block)
        and ("context" not in named or block.count(CONTEXT) != 1),
    }


def read_spec(path: Path, *, with_files: bool = True) -> OwnSpec:
    """Read and check a description.

    Args:
        with_files: the files that it names must be there; else it is read for its columns alone.

    Raises:
        UserError: it is missing, no YAML, has an unknown key (with the nearest known one) or a value that does not
            fit, or names a file that is not there or has another ending.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected the description of own data", f"write one:\n{EXAMPLE}")
    try:
        content = load_yaml(path.read_text(encoding="utf-8"), texts_only=True)
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: not a YAML file ({error})") from None
    if not isinstance(content, dict):
        raise UserError(
            f"{path}: holds {type(content).__name__}; expected keys and values", f"for example:\n{EXAMPLE}"
        )
    try:
        # An empty value (`dev:`) says nothing.
        spec = OwnSpec.model_validate({key: value for key, value in content.items() if value != ""})
    except ValidationError as error:
        raise UserError(f"{path}: {_describe(error)}") from None
    if not with_files:
        return spec
    for split, name in spec.files.items():
        _check_file(path, split, name)
    places = {
        split: (path.parent / name).resolve()
        for split, name in spec.files.items()
        if not is_hub(name) and not is_saved(path.parent / name)
    }
    for split, place in places.items():
        if place in [other for name, other in places.items() if name != split]:
            raise UserError(
                f"{path}: {split}: {spec.files[split]!r} is another split's file too; expected a file for each",
                remedy=f"write `{split}: 0.1` for a share of train" if split != "train" else None,
            )
    return spec


def name_of(path: Path, spec: OwnSpec) -> str:
    """The dataset's name.

    Raises:
        UserError: the description gives none and its own name cannot be one.
    """
    if not spec.name and not _NAME.fullmatch(path.stem):
        raise UserError(f"{path}: {path.stem!r} cannot name a dataset", "add a line such as `name: mine`")
    return spec.name or path.stem


def ending_of(name: str) -> str:
    """The ending that says how a file is read; `.gz` after it does not count."""
    return Path(name.lower().removesuffix(".gz")).suffix


def _check_file(path: Path, split: str, name: str) -> None:
    file = path.parent / name
    if is_hub(name) or is_saved(file):
        return
    if ending_of(name) not in ENDINGS or name.lower().endswith(".parquet.gz"):
        raise UserError(f"{path}: {split}: got {name!r}; expected a file that ends in {', '.join(ENDINGS)}")
    if not file.is_file():
        there = [found.name for found in file.parent.iterdir()] if file.parent.is_dir() else []
        raise UserError(
            f"{path}: {split}: {file}: no such file.{did_you_mean(file.name, there)}",
            remedy="paths are relative to the folder of the description",
        )


def _share(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _describe(error: ValidationError) -> str:
    """The first error, in terms of the description."""
    item = error.errors()[0]
    location = [str(step) for step in item["loc"]]
    key, message = ".".join(location), item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        known = list((Columns if location[0] == "columns" else OwnSpec).model_fields)
        hint = did_you_mean(location[-1], known)
        return (
            f"unknown key {key!r} (value {item['input']!r}); expected some of {', '.join(known)}.{hint}{_turned(item)}"
        )
    if item["type"] == "missing":
        expected = " or ".join(FORMATS) if key == "format" else "a value"
        return f"{key}: missing; expected {expected}"
    if item["type"] == "value_error":
        return message
    if location[0] == "labels" and len(location) > 1:
        return (
            f"{key}: got {item['input']!r}; expected {' or '.join(NLI_LABELS)} (the data's own label before the colon)"
        )
    return f"{key}: got {item['input']!r}; {message[0].lower()}{message[1:]}"


def _turned(item: Mapping[str, Any]) -> str:
    """A hint where part and column were exchanged: `passage: context`."""
    turned = len(item["loc"]) == 2 and item["input"] in Columns.model_fields
    return f" The part of the sample comes first: `{item['input']}: {item['loc'][1]}`." if turned else ""
