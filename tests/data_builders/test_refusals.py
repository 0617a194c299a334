"""Refusals of `d2e data`: command lines with the message of each in `test_refusals.yaml`."""

from pathlib import Path

import pytest

from d2e_sft.data.sample import write_samples
from tests.data_builders.conftest import copy_raw_files
from tests.factories import save_bench
from tests.messages import refused_lines
from tests.tiny import make_sample


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Raw files, rows and folders, sound and not, by the names that the lines have for them."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "broken.parquet").write_text("no")
    (folder / "empty.jsonl").touch()
    (folder / "rows.csv").write_text("context,question,answer\n")
    (folder / "nothing").mkdir()
    (folder / "damaged/crepe").mkdir(parents=True)
    (folder / "damaged/crepe/data_dev_v2.json").write_text("[1]")
    write_samples([make_sample(1, format="nli", answers=["positive"])], folder / "good.jsonl")
    write_samples([make_sample(1), make_sample(2, refined_context=None)], folder / "unrefined.jsonl")
    save_bench(folder / "built", [make_sample(1, split="test")], manifest={})
    copy_raw_files(folder)
    return {"MISSING": folder / "missing", **{path.name.partition(".")[0].upper(): path for path in folder.iterdir()}}


test_refusal = refused_lines(__file__)
