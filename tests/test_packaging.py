"""The wheel: everything that `d2e` needs away from the clone is in it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("d2e_sft-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def test_the_wheel_holds_the_three_packages_with_their_data(installed: Path) -> None:
    for file in (
        "d2e_sft/data/prompt_sets/default.yaml",
        "d2e_sft/bundled/recipes/models/smollm2-135m-mini.yaml",
        "d2e_sft/bundled/recipes/methods/d2e-lora.yaml",
        "d2e_sft/bundled/recipes/shared/piper-10k.yaml",
        "d2e_sft/bundled/launch/constraints.txt",
        "d2e_sft/bundled/launch/accelerate/shapes/2x8-gpu-zero3.yaml",
        "d2e_sft/bundled/launch/sky/train.yaml",
        "d2e_sft/bundled/launch/slurm/train.sbatch",
        "data_builders/sources/piper/tracie.py",
        "data_builders/sources/piper/tracie.yaml",
        "data_builders/text/word_lists.yaml",
        "eval/pages/report/page.html",
        "eval/pages/report/browser.js",
        "eval/pages/report/report.css",
        "eval/pages/report/errors.html",
        "eval/pages/sweep/sweep.html",
        "d2e_sft/util/html/style.css",
        "d2e_sft/hub/card.md.jinja",
        "d2e_sft/hub/custom_generate/generate.py",
        "d2e_sft/util/html/sections.html",
    ):
        assert (installed / file).is_file(), file
    assert not list(installed.rglob("test_*.py"))


# In one process without torch, whose import takes long: where the packages are, a launcher, and what `d2e` prints.
_SCRIPT = """
import d2e_sft, eval, data_builders
from d2e_sft import cli
from d2e_sft.train import launch
print(d2e_sft.__file__)
launch.accelerators = lambda: 0
print(launch.launch_command("ddp", [], processes=1)[4])
cli.main(["data", "build", "--datasets", "boxes", "--out", "boxes", "boxes.train_samples=4"])
cli.main(["recipes", "show", "smollm2-135m-mini/d2e-lora", "--resolved"])
"""


def test_d2e_finds_its_launchers_recipes_and_builders_away_from_the_clone(installed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        cwd=installed.parent,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    where, config, *shown = done.stdout.splitlines()
    assert where.startswith(str(installed)), "the wheel must be tested, not the clone"
    assert config == str(installed / "d2e_sft" / "bundled" / "launch" / "accelerate" / "ddp.yaml")
    assert Path(config).is_file()
    assert (installed.parent / "boxes" / "train.parquet").is_file()
    assert "  train: data/mini/train.parquet" in shown
