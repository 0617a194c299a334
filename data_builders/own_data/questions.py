"""Read rows without answers for `d2e predict`, from the same files and descriptions as own data.

The answer column is not read. Without a description, columns have the names of a sample's parts. A row may have its
own `format`, so the rows of a benchmark can be used as they are.
"""

from collections.abc import Sequence
from pathlib import Path

from d2e_sft.data.sample import NLI_LABELS, RELATIONS, WORDED, BadRow, EventSample, Relation
from d2e_sft.util.errors import UserError
from data_builders.own_data.rows import RowParser, read_choice
from data_builders.own_data.source import is_own
from data_builders.own_data.spec import OwnSpec, check_file, read_spec
from data_builders.raw.reader import BadRows, RawInput
from data_builders.raw.row import Row


def read_questions(
    file: Path, *, mapping: Path | None, fmt: str | None, relation: Relation = "none", skip_bad: bool = False
) -> tuple[list[EventSample], list[BadRow]]:
    """Return the rows of a file as samples with placeholder answers, and the bad rows.

    The id of a row without one is its line, or in Parquet and JSON arrays its item.

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
    if spec.by_turns:
        raise UserError(
            f"{mapping}: describes whole conversations; expected questions, which d2e predict asks one by one",
            remedy="give columns for context and question, and a `prompt:` that holds both",
        )
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
        super().__init__(spec.model_copy(update={"relation": spec.relation or "none", "columns": columns}), raw)
        self._format, self._relation, self._described = fmt, self.spec.relation, described

    @property
    def columns(self) -> list[str]:
        return [name for name in super().columns if name != self.spec.columns.answer]

    @property
    def optional(self) -> list[str]:
        return [*super().optional, *(() if self._described else ("format", "options", "relation"))]

    def __call__(self, row: Row) -> EventSample:
        if not self._described:
            likely = "scq" if row.fields.get("options") else "qa"
            update = {
                "format": read_choice(row, "format", WORDED) or self._format or likely,
                "relation": read_choice(row, "relation", RELATIONS) or self._relation,
            }
            self.spec = self.spec.model_copy(update=update)
        return super().__call__(row).model_copy(update={"refined_context": None})

    def _answers(self, name: str, value: object, options: Sequence[str]) -> list[str]:
        return [NLI_LABELS[0] if self.spec.format == "nli" else next(filter(None, options), "(not known)")]

    def _id(self, row: Row) -> str:
        row_id = super()._id(row)
        return row_id if self.has_ids else str(row.number)
