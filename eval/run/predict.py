"""Answers to rows without gold answers, decoded and journalled like a benchmark, and written in the rows' order.

The folder `OUT.decoding` holds the journal, from which an interrupted call resumes, and afterwards the record of the
decoding. So answers of different models are never mixed.
"""

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
from d2e_sft.data.data_record import wording_of
from d2e_sft.data.prompts import OWN, load_prompt_set
from d2e_sft.data.sample import RELATIONS, BadRow, EventSample, Relation, write_bad_rows
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import replacing
from d2e_sft.util.terminal import warn
from eval.run.benchmark import with_candidates
from eval.run.evaluate import row_task
from eval.run.journal import PassFiles
from eval.run.options import EvalOptions, resolve_options, warn_of_idle_options
from eval.run.passes import EvaluatedModel, run_pass
from eval.run.processes import join_processes
from eval.score.predictions import Prediction, read_predictions

ENDINGS = (".jsonl", ".csv", ".parquet")
_SEPARATOR = "|"  # between several answers in a cell, as in descriptions of own data


@dataclass(frozen=True)
class Answered:
    """Counts of a call.

    Outputs without a recognised answer are `unread`, and their answer is empty. Contexts that were cut to fit the
    model are `truncated`.
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
    """Answer the samples and write `out` (`.jsonl`, `.csv` or `.parquet`), whole or not at all.

    The samples have unique ids, and their answers are ignored. Invalid rows (`bad`) are written next to `out`.
    UserError as for `evaluate_model`, or if `out` holds answers of another model, other options, or unknown origin.
    """
    config = resolve_options(model, options)
    files = PassFiles(out.with_name(f"{out.name}.decoding"), "answers")
    _check_out(out, file, files, options)
    if options.answer == "likelihood" and len(with_candidates(samples, file)) < len(samples):
        raise UserError(
            f"{file}: rows without options, and --answer likelihood compares options; expected options in every row",
            remedy="generate the answers: --answer generate",
        )
    wording = load_prompt_set(config.prompt_set, config.form).in_setting(options.setting)
    # Independent of the samples' file and description.
    digest = hashlib.sha256(b"".join(sample.model_dump_json().encode() + b"\n" for sample in samples)).hexdigest()
    task = row_task(list(samples), wording, config, {"bench": f"sha256 {digest}, {len(samples)} rows"})
    evaluated = EvaluatedModel(model, config, join_processes(config.engine))
    evaluated.processes.broadcast_from_main(lambda: warn_of_idle_options(model, config))
    evaluated.processes.broadcast_from_main(lambda: _warn_of_chats(model, samples))
    record = run_pass(task, files, evaluated).record
    return evaluated.processes.broadcast_from_main(
        lambda: _write(read_predictions(files.predictions), bad, out, record)
    )


def _warn_of_chats(model: str, samples: Sequence[EventSample]) -> None:
    """Warn of chats for a run that was trained on worded questions only: chats are asked without those words."""
    chats, names = sum(sample.format == "chat" for sample in samples), wording_of(model)
    if chats and names and OWN not in names:
        warn(
            f"{model}: was trained on questions worded by the prompt set {' and '.join(names)}, and "
            f"{chats:,} of {len(samples):,} rows are chats, which are asked without its system message and wording, "
            "so their answers may be useless; give such rows as the columns context and question instead of messages"
        )


def trained_relation(model: str) -> Relation:
    """The relation of a run's first training row, by which its prompts were worded; `none` if it is unknown."""
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
        return "none"  # the file has changed since


def check_ending(out: Path) -> None:
    if out.suffix.lower() not in ENDINGS:
        raise UserError(f"--out {out}: expected an ending of {', '.join(ENDINGS)}", "the ending gives the format")


def _check_out(out: Path, file: Path, files: PassFiles, options: EvalOptions) -> None:
    check_ending(out)
    if out.is_dir() or out.resolve() == file.resolve():
        kind = "a folder" if out.is_dir() else "the file with the questions"
        raise UserError(f"--out {out}: is {kind}; expected a file for the answers", "name another one")
    if out.is_file() and not files.record.is_file() and not files.partials() and not options.overwrite:
        raise UserError(
            f"--out {out}: exists already, but {files.folder} does not, so the origin of its answers is unknown",
            remedy="name another file, or replace it with --overwrite",
        )


def _write(predictions: Sequence[Prediction], bad: Sequence[BadRow], out: Path, record: dict[str, Any]) -> Answered:
    bad_file = out.with_name(f"{out.name}.bad.jsonl")
    write_bad_rows(bad, bad_file)
    rows = []
    for p in predictions:
        read = p.answer if p.parsed else []
        answer: Any = read if p.format == "mcq" else (read[0] if read else None)
        row = {"id": p.id, "question": p.question, "answer": answer, "output": p.output, "read": p.extraction}
        if p.likelihoods is not None:
            row["logprobs"] = {option.option: option.logprob for option in p.likelihoods}
        rows.append(row)
    write_answers(rows, out)
    unread = sum(not p.parsed for p in predictions)
    return Answered(len(rows), len(bad), bad_file, unread, record["truncated"], record)


def write_answers(rows: Sequence[dict[str, Any]], out: Path) -> None:
    """Write rows in the format of the file's ending; the file appears when it is complete.

    Several answers are a list in JSONL. In CSV they share a cell, separated by `|`, or as JSON if one of them contains
    `|`. In Parquet all answers are lists if any row's is. Log-probabilities are JSON in CSV and Parquet.
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
            answers = [row["answer"] for row in rows]
            if lists:
                answers = [
                    [] if answer is None else answer if isinstance(answer, list) else [answer] for answer in answers
                ]
            cells = [{name: _cell(value) for name, value in row.items()} for row in rows]
            table = [{**row, "answer": answer} for row, answer in zip(cells, answers, strict=True)]
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
