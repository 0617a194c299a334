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
    packages = [(ROOT / name, Path(name)) for name in ("d2e_sft", "data_builders", "eval")]
    bundled = [(ROOT / name, Path("d2e_sft/bundled") / name) for name in ("recipes", "launch")]
    for folder, place in (*packages, *bundled):
        files = [
            file.relative_to(folder)
            for file in folder.rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        ]
        assert [str(file) for file in files if not (installed / place / file).is_file()] == []
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
