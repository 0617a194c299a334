"""Where things are, and that a user's own files never replace our packages."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from d2e_sft import cli
from d2e_sft.train import launch
from d2e_sft.util.errors import UserError
from d2e_sft.util.paths import ROOT, bundled, cache_dir, claim_packages, nearest_path, safe_environment
from eval.sweep.run import run_process

_HELP = ["-m", "d2e_sft.cli", "score", "--help"]  # of a verb of `eval`


@pytest.fixture
def crowded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder whose Python files all fail when they are imported."""
    (tmp_path / "data_builders").mkdir()
    for file in ("eval.py", "data_builders/__init__.py", "datasets.py", "yaml.py"):
        (tmp_path / file).write_text("raise SystemExit(f'imported {__file__}')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


@pytest.mark.parametrize("verb", ["score", "data"])
def test_d2e_is_found_by_python_m_beside_a_users_files(crowded: Path, verb: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "d2e_sft.cli", verb, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: d2e {verb}")


def test_processes_that_d2e_starts_do_not_look_in_the_working_folder(
    crowded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (crowded / "click.py").write_text("raise SystemExit('imported click.py')\n")  # before any line of ours could run
    assert subprocess.run([sys.executable, *_HELP], capture_output=True, check=False).returncode != 0
    assert launch.launch([sys.executable, *_HELP]) == 0
    log = crowded / "sweep.log"
    with (crowded / "lock").open("w") as lock, log.open("w") as output:
        assert run_process(["score", "--help"], output, lock.fileno(), os.environ) == 0, log.read_text()


def test_a_module_that_was_imported_in_place_of_ours_is_named_by_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = ModuleType("eval")
    theirs.__file__ = "/home/me/project/eval.py"
    monkeypatch.setitem(sys.modules, "eval", theirs)
    with pytest.raises(UserError, match=r"the name 'eval' is taken by /home/me/project/eval\.py; .*(.|\n)*rename"):
        cli.run(["score", "--help"])
    monkeypatch.delitem(sys.modules, "eval")
    claim_packages()
    assert Path(str(sys.modules["eval"].__file__)) == ROOT / "eval" / "__init__.py"


def test_a_clone_that_is_not_installed_stays_on_the_path_and_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    made = safe_environment({"PYTHONPATH": f"/mine{os.pathsep}", "X": "1"})
    assert made == {"PYTHONPATH": f"/mine{os.pathsep}{ROOT}", "PYTHONSAFEPATH": "1", "X": "1"}
    assert safe_environment(made) == made
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(ROOT)])
    assert safe_environment({}) == {"PYTHONSAFEPATH": "1"}


def test_a_path_with_one_misspelt_part_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine" / "old").mkdir(parents=True)
    (tmp_path / "mine" / "train.parquet").touch()
    for given in ("mien/train.parquet", "mine/trian.parquet"):
        assert nearest_path(tmp_path / given) == f" Did you mean {str(tmp_path / 'mine' / 'train.parquet')!r}?"
    (tmp_path / "minefile").touch()
    assert nearest_path(tmp_path / "mien") == f" Did you mean {str(tmp_path / 'mine')!r}?"
    for given in ("nofile", "mien/dev.parquet", "other/train.parquet", "mine/train.parquet/x"):
        assert nearest_path(tmp_path / given) == ""


def test_the_cache_and_what_travels_with_the_package_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("D2E_CACHE")
    assert cache_dir() == Path.home() / ".cache" / "d2e-sft"
    assert all(list(bundled(folder).rglob("*.yaml")) for folder in ("recipes", "launch"))
