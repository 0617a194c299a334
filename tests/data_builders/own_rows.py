"""Own data for the tests: a description, files beside it, and what is built of them."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from d2e_sft.data.sample import EventSample, read_samples
from d2e_sft.util.errors import UserError
from data_builders.build.options import BuildOptions
from data_builders.build.run import build

QA = "train: mine.csv\nformat: qa\nrelation: causal\n"
QA_ROWS = (
    "context,question,answer\n"
    '"Rain fell, all day. The dam broke.",Why did the dam break?,rain fell\n'
    "Bo lit a candle. The lamp had broken.,Why did Bo light a candle?,the lamp had broken\n"
)


def write(folder: Path, **files: str | Sequence[dict[str, object]]) -> Path:
    """Write files by name, `_` for the dot before the ending; rows become Parquet. Returns the path of mine.yaml."""
    for name, content in files.items():
        path = folder / ".".join(name.rsplit("_", 1))
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        else:
            pq.write_table(pa.Table.from_pylist(list(content)), path)
    return folder / "mine.yaml"


def rows_of(spec: Path, *, split: str = "train", skip_bad: bool = False) -> list[EventSample]:
    """The rows of one split of a build of nothing but the described data."""
    out = spec.parent / "out"
    build(BuildOptions([str(spec)], out, skip_bad=skip_bad, overwrite=True))
    return read_samples(out / f"{split}.parquet")


def error_of(spec: Path) -> UserError:
    """The error of a build of nothing but the described data."""
    with pytest.raises(UserError) as error:
        rows_of(spec)
    return error.value
