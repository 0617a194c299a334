"""A build is written as a whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from d2e_sft.cli import main
from data_builders.commands import data


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(data, ["build", *map(str, arguments)])


def _error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["data", "build", *map(str, arguments)])
    assert stopped.value.code == 1
    return capsys.readouterr().err


def _tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["file", "in a file", "read-only"])
def test_a_target_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "file").write_text("")
    out = {"file": tmp_path / "file", "in a file": tmp_path / "file" / "out", "read-only": tmp_path}[kind]
    if kind == "read-only":  # the tests may run as a user whom no permission stops
        monkeypatch.setattr("data_builders.build.writing._writable", lambda _: False)
    message = _error(capsys, "--datasets", "no-such-dataset", "--out", out)
    assert "is a file; expected a folder" in message or "cannot be written; expected a folder" in message
    assert "--out" in message


def test_a_build_that_fails_while_writing_leaves_the_earlier_one_as_it_was(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert _run("--datasets", "tracie", "--raw", raw, "--out", out).exit_code == 0
    before = _tree(out)

    def disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device", "manifest.json")

    monkeypatch.setattr("data_builders.build.writing.manifest.write_manifest", disk_full)
    message = _error(capsys, "--datasets", "tracie", "--raw", raw, "--out", out, "--seed", "5")
    assert "manifest.json: cannot be written (No space left on device)" in message
    assert _tree(out) == before
