"""Answers to rows that have none: decoded like a benchmark, journalled like one, and written in the rows' order.

Beside the answers stands the folder `OUT.decoding`: while answers come, the journal from which a broken-off call goes
on; afterwards what they were decoded with, so that answers of another model are never mixed with them.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from d2e_sft.config.recipe import recipe_of
from d2e_sft.data.prompts import SettingPrompts, load_prompt_set
from d2e_sft.data.sample import RELATIONS, BadRow, EventSample, Relation, write_bad_rows
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import replacing
from eval.run.benchmark import BenchmarkRows, with_candidates
from eval.run.engines.choose import identity_of, make_engine
from eval.run.fingerprint import fingerprint
from eval.run.journal import CompletedPass, DecodingPass
from eval.run.journal_files import PassFiles
from eval.run.options import EvalConfig, EvalOptions, resolve_options, warn_of_idle_options
from eval.run.processes import join_processes
from eval.run.runner import check_contrast
from eval.run.task import sample_task
from eval.score.likelihood import score_likelihoods
from eval.score.predictions import Prediction
from eval.score.scoring import score_output

ENDINGS = (".jsonl", ".csv", ".parquet")
_SEPARATOR = "|"  # between several answers in a cell, as descriptions of own data read them


@dataclass(frozen=True)
class Answered:
    """What became of the rows.

    Attributes:
        rows: how many were answered, all of them in `out`.
        bad: how many did not fit and are in `bad_file`.
        unread: outputs in which no answer was recognised; their answer is empty, their output is there.
        truncated: contexts that were cut to fit the model.
        record: what they were decoded with.
    """

    rows: int
    bad: int
    bad_file: Path
    unread: int
    truncated: int
    record: dict[str, Any]


def predict(
    model: str, file: Path, samples: Sequence[EventSample], bad: Sequence[BadRow], out: Path, options: EvalOptions
) -> Answered:
    """Answer the samples and write `out`, whole or not at all.

    Args:
        model: as for `eval.run.runner.evaluate_model`.
        file: where the samples are from; for messages.
        samples: their answers mean nothing; ids are unique.
        bad: rows of the file that do not fit; written beside `out`.
        out: `.jsonl`, `.csv` or `.parquet`.

    Raises:
        UserError: no such model, options that do not fit, a prompt that exceeds the model's context, an engine that
            cannot go on, or answers of another model, other options or unknown origin in the place of `out`.
    """
    config = resolve_options(model, options)
    files = PassFiles(out.with_name(f"{out.name}.decoding"), "answers")
    _check_out(out, file, files, options)
    check_contrast(config, samples)
    if options.answer == "likelihood" and len(with_candidates(samples, file)) < len(samples):
        raise UserError(
            f"{file}: rows without options, and --answer likelihood compares options; expected options in every row",
            remedy="generate the answers: --answer generate",
        )
    wording = SettingPrompts(load_prompt_set(config.prompt_set), options.setting)
    wording.prompt_set.digest(options.setting)  # a set without this setting is refused before a model is loaded
    processes = join_processes(config.engine)
    if processes.is_main:
        warn_of_idle_options(config)
    rows = BenchmarkRows(list(samples), list(samples), list(bad), _digest(samples))
    task = sample_task(
        samples,
        wording,
        config.decoding,
        likelihood=options.answer == "likelihood",
        truncate=options.overlong == "truncate_context",
    )
    return DecodingPass(
        task,
        files,
        processes,
        fingerprint=lambda: fingerprint(identity_of(model, config), config, rows, wording.prompt_set, None),
        load_engine=lambda: make_engine(model, config, processes),
        overwrite=options.overwrite,
    ).run(lambda completed: _write(rows, out, files, config, wording, completed))


def trained_relation(model: str) -> Relation:
    """The relation of the rows that a run was trained on, by the first of them; none where that is not known.

    A prompt is worded for events unless a row's relation is none, so a run is asked in the words it was trained with.
    """
    recipe = recipe_of(model)
    file = None if recipe is None else Path(recipe.data.train)
    if file is None or not file.is_file():
        return "none"
    try:
        if file.suffix == ".parquet":
            first: Any = next(pq.ParquetFile(file).iter_batches(1, columns=["relation"])).to_pylist()[0]
        else:
            with file.open(encoding="utf-8") as lines:
                first = json.loads(next(lines))
        return first["relation"] if first["relation"] in RELATIONS else "none"
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, StopIteration):
        return "none"  # it has changed since, and the run does not need it any more


def check_ending(out: Path) -> None:
    """Raise UserError unless answers can be written to such a file."""
    if out.suffix.lower() not in ENDINGS:
        raise UserError(f"--out {out}: expected an ending of {', '.join(ENDINGS)}", "its ending says the format")


def _check_out(out: Path, file: Path, files: PassFiles, options: EvalOptions) -> None:
    check_ending(out)
    if out.is_dir() or out.resolve() == file.resolve():
        what = "a folder" if out.is_dir() else "the file with the questions"
        raise UserError(f"--out {out}: is {what}; expected a file for the answers", "name another one")
    if out.exists() and not files.record.is_file() and not files.partials() and not options.overwrite:
        raise UserError(
            f"--out {out}: is there already, and {files.folder} is not, so it is not known whose answers it holds",
            remedy="name another file, or replace it with --overwrite",
        )


def _digest(samples: Sequence[EventSample]) -> str:
    """What is asked, whatever file and description it came from."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(sample.model_dump_json().encode() + b"\n")
    return digest.hexdigest()


def _write(
    rows: BenchmarkRows,
    out: Path,
    files: PassFiles,
    config: EvalConfig,
    wording: SettingPrompts,
    completed: CompletedPass,
) -> Answered:
    options = config.options
    read: list[Prediction] = []
    for sample, answer in zip(rows.chosen, completed.answers, strict=True):
        if options.answer == "likelihood":
            read.append(score_likelihoods(sample, answer.scores or [], wording, options.normalise))
        else:
            read.append(score_output(sample, answer.output, wording.marker(sample.format), options.setting))
    bad_file = out.with_name(f"{out.name}.bad.jsonl")
    write_bad_rows(rows.bad, bad_file)
    with replacing(files.predictions) as partial, partial.open("w", encoding="utf-8") as kept:
        for one in read:
            line = one.model_dump(include={"dataset", "id", "output", "likelihoods"}, exclude_none=True)
            kept.write(json.dumps(line) + "\n")
    write_answers([_row(one) for one in read], out)
    unread = sum(not one.parsed for one in read)
    return Answered(len(read), len(rows.bad), bad_file, unread, completed.record["truncated"], completed.record)


def _row(one: Prediction) -> dict[str, Any]:
    """A row of the answers; the options' log-probabilities only where they were asked for."""
    answer: Any = one.answer if one.format == "mcq" else (one.answer[0] if one.answer else None)
    row = {"id": one.id, "question": one.question, "answer": answer, "output": one.output, "read": one.extraction}
    if one.likelihoods is not None:
        row["logprobs"] = {option.option: option.logprob for option in one.likelihoods}
    return row


def write_answers(rows: Sequence[dict[str, Any]], out: Path) -> None:
    """Write rows by the ending of the file, in their order; it appears when it is whole.

    In JSONL several answers are a list. In CSV they stand in one cell with `|` between them, or as JSON where one of
    them holds that; log-probabilities are JSON there, and in Parquet, whose answers are lists where any row's is.
    """
    lists = any(isinstance(row["answer"], list) for row in rows)
    with replacing(out) as partial:
        if out.suffix.lower() == ".jsonl":
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        elif out.suffix.lower() == ".csv":
            with partial.open("w", encoding="utf-8", errors="backslashreplace", newline="") as target:
                writer = csv.DictWriter(target, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
        else:
            table = [
                {
                    **{name: _cell(value) for name, value in row.items() if name != "answer"},
                    "answer": _as_list(row["answer"]) if lists else row["answer"],
                }
                for row in rows
            ]
            types = {"answer": pa.list_(pa.string())} if lists else {}
            schema = pa.schema([(name, types.get(name, pa.string())) for name in rows[0]])
            pq.write_table(pa.Table.from_pylist(table, schema=schema), partial, compression="zstd")


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        divided = any(_SEPARATOR in item for item in value)
        return json.dumps(value, ensure_ascii=False) if divided else _SEPARATOR.join(value)
    return "" if value is None else str(value)


def _as_list(answer: Any) -> list[str]:
    return answer if isinstance(answer, list) else [] if answer is None else [answer]
