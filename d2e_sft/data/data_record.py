"""The record of a run's data, `data.json`: a run can only be resumed on the same batches."""

import hashlib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ValidationError

from d2e_sft.config.functions import code_of
from d2e_sft.config.objectives import function_name, is_own
from d2e_sft.config.recipe import Recipe
from d2e_sft.data.built import warn_if_changed
from d2e_sft.data.prompts import DEFAULT, NEUTRAL, load_prompt_set
from d2e_sft.data.rows import file_of, plain
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of
from d2e_sft.util.terminal import warn

DATA_FILE = "data.json"
TOKENS = ".tokens"  # ends the name of rows that were given as tokens, from Python; there is no such file
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
_PACKAGES = ("torch", "transformers", "accelerate", "peft")


class DataSource(BaseModel):
    """Files of the samples and their wording, compared by content; `rows` counts them, None if unreadable.

    Rows that were given as tokens have no file, and no checksum of one.
    """

    train: str
    train_sha256: str | None
    rows: int | None
    prompt_set: str
    prompt_set_sha256: str
    dev: str | None = None
    dev_sha256: str | None = None

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        """The recipe's data and prompt set as they are on the disk now."""
        prompts = load_prompt_set(recipe.data.prompt_set)
        path = file_of(recipe.data.train)
        return cls(
            train=recipe.data.train,
            train_sha256=_sha256(path),
            rows=_count_rows(path),
            prompt_set=recipe.data.prompt_set,
            prompt_set_sha256=prompts.digest(),
            dev=recipe.data.dev,
            dev_sha256=None if recipe.data.dev is None else _sha256(file_of(recipe.data.dev, "dev")),
        )


class DataRecord(BaseModel):
    """The content of `data.json`; `samples` and `tokens_sha256` are those of the tokenised training rows."""

    source: DataSource
    samples: int
    tokens_sha256: str
    processes: int
    versions: dict[str, str]
    wording: str | None = None
    objective_sha256: str | None = None  # the file of a user's own objective


def record_data(recipe: Recipe, samples: int, tokens_sha256: str, *, processes: int) -> DataRecord:
    """The record of a run that is about to train on rows with this digest, made from the recipe's data."""
    source = DataSource.of(recipe)
    if source.train_sha256 is not None:
        warn_if_changed(file_of(source.train), source.train_sha256)
    if source.dev is not None and source.dev_sha256 is not None:
        warn_if_changed(file_of(source.dev, "dev"), source.dev_sha256)
    versions = {name: version(name) for name in _PACKAGES}
    objective = recipe.d2e.objective
    return DataRecord(
        source=source,
        samples=samples,
        tokens_sha256=tokens_sha256,
        processes=processes,
        versions=versions,
        objective_sha256=code_of(function_name(objective), "objective") if is_own(objective) else None,
    )


def check_resumed_data(recipe: Recipe, samples: int, tokens_sha256: str, *, processes: int, run: Path) -> None:
    """Compare the tokens of a resumed run with those it was begun with in the folder `run`; UserError if they differ.

    Other package versions or another number of processes change only roundings (and the end of an epoch that does not
    divide evenly), so they trigger a warning.
    """
    before, record = _load(run), record_data(recipe, samples, tokens_sha256, processes=processes)
    if before.tokens_sha256 != record.tokens_sha256:
        lines = [
            f"{run}: the training rows give other tokens now",
            _line("samples", before.samples, record.samples),
            _line("tokens, SHA-256", before.tokens_sha256, record.tokens_sha256),
        ]
        raise UserError(
            "\n  ".join(lines),
            remedy="the rows, the tokenizer, the chat template or d2e-sft changed: restore them, or train into "
            "another train.output_dir",
        )
    if before.objective_sha256 not in (None, record.objective_sha256):
        line = _line("SHA-256", before.objective_sha256, record.objective_sha256)
        raise UserError(
            f"{run}: was started with another d2e.objective={recipe.d2e.objective}: its file changed ({line})",
            "restore the file, or train into another train.output_dir",
        )
    if before.source.dev_sha256 != record.source.dev_sha256:
        line = _line("data.dev", before.source.dev, record.source.dev)
        warn(f"resumed with other held-out rows, so eval_ values before and after cannot be compared: {line}")
    was, now = ({"processes": str(either.processes), **either.versions} for either in (before, record))
    for name in now:
        if was.get(name) != now[name]:
            line = _line(name, was.get(name), now[name])
            warn(f"resumed under other conditions, so losses may be rounded differently: {line}")


def data_file_of(folder: Path) -> Path:
    """Return where the record of a run's data is: in the folder, or for a checkpoint in its run's."""
    return (folder.parent if folder.name.startswith("checkpoint-") else folder) / DATA_FILE


def wording_of(model: str) -> list[str]:
    """Name the prompt sets that worded a run's rows; none if it did not record them, or the model is no run."""
    file = data_file_of(Path(model))
    recorded = _load(file.parent).wording if file.is_file() else None
    return recorded.split(", ") if recorded else []


def trained_wording(model: str, named: str) -> str:
    """Name the prompt set that worded a run's rows: the one `named`, or `neutral` if `default` worded none of them."""
    names = wording_of(model)
    return NEUTRAL if named == DEFAULT and NEUTRAL in names and DEFAULT not in names else named


def refuse_other_source(recipe: Recipe, run: Path) -> None:
    """Raise UserError, before a model is loaded, if data or prompt set are not the run's, or it has no record."""
    if not file_of(recipe.data.train).is_file():
        return  # reading it gives a better error
    before, now = _load(run).source, DataSource.of(recipe)
    parts = {
        "train_sha256": ("data.train", "{0.train} ({0.rows} rows, SHA-256 {0.train_sha256})"),
        "prompt_set_sha256": ("data.prompt_set", "{0.prompt_set} (SHA-256 {0.prompt_set_sha256})"),
    }
    changed = [
        _line(key, text.format(before), text.format(now))
        for digest, (key, text) in parts.items()
        if getattr(before, digest) not in (None, getattr(now, digest))
    ]
    if changed:
        raise UserError(
            "\n  ".join([f"{run}: was started with other data", *changed]),
            remedy="resume with the original data, or train into another train.output_dir",
        )


def _load(run: Path) -> DataRecord:
    try:
        return DataRecord.model_validate_json((run / DATA_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        problem = f"holds no {DATA_FILE}"
    except ValidationError:
        problem = f"its {DATA_FILE} is not readable"
    raise UserError(
        f"{run}: {problem}, so its training data are unknown",
        remedy="copy the file from where the run was started, or start over with --overwrite",
    )


def _line(name: str, was: str | int | None, now: str | int | None) -> str:
    return f"{name}: {was} → {now}"


def _sha256(path: Path) -> str | None:
    """Return None for rows from Python, which have no file, or none yet."""
    return sha256_of(path) if path.is_file() else None


def _count_rows(path: Path) -> int | None:
    if not path.is_file():
        return None
    if path.suffix != ".parquet":
        with path.open("rb") as lines:
            return sum(bool(line.strip()) for line in lines)
    try:
        return int(pq.ParquetFile(path).metadata.num_rows)
    except (pa.ArrowException, OSError):
        return None


def tokens_digest(dataset: Sequence[Mapping[str, Any]]) -> str:
    """SHA-256 over all columns of token ids."""
    digest = hashlib.sha256()
    for name in sorted(dataset[0]):
        lists = column_of(dataset, name)
        # Other columns follow from the tokens.
        if isinstance(lists.type, _LISTS) and pa.types.is_integer(lists.type.value_type):
            digest.update(name.encode())
            for part in (pc.list_value_length(lists).cast(pa.int32()), pc.list_flatten(lists).cast(pa.int64())):
                digest.update(part.to_numpy(zero_copy_only=False).tobytes())
    return digest.hexdigest()


def column_of(rows: Any, name: str) -> Any:
    """A column of a list of rows, or of a `datasets.Dataset`, whose tokens are not copied into Python's lists."""
    if hasattr(rows, "with_format"):
        return rows.select_columns([name]).with_format("arrow")[:][name]
    return pa.array([plain(row[name]) for row in rows])
