"""Own data for the tests: a description, files beside it, and what is built of them; single rows of any data."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from d2e_sft.data.sample import EventSample, read_samples
from d2e_sft.util.errors import UserError
from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from tests.tiny import make_sample

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


HEAD = "context,question,answer\n"


def crates(places: Iterable[str], more: str = "") -> str:
    """A row for each place, in which a crate is kept."""
    return "".join(f"Crate {n} is in {place}.,Where is crate {n}?,{place}{more}\n" for n, place in enumerate(places))


def usual(place: str, count: int) -> str:
    """Rows of which every fourth has another answer than the usual place."""
    others = ("the cold store", "the paint room", "the loading dock")
    return HEAD + crates(place if n % 4 else others[n // 4 % 3] for n in range(count))


PASSAGE = "The river rose in spring, so the farmers moved their sheep to the upper fields before the bridge closed."


def own_row(split: str, number: int = 1, **changes: Any) -> EventSample:
    """Make a sample that shares nothing with one of the other split or another number."""
    fields = {
        "id": f"own-{split}-{number}",
        "dataset": "own",
        "split": split,
        "context": f"In {split} story number {number} somebody built a wall of stone.",
        "refined_context": None,
        "question": f"Why was wall number {number} of {split} built so quickly?",
        "answers": ["to keep the wind out"],
    }
    return make_sample(number, **{**fields, **changes})


def nli(number: int, context: str, hypothesis: str, label: str, **changes: Any) -> EventSample:
    fields: dict[str, Any] = {"context": context, "question": hypothesis, "answers": [label], "format": "nli"}
    return own_row("test", number, **{"id": str(number), "relation": "causal", **fields, **changes})
