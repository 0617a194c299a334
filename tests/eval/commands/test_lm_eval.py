"""`d2e lm-eval`: the harness, with this project's model and tasks."""

import json
from functools import partial
from pathlib import Path

import pytest
from lm_eval.tasks import TaskManager

from d2e_sft.cli import run
from tests.command import program
from tests.eval.lm_eval.rows import ROWS, save_rows
from tests.tiny import save_tiny_model


def test_the_command_runs_the_harness_with_this_model_and_these_tasks(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole command, as a user types it, without the harness's own tasks, which take seconds to list."""
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    folder = save_tiny_model(tmp_path / "model", seed=1)
    own = {"task": "mine", "dataset_path": "json", "test_split": "test", "output_type": "multiple_choice"}
    own |= {"dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}}, "doc_to_choice": ["a", "b"]}
    own |= {"doc_to_text": "{{q}}", "doc_to_target": "{{a}}", "metric_list": [{"metric": "acc"}]}
    (tmp_path / "own").mkdir()
    (tmp_path / "own/mine.yaml").write_text(json.dumps(own))
    (tmp_path / "rows.jsonl").write_text('{"q": "a or b?", "a": 1}\n' * 2)
    arguments = f"pretrained={folder},alpha=0.5,max_gen_toks=4"
    run([
        "lm-eval", "--model", "d2e", "--model_args", arguments, "--batch_size", "4", "--limit", "2",
        "--tasks", ",".join([*ROWS, "mine"]), "--include_path", str(tmp_path / "own"),
        "--metadata", f"data={save_rows(tmp_path)}", "--apply_chat_template",
    ])  # fmt: skip
    printed = capfd.readouterr().out
    assert "|piper_temporal_tempreason|" in printed.replace(" ", "")
    assert "em_f1_mean" in printed
    assert "|mine|" in printed.replace(" ", ""), "a task of the user's own"


def test_another_verb_of_the_harness_lists_these_tasks(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    run(["lm-eval", "ls", "subtasks"])
    assert "piper_temporal_tempreason" in capfd.readouterr().out


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
