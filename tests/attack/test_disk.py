"""A disk that becomes full: a small file system in memory with a random number of free bytes."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.attack.frame import Attempt, attack
from tests.attack.interrupted import prepare_training, same_weights
from tests.command import d2e, finish, start
from tests.factories import bench_rows, save_bench

INTACT = "a clear message; existing files are intact; works once there is space"

_MIB = 2**20
_SIZE = 24 * _MIB


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A file system of `_SIZE` bytes; skips if this user may not mount one."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(place)]
    if not sys.platform.startswith("linux") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root on Linux")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path, rest: int) -> Path:
    """Leave `rest` bytes free, and return the file that fills the others."""
    ballast = disk / "ballast"
    with ballast.open("wb") as out:
        out.write(bytes(max(0, shutil.disk_usage(disk).free - rest)))
    return ballast


def files_of(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def until_there_is_room(given: Attempt, command: Callable[[Path], list[str | Path]], most: int, before: str) -> Path:
    """Run a command on a full disk, where it must report that, and again with space; return a copy of its output.

    Args:
        most: upper limit of the free bytes.
        before: folder of the world with an earlier result, which must survive the failure; or empty.
    """
    with small_disk(given.folder / "disk") as disk:
        out = disk / "out"
        if before:
            shutil.copytree(given.world / before, out)
        had = files_of(out)
        rest = given.random.randrange(most)
        ballast = fill(disk, rest)
        verb, *arguments = command(out)
        ended = finish(start(given.folder, arguments, None, verb=str(verb)))
        if ended.status:
            said = " ".join(ended.printed.split())[-3000:]  # it is folded
            assert ended.status == 1, said
            assert "Traceback" not in said, said
            unfolded = " ".join(said.split())
            assert "o space left on device" in unfolded or "disk is full" in unfolded, said
            assert "remedy: " in said, said
            now = files_of(out)
            gone = [name for name, content in had.items() if now.get(name) != content]
            assert not gone, f"{gone} are not as they were ({rest} bytes were left)"
        ballast.unlink()
        if ended.status:
            again = ["--auto-resume"] if verb == "train" else []
            ended = finish(start(given.folder, [*arguments, *again], None, verb=str(verb)))
            assert ended.status == 0, ended.printed[-3000:]
        shutil.copytree(out, given.folder / "out")
    return given.folder / "out"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted training and evaluation, with an export and a report."""
    folder = tmp_path_factory.mktemp("world")
    prepare_training(folder)
    save_bench(folder / "bench", bench_rows(14))
    shutil.copytree(folder / "whole", folder / "run")
    assert d2e(*evaluation(folder, folder / "run")) == 0
    assert d2e("export", folder / "run", folder / "exported") == 0
    assert d2e(*report(folder, folder / "reported")) == 0
    return folder


def evaluation(world: Path, out: Path) -> list[str | Path]:
    quick = ("--max-new-tokens", "6", "--batch-size", "3")
    return ["eval", world / "whole", "--bench", world / "bench", "--out", out, *quick]


def report(world: Path, out: Path) -> list[str | Path]:
    return ["report", world / "run", "--out", out / "report.html"]


@attack("full disk while training", "disk", INTACT, tries=20)
def test_training(given: Attempt) -> None:
    def command(out: Path) -> list[str | Path]:
        return ["train", given.world / "recipe.yaml", f"train.output_dir={out}"]

    # The run takes two checkpoints of some 300 kB, and the model.
    same_weights(until_there_is_room(given, command, _MIB, ""), given.world / "whole")


@attack("full disk while evaluating", "disk", INTACT, tries=20)
def test_predictions(given: Attempt) -> None:
    out = until_there_is_room(given, lambda out: evaluation(given.world, out), 24 * 1024, "")
    name = "eval/bench/predictions.jsonl"
    assert (out / name).read_bytes() == (given.world / "run" / name).read_bytes()


@attack("full disk while a report is written", "disk", INTACT, tries=20)
def test_overwritten_report(given: Attempt) -> None:
    out = until_there_is_room(given, lambda out: report(given.world, out), 200 * 1024, "reported")
    assert (out / "report.html").stat().st_size


@attack("full disk while exporting", "disk", INTACT, tries=20)
def test_export(given: Attempt) -> None:
    out = until_there_is_room(given, lambda out: ["export", given.world / "run", out / "model"], 300 * 1024, "")
    assert files_of(out / "model") == files_of(given.world / "exported")


@attack("full disk while building data", "disk", INTACT, tries=20)
def test_data(given: Attempt) -> None:
    def command(out: Path) -> list[str | Path]:
        return ["data", "build", "--datasets", "habit", "--seed", "1", "--out", out, "--overwrite"]

    if not (given.world / "built").is_dir():
        assert d2e("data", "build", "--datasets", "habit", "--out", given.world / "built") == 0
        assert d2e(*command(given.world / "other")) == 0
    out = until_there_is_room(given, command, 400 * 1024, "built")
    for name in ("train.parquet", "test.parquet"):
        assert (out / name).read_bytes() == (given.world / "other" / name).read_bytes()
