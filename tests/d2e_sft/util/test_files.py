"""Files are written whole, locks are held by one process, paths are checked, and archives are encrypted."""

import base64
import errno
import multiprocessing
import os
import signal
import site
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from d2e_sft import cli
from d2e_sft.train import launch
from d2e_sft.util.encrypted_zip import PASSWORD, member_names, read_encrypted, write_encrypted
from d2e_sft.util.errors import UserError, is_disk_full
from d2e_sft.util.files import (
    load_yaml,
    object_with_unique_keys,
    put_folder,
    replacing,
    replacing_folder,
    write_json,
    write_whole,
)
from d2e_sft.util.locks import LOCK_FILE, file_lock, temporary_folder
from d2e_sft.util.paths import ROOT, claim_packages, safe_environment
from eval.sweep.run import run_process


def test_a_file_is_replaced_in_one_piece_or_stays_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.txt"
    write_whole(target, "one\n")
    with pytest.raises(FileNotFoundError), replacing(target) as partial:
        partial.write_text("tw", encoding="utf-8") and (tmp_path / "missing").read_text(encoding="utf-8")
    with replacing(target) as partial:
        partial.write_text("two\n", encoding="utf-8")
        assert target.read_text(encoding="utf-8") == "one\n"
    assert target.read_text(encoding="utf-8") == "two\n"
    write_json(target, {"name": "D²E"})
    assert target.read_text(encoding="utf-8") == '{\n  "name": "D²E"\n}\n'
    assert [path.name for path in target.parent.iterdir()] == ["a.txt"]


def test_a_folder_takes_its_place_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "model"
    with pytest.raises(FileNotFoundError), replacing_folder(target) as partial:
        (partial / "half").write_text("half") and (tmp_path / "missing").read_text(encoding="utf-8")
    assert list(target.parent.iterdir()) == []
    with replacing_folder(target) as partial:
        (partial / "weights").write_text("whole")
        assert not target.exists()
    assert [path.name for path in target.parent.iterdir()] == ["model"]
    assert (target / "weights").read_text() == "whole"
    assert target.stat().st_mode & 0o777 == 0o755
    with pytest.raises(OSError, match="not empty"), replacing_folder(target):
        write_whole(target / "other", "another process was quicker")
    with pytest.raises(FileNotFoundError), replacing_folder(target, overwrite=True):
        (tmp_path / "missing").read_text(encoding="utf-8")
    assert (target / "weights").read_text() == "whole"
    with replacing_folder(target, overwrite=True) as partial:
        (partial / "weights").write_text("new")
    assert [*target.parent.rglob("*")] == [target, target / "weights"]


def test_a_folder_that_cannot_be_replaced_stays(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "weights").write_text("old")
    with pytest.raises(FileNotFoundError):
        put_folder(tmp_path / "missing", target, overwrite=True)
    assert (target / "weights").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_several_threads_may_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "reply"
    with replacing(path, shared=True) as first, replacing(path, shared=True) as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b:\n  a: 1\n  a: 2", "line 3: the key 'a' is given twice"),
        ("a: " + "[" * 20_000, "nests too deeply"),
        (f"a: {'9' * 5_000}", "digits"),
        ('a: 1\nb: ["half \\ud800"]', "line 2: contains a lone surrogate"),
    ],
)
def test_bad_yaml_is_one_kind_of_error(text: str, message: str) -> None:
    with pytest.raises(yaml.YAMLError, match=message):
        load_yaml(text)
    assert load_yaml("a: &a {x: 1}\nb: [*a, *a]") == {"a": {"x": 1}, "b": [{"x": 1}, {"x": 1}]}


def test_a_key_given_twice_is_found_among_many() -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match="'k49999' is given twice"):
        object_with_unique_keys([*((f"k{i}", i) for i in range(50_000)), ("k49999", 0)])
    assert time.process_time() - started < 1


def test_devices_are_written_to() -> None:
    write_whole(Path("/dev/null"), "content")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OSError, match="No space left") as caught:
        write_whole(Path("/dev/full"), "content")
    assert is_disk_full(caught.value)
    assert Path("/dev/full").is_char_device()


def _hold(folder: Path, ready: Any) -> None:
    with file_lock(folder, "another one", "wait"):
        ready.set()
        signal.pause()


def _work(parent: Path, ready: Any) -> None:
    with temporary_folder(parent, ".work-") as folder:
        (folder / "half").touch()
        ready.set()
        signal.pause()


@contextmanager
def killed(target: Any, folder: Path) -> Iterator[int]:
    """Give the id of a process that is at work in a folder, and kill it when the block is left."""
    forks = multiprocessing.get_context("fork")
    ready = forks.Event()
    process = forks.Process(target=target, args=(folder, ready))
    process.start()
    assert ready.wait(30)
    yield process.pid or 0
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()


def test_the_second_is_refused_with_the_process_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    with killed(_hold, tmp_path / "run") as process:
        second = file_lock(tmp_path / "run", "another one", "wait")
        with pytest.raises(UserError, match=rf"another one is at work there \(process {process} on "):
            second.__enter__()
    assert (tmp_path / "run" / LOCK_FILE).exists(), "its file is no lock"
    with file_lock(tmp_path / "run", "another one", "wait"):
        pass
    assert not (tmp_path / "run" / LOCK_FILE).exists()


def test_folders_that_stay_empty_go_and_others_stay(tmp_path: Path) -> None:
    with file_lock(tmp_path / "a" / "b", "another", "wait"):
        pass
    assert not (tmp_path / "a").exists()
    with file_lock(tmp_path / "a" / "b", "another", "wait"):
        (tmp_path / "a" / "b" / "result").touch()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["result"]


def test_a_temporary_folder_is_removed_only_once_its_process_was_killed(tmp_path: Path) -> None:
    with killed(_work, tmp_path / "out"):
        [used] = (tmp_path / "out").iterdir()
        with temporary_folder(tmp_path / "out", ".work-") as own:
            assert {*(tmp_path / "out").iterdir()} == {used, own}, "the other process is at work in its own"
    assert [*(tmp_path / "out").iterdir()] == [used]
    (tmp_path / "out" / ".work-link").symlink_to(tmp_path)
    with temporary_folder(tmp_path / "out", ".work-", is_leftover=lambda folder: False):
        assert used.is_dir()
    with temporary_folder(tmp_path / "out", ".work-"):
        assert not used.exists()
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".work-link"], "a link is not followed"
    assert tmp_path.is_dir()


def test_temporary_folders_need_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    (tmp_path / ".work-other").mkdir()
    with temporary_folder(tmp_path, ".work-") as own:
        (own / "half").touch()
    assert [path.name for path in tmp_path.iterdir()] == [".work-other"], "it may be in use"


# `zip -P iamnotaLM` of a file "old/test.jsonl" that holds the line `{"row": 1}`: the older ZipCrypto.
ZIP_CRYPTO = base64.b64decode(
    "UEsDBAoACQAAAOpadl1xylddFwAAAAsAAAAOABwAb2xkL3Rlc3QuanNvbmxVVAkAA6fQAmun0AJrdXgLAAEEAAAAAAQAAAAADx1f"
    "Ddi3foV9ml/JljSX95fsdfve369QSwcIccpXXRcAAAALAAAAUEsBAh4DCgAJAAAA6lp2XXHKV10XAAAACwAAAA4AGAAAAAAAAQAA"
    "AKSBAAAAAG9sZC90ZXN0Lmpzb25sVVQFAAOn0AJrdXgLAAEEAAAAAAQAAAAAUEsFBgAAAAABAAEAVAAAAG8AAAAAAA=="
)


def test_what_is_written_is_read_with_the_password_alone(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "boxes.zip"
    write_encrypted(path, {"train.jsonl": ["one", "zwei ü"], "test.jsonl": ["three"]})
    assert member_names(path) == ["train.jsonl", "test.jsonl"]
    assert read_encrypted(path, "train.jsonl") == "one\nzwei ü\n"
    assert b"zwei" not in path.read_bytes()
    with pytest.raises(UserError, match=r"train\.jsonl cannot be read"):
        read_encrypted(path, "train.jsonl", password="guess")
    with zipfile.ZipFile(path) as archive, pytest.raises((RuntimeError, NotImplementedError)):
        archive.read("train.jsonl")


def test_archives_of_the_older_encryption_are_read_and_others_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.zip"
    path.write_bytes(ZIP_CRYPTO)
    assert read_encrypted(path, "old/test.jsonl", PASSWORD) == '{"row": 1}\n'
    with pytest.raises(UserError, match=r"b\.jsonl cannot be read"):
        read_encrypted(path, "b.jsonl")
    path.write_text("<html>")
    with pytest.raises(UserError, match="not a zip archive"):
        member_names(path)


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


def test_started_processes_do_not_look_in_the_working_folder(crowded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
