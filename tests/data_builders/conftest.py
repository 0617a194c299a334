"""A folder of small raw files in the datasets' real formats; their rows were written for these tests."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from tests.hub_server import hub

__all__ = ["hub"]
_RAW_FILES = Path(__file__).parent / "raw_files"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A `--raw` folder with a few rows of each dataset."""
    return copy_raw_files(tmp_path)


@pytest.fixture(scope="session")
def unchanged_raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same folder, for tests that only read it."""
    return copy_raw_files(tmp_path_factory.mktemp("unchanged"))


def copy_raw_files(place: Path) -> Path:
    """Copy the raw files of these tests into `place/raw`, and return it."""
    folder = Path(shutil.copytree(_RAW_FILES, place / "raw"))
    for file in folder.rglob("*.parquet.json"):
        pq.write_table(pa.Table.from_pylist(json.loads(file.read_text(encoding="utf-8"))), file.with_suffix(""))
    return folder


@pytest.fixture
def built(raw: Path, tmp_path: Path) -> Path:
    """TRACIE, e-CARE and ESTER, built from the small raw files."""
    build(BuildOptions(["tracie", "ecare", "ester"], tmp_path / "built", raw))
    return tmp_path / "built"
