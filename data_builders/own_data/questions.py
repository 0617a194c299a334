"""Read rows without answers for `d2e predict`, from the same files and descriptions as own data.

The answer column is not read, nor an assistant turn that ends a conversation. Without a description, columns have the
names of a sample's parts, or `messages`. A row may have its own `format`, so the rows of a benchmark can be used as
they are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from d2e_sft.data.conversation import Turn
from d2e_sft.data.foreign import columns_of
from d2e_sft.data.rows import CHATS, NOT_KNOWN
from d2e_sft.data.sample import NLI_LABELS, RELATIONS, WORDED, BadRow, EventSample, Relation, check_row
from d2e_sft.util.errors import UserError, shortened
from data_builders.own_data.rows import RowParser, read_choice
from data_builders.own_data.source import is_own
from data_builders.own_data.spec import Columns, OwnSpec, check_file, read_spec
from data_builders.raw.reader import BadRows, RawInput
from data_builders.raw.row import BadRowError, Row


def read_questions(
    file: Path, *, mapping: Path | None, fmt: str | None, relation: Relation = "none", skip_bad: bool = False
) -> tuple[list[EventSample], list[BadRow]]:
    """Return the rows of a file as samples with placeholder answers, and the bad rows.

    Of a conversation, the last user turn is to be answered. The id of a row without one is its line, or in Parquet and
    JSON arrays its item.

    Args:
        file: `.csv`, `.tsv`, `.jsonl`, `.json` or `.parquet`; or a description (YAML), whose only or `test` file is
            read.
        mapping: A description of own data whose columns, format, separator and options apply to `file`.
        fmt: Format of rows without one, if there is no description. None means scq if they have options, else qa.
        relation: Relation of rows without one, if there is no description. Prompts mention events unless it is `none`.
        skip_bad: Put bad rows aside instead of stopping at the first.

    Raises:
        UserError: a file is missing or has another ending, the description is wrong, a row is bad, or all are.
    """
    if is_own(str(file)):
        if mapping is not None:
            raise UserError(f"--mapping {mapping}: {file} is a description itself; expected one of the two", "drop it")
        mapping, spec = file, read_spec(file)
        files = spec.files
        if len(files) > 1 and "test" not in files:
            raise UserError(
                f"{file}: names several files ({', '.join(files.values())}) and none for test; expected one to answer",
                f"name the file, and the description with it: d2e predict MODEL FILE --mapping {file}",
            )
        file = file.parent / (files.get("test") or next(iter(files.values())))
    elif mapping is not None:
        spec = read_spec(mapping, with_files=False)
    else:
        if not file.name:
            raise UserError(f"{file}: is a folder; expected a file with questions", "name the file")
        spec = OwnSpec(train=file.name, format="qa", relation=relation)
    if mapping is not None and fmt is not None:
        raise UserError(f"--format {fmt}: {mapping} has the format; expected one of the two", "drop it")
    check_file(file)
    described = mapping.name if mapping else "a description, given with --mapping"
    bad, licence = BadRows(skip=skip_bad), spec.licence or "not stated"
    raw = RawInput(file.stem, "test", file.name, file, bad, licence=licence, own_spec=described)
    samples = _QuestionParser(spec, raw, fmt, described=mapping is not None).read()
    if not samples:
        raise UserError(f"{file}: has no usable row ({len(bad.entries)} bad)", "give a file of rows")
    return samples, bad.entries


class _QuestionParser(RowParser):
    """Gives samples with a placeholder for an answer; `fmt` is for rows without a format, if none is `described`."""

    def __init__(self, spec: OwnSpec, raw: RawInput, fmt: str | None, *, described: bool) -> None:
        # These depend on known answers.
        without = dict.fromkeys(("subset", "habit", "choices", "rejected"))
        columns = spec.columns.model_copy(update=without)
        update = {"relation": spec.relation or "none", "columns": columns, "loss": "last"}
        super().__init__(spec.model_copy(update=update), raw)
        self._format, self._relation, self._described = fmt, self.spec.relation, described
        self._questions = self.spec
        if not described:
            self.spec = self._spec_of(dict.fromkeys(columns_of(raw.path)))

    def read(self) -> list[EventSample]:
        samples = self.raw.parse(self.rows(), self)
        if self.spec.by_turns and self._described:
            self._check_contexts(samples)
        return samples

    @property
    def columns(self) -> list[str]:
        return [name for name in super().columns if name != self._answer_column]

    @property
    def optional(self) -> list[str]:
        more = () if self._described else ("context", "format", "options", "relation", "conversation")
        if self.spec.by_turns:
            more = (*more, self._answer_column)
        return [*super().optional, *(name for name in more if name not in self.columns)]

    @property
    def _answer_column(self) -> str:
        """The column with nothing but the answer, of turns the last of `[prompt, completion]`."""
        names = self.spec.columns.messages
        return names[-1] if self.spec.by_turns and len(names) % 2 == 0 else self.spec.columns.answer

    def __call__(self, row: Row) -> EventSample:
        if not self._described:
            self.spec = self._spec_of(row.fields)
            if not self.spec.by_turns and row.fields.get("format") == "chat":
                return self._built_chat(row)
            if not self.spec.by_turns:
                likely = "scq" if row.fields.get("options") else "qa"
                update = {
                    "format": read_choice(row, "format", WORDED) or self._format or likely,
                    "relation": read_choice(row, "relation", RELATIONS) or self._relation,
                }
                self.spec = self.spec.model_copy(update=update)
        sample = self._conversation(row)[0] if self.spec.by_turns else super().__call__(row)
        return sample.model_copy(update={"refined_context": None})

    def _built_chat(self, row: Row) -> EventSample:
        """The sample of a chat as a build writes it, with its own conversation."""
        fields = {name: row.fields.get(name) for name in ("context", "question", "conversation")}
        relation = read_choice(row, "relation", RELATIONS) or self._relation
        fields |= {"id": self._id(row), "dataset": self.raw.dataset, "split": self.raw.split, "relation": relation}
        if isinstance(text := fields["conversation"], str):  # in Parquet
            try:
                fields["conversation"] = json.loads(text)
            except ValueError as error:
                raise BadRowError(f"conversation: got {shortened(text)}; expected JSON ({error})") from None
        sample = check_row({**fields, "format": "chat", "answers": [NOT_KNOWN]})
        if isinstance(sample, str):
            raise BadRowError(sample)
        return sample

    def _spec_of(self, fields: Mapping[str, object]) -> OwnSpec:
        """The description of a row without one: of a question, or of a conversation in its own column."""
        found = [name for name in CHATS if fields.get(name) or (name in fields and "question" not in fields)]
        if not found:
            return self._questions
        context = {"context": "context"} if fields.get("context") else {}
        return OwnSpec(train="chats", format="chat", columns=Columns.model_validate({"messages": found[0], **context}))

    def _turns(self, row: Row) -> list[Turn]:
        """The turns before the answer, and a placeholder for it; the assistant's last turn is a reference answer."""
        name, answer = self._answer_column, Turn(role="assistant", content=NOT_KNOWN)
        if not row.fields.get(name):
            row = replace(row, fields={**row.fields, name: [answer.model_dump()]})
        turns = super()._turns(row)
        asked = turns[:-1] if turns[-1].role == "assistant" else turns
        if not next((turn.content.strip() for turn in reversed(asked) if turn.role == "user"), ""):
            roles = ", ".join(turn.role for turn in turns)
            names = ", ".join(self.spec.columns.messages)
            raise ValueError(f"{names}: got the turns {roles}; expected a user turn with text to answer")
        return [*asked, answer]

    def _answers(self, name: str, value: object, options: Sequence[str]) -> list[str]:
        return [NLI_LABELS[0] if self.spec.format == "nli" else next(filter(None, options), NOT_KNOWN)]

    def _id(self, row: Row) -> str:
        row_id = super()._id(row)
        return row_id if self.has_ids else str(row.number)
