"""Symbolic links in the place of outputs, locks and temporary files, and folders that cannot be written."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.frame import Attempt, attack
from tests.attack.test_disk import files_of, small_disk
from tests.command import call, d2e
from tests.factories import QUICK, bench_rows, make_world, write_recipe

# TO is where the command writes: a folder, or a file if an ending follows. IN is the world.
_WRITE = [
    "data build --datasets habit habit.train_samples=20 habit.test_samples=8 --overwrite --out TO",
    "data export IN/train.jsonl --format trl --overwrite --out TO",
    "data convert IN/train.jsonl TO.jsonl",
    "data show IN/train.jsonl --html TO.html",
    "predict IN/run IN/train.jsonl --max-new-tokens 2 --overwrite --out TO.csv",
    "export IN/run TO --overwrite",
    "eval IN/run --bench IN/bench --max-new-tokens 2 --out TO",
    "train IN/recipe.yaml train.max_steps=1 train.output_dir=TO",
    "report IN/run --out TO.html",
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A trained and evaluated run on a file system of its own, which can be made read-only."""
    folder = tmp_path_factory.mktemp("world")
    with small_disk(folder / "disk") as disk:
        made = make_world(disk / "made", train=4, bench=bench_rows(4))
        write_recipe(made, made / "recipe", "train.max_steps=1")
        assert d2e("train", made / "recipe.yaml", f"train.output_dir={made / 'run'}") == 0
        assert d2e("eval", made / "run", "--bench", made / "bench", "--out", made / "run", *QUICK) == 0
        yield made


def _called(world: Path, command: str, target: Path) -> int:
    """Run a command that may be refused, but only with a message of its own; the exit status."""
    words = [word.replace("IN/", f"{world}/").replace("TO", str(target)) for word in command.split()]
    called = call(*words)
    assert called.status in (0, 1), (command, called.err)
    assert called.status == 0 or "rror: " in called.err, (command, called.err)
    assert "Traceback" not in called.err, (command, called.err)
    assert "Errno" not in called.err, (command, called.err)
    return called.status


def _ending(command: str) -> str:
    return next(
        word.partition("TO")[2] for word in command.split() if word.partition("=")[2] == "TO" or word[:2] == "TO"
    )


@attack(
    "outputs that are links to elsewhere, to nothing or to themselves",
    "links",
    "the link stays and its target is written, or one message and nothing is written",
    tries=4,
)
def test_outputs(given: Attempt) -> None:
    kind = ("elsewhere", "nothing", "itself")[given.number % 3]
    for number, command in enumerate(_WRITE):
        place, ending = given.folder / str(number), _ending(command)
        link, target = place / f"out{ending}", place / ("out" if kind == "itself" else "target") / f"it{ending}"
        place.mkdir()
        link.symlink_to(link if kind == "itself" else target)
        target.parent.mkdir(exist_ok=True) if kind != "itself" else None
        if kind == "elsewhere":
            target.write_text("before") if ending else target.mkdir()
        before = files_of(place)
        status = _called(given.world, command, place / "out")
        assert link.is_symlink(), command
        if status:
            assert kind != "elsewhere", command
            assert files_of(place) == before, command
        else:
            assert files_of(target) if target.is_dir() else target.read_bytes() != b"before", command
    given.things = len(_WRITE)


@attack(
    "links in the place of locks and of files that are not complete yet",
    "links",
    "what they lead to is as it was, and the output is written",
    tries=4,
)
def test_planted(given: Attempt) -> None:
    victim = given.folder / "victim"
    for number, command in enumerate(_WRITE):
        ending = _ending(command)
        out = given.folder / str(number) / f"out{ending}"
        planted = (
            [out.with_name(f"{out.name}.partial")] if ending else [out / ".lock", out / "eval" / "bench" / ".lock"]
        )
        if "export" in command and not ending:
            planted = []  # to a folder that must be empty
        victim.write_text("precious")
        for link in planted:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(victim)
        assert _called(given.world, command, given.folder / str(number) / "out") == 0, command
        assert victim.read_text() == "precious", command
        assert not out.is_symlink(), command
    given.things = len(_WRITE)


@attack(
    "inputs, outputs and the cache on a read-only file system",
    "links",
    "read as elsewhere; outputs are refused with one message",
    tries=2,
)
def test_read_only(given: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = given.world.parent
    monkeypatch.setenv("D2E_CACHE", str(disk / "cache"))
    before = files_of(disk)
    _remount(disk, "ro")
    try:
        for number, command in enumerate(_WRITE):
            assert _called(given.world, command, given.folder / str(number)) == 0, command
            assert _called(given.world, command, disk / str(number)) == 1, command
    finally:
        _remount(disk, "rw")
    assert files_of(disk) == before
    given.things = 2 * len(_WRITE)


def _remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)
