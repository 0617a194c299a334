"""`d2e train --launch`: the command it composes, what it refuses, and that the processes it starts train."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from d2e_sft import cli
from d2e_sft.train import launch
from d2e_sft.train.launch import launch_command, launchers
from d2e_sft.util.errors import UserError
from d2e_sft.util.paths import bundled
from tests.command import finish, launched, program, start
from tests.factories import losses, write_recipe
from tests.servers import free_port

ROOT = Path(cli.__file__).parents[1]
ON_CPU = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def recipe(world: Path, tmp_path: Path) -> Path:
    keys = ("max_steps=1", "batch_size=8", "per_device_train_batch_size=8")
    return write_recipe(world, tmp_path / "run", *(f"train.{key}" for key in keys))


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


@pytest.mark.parametrize("name", launchers())
def test_configurations_are_what_their_names_say_and_leave_the_rest_to_the_recipe(name: str) -> None:
    config = configuration(name)
    assert config["mixed_precision"] == "no", "the recipe's precision takes its place"
    deepspeed = config.get("deepspeed_config", {})
    assert {value for key, value in deepspeed.items() if key.startswith("gradient")} <= {"auto"}
    assert not any("batch" in key for key in deepspeed)
    if name.startswith("zero"):
        stage, on_host = int(name[4]), "cpu" if name.endswith("offload") else "none"
        assert deepspeed["zero_stage"] == stage
        assert deepspeed["offload_optimizer_device"] == on_host
        assert deepspeed["offload_param_device"] == (on_host if stage == 3 else "none")
        assert deepspeed.get("zero3_save_16bit_model", False) == (stage == 3), "else a run folder holds no whole model"
        assert deepspeed["deepspeed_multinode_launcher"] == "standard", "the others ask for ssh between the machines"


def configuration(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((bundled("launch") / "accelerate" / f"{name}.yaml").read_text("utf-8"))
    return loaded


def test_the_command_runs_accelerate_in_this_python_on_all_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "accelerators", lambda: 8)
    command = launch_command("zero3", ["recipe.yaml", "d2e.alpha=0.7", "--resume"], processes=4)
    assert command[:3] == [sys.executable, "-m", "d2e_sft.train.launch"]
    assert option(command, "--config_file") == str(bundled("launch") / "accelerate" / "zero3.yaml")
    assert option(command, "--num_processes") == "4"
    assert command[-5:] == ["-m", "d2e_sft.train", "recipe.yaml", "d2e.alpha=0.7", "--resume"]
    assert option(launch_command("ddp", ["recipe.yaml"]), "--num_processes") == "8", "one per accelerator"
    command = launch_command("zero3", ["r"], machines=2, machine_rank=1, main_address="node-1:29500")
    names = ("--num_processes", "--num_machines", "--machine_rank", "--main_process_ip", "--main_process_port")
    assert [option(command, name) for name in names] == ["16", "2", "1", "node-1", "29500"]


@pytest.mark.parametrize(
    ("name", "place", "accelerators", "said"),
    [
        (
            "zero2",
            {"processes": 2},
            0,
            "needs DeepSpeed, which is not installed\n  remedy: pip install 'd2e-sft[train-",
        ),
        ("fsdp2", {"processes": 2}, 0, "needs GPUs"),
        ("ddp", {}, 0, "add --processes N"),
        ("ddp", {"processes": 9}, 8, "this machine has 8 accelerators"),
        ("ddp", {"processes": 2, "machines": 2, "machine_rank": 2}, 0, "--machine-rank 2: expected 0 to 1"),
        ("ddp", {"processes": 2, "machines": 2}, 0, "--main-address (not given): expected HOST:PORT"),
        ("ddp", {"processes": 2, "machines": 2, "main_address": "host"}, 0, "--main-address host: expected HOST"),
    ],
)
def test_what_cannot_be_launched_is_refused(
    name: str, place: dict[str, Any], accelerators: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "accelerators", lambda: accelerators)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as refused:
        launch_command(name, ["recipe.yaml"], **place)
    assert said in str(refused.value)


def test_the_launchers_exit_status_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch.launch([sys.executable, "-c", "raise SystemExit(7)"]) == 7
    assert "SystemExit(7)" in capfd.readouterr().out, "the command is printed"
    assert launch.launch([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) == 128 + 9


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("print('d2e: error: mend it', file=sys.stderr); sys.exit(1)", 1, r"process \d exited with status 1; its"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, r"error: process \d was ended by SIGKILL; most often the ma"),
    ],
)
def test_a_failed_process_is_named_below_what_it_said(tmp_path: Path, end: str, status: int, said: str) -> None:
    script = tmp_path / "work.py"
    script.write_text(f"import os, signal, sys\n{end}\n", encoding="utf-8")
    *launcher, _, _ = launch_command("ddp", [], processes=2)  # up to what it launches, `-m d2e_sft.train`
    ended = program(tmp_path, f"{launcher[2]}:main", *launcher[3:], script, CUDA_VISIBLE_DEVICES="")
    assert ended.status == status
    assert re.search(said, ended.printed), ended.printed
    assert "Traceback" not in ended.printed
    assert "elastic" not in ended.printed


def test_two_machines_meet_and_train_together(recipe: Path, tmp_path: Path) -> None:
    arguments = [
        recipe, "--launch", "zero2", "--processes", "1", "--machines", "2",
        "--main-address", f"127.0.0.1:{free_port()}", "--machine-rank",
    ]  # fmt: skip
    # The first machine's launcher and worker are started as a user's are; the second's are forked.
    machines = [start(tmp_path, [*arguments, "0"], None, ON_CPU), launched(tmp_path, "train", *arguments, "1")]
    first, second = (finish(machine, timeout=300) for machine in machines)
    assert (first.status, second.status) == (0, 0), (first, second)
    assert "batch 8 on 2 processes" in first.printed
    said = "micro-batches of 4, not train.per_device_train_batch_size=8: each process gets 4 samples of a batch"
    assert said in first.printed
    assert "trained: " in first.printed
    assert "trained: " not in second.printed, "said once, by the first process of all"
    assert len(losses(recipe.parent / "run")) == 1


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("ACCELERATE_USE_DEEPSPEED", "true", "DeepSpeed was asked for .*, but training would run as NO"),
        ("ACCELERATE_USE_FSDP", "true", "accelerate ignores FSDP"),
        ("WORLD_SIZE", "2", "2 processes were launched, but training sees 1"),
        ("MASTER_ADDR", "127.0.0.1", r"MASTER_ADDR is set but WORLD_SIZE is not[\s\S]*unset MASTER_ADDR"),
    ],
)
def test_other_processes_are_refused(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str) -> None:
    from d2e_sft.util.distributed import process_state

    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    assert process_state().num_processes == 1
    monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match=said):
        process_state()


def test_a_script_whose_deepspeed_accelerate_ignores_is_refused(tmp_path: Path) -> None:
    script = (
        "from d2e_sft import D2EConfig; D2EConfig('run', bf16=False, deepspeed={'zero_optimization': {'stage': 2}})"
    )
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    of_launcher = {**os.environ, **ranks, "MASTER_PORT": str(free_port()), "CUDA_VISIBLE_DEVICES": ""}
    command, of_launcher["ACCELERATE_USE_CPU"] = [sys.executable, "-c", script], "true"
    ended = subprocess.run(command, cwd=tmp_path, env=of_launcher, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert re.search("UserError: DeepSpeed was asked for .*, but training would run as MULTI_CPU", ended.stderr)


def test_bfloat16_under_deepspeed_needs_an_accelerator(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from d2e_sft.config.recipe import load_recipe
    from d2e_sft.train.prepare import precision_for

    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    assert precision_for(load_recipe(recipe, ["train.bf16=null"])) == "float32"
    with pytest.raises(UserError, match="DeepSpeed without an accelerator trains in float32 only"):
        precision_for(load_recipe(recipe, ["train.bf16=true"]))
