"""`d2e lm-eval`: the harness, with this project's model and tasks."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
from lm_eval.tasks import TaskManager

from d2e_sft.cli import run
from eval.commands.lm_eval import TASKS
from tests.command import d2e, program
from tests.eval.lm_eval.rows import ROWS, save_rows
from tests.tiny import save_tiny_model


def test_the_command_runs_the_harness_with_this_model_and_these_tasks(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole command, as a user types it, without the harness's own tasks, which take seconds to list."""
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    folder = save_tiny_model(tmp_path / "model", seed=1)
    arguments = f"pretrained={folder},alpha=0.5,max_gen_toks=4"
    run([
        "lm-eval", "--model", "d2e", "--model_args", arguments, "--batch_size", "4", "--limit", "2",
        "--tasks", ",".join(ROWS), "--metadata", f"data={save_rows(tmp_path)}", "--apply_chat_template",
    ])  # fmt: skip
    printed = capfd.readouterr().out
    assert "|piper_temporal_tempreason|" in printed.replace(" ", "")
    assert "em_f1_mean" in printed


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        (["--tasks", "piper"], ["run", "--tasks", "piper", "--include_path", str(TASKS)]),
        (["ls", "tasks"], ["ls", "tasks", "--include_path", str(TASKS)]),
        (["run", "--include_path", "mine"], ["run", "--include_path", f"{TASKS}:mine"]),
    ],
)
def test_the_harness_finds_our_tasks(monkeypatch: pytest.MonkeyPatch, given: list[str], passed_on: list[str]) -> None:
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: None)
    monkeypatch.setattr(sys, "argv", ["d2e"])
    assert d2e("lm-eval", *given) == 0
    assert sys.argv == ["lm_eval", *passed_on]


def print_models() -> None:
    """Call the command, then name the classes of the harness's model `hf` and of `d2e`."""
    import lm_eval.__main__ as harness
    from lm_eval.api.registry import get_model

    harness.cli_evaluate = lambda: None
    run(["lm-eval", "--model", "hf"])
    print(get_model("hf").__name__, get_model("d2e").__name__)


def test_the_harness_keeps_its_own_models(tmp_path: Path) -> None:
    """In a process of its own, as the harness registers models once a process."""
    ended = program(tmp_path, f"{__name__}:print_models")
    assert ended.printed.split()[-2:] == ["HFLM", "D2ELM"], ended.printed[-2000:]
