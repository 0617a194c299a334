"""The files of launch/: shapes that plain `accelerate launch` takes, and the SkyPilot job."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

from d2e_sft.config.recipe import load_recipe
from d2e_sft.train.launch import launchers
from d2e_sft.util.paths import bundled
from tests.command import verbs

ACCELERATE = bundled("launch") / "accelerate"
SHAPES = sorted(file.stem for file in (ACCELERATE / "shapes").glob("*.yaml"))
# What only a shape says; all else is its launcher's.
OF_A_SHAPE = {"num_processes", "num_machines", "machine_rank", "main_process_port", "rdzv_backend", "same_network"}


def content(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ACCELERATE / f"{name}.yaml").read_text("utf-8"))
    return loaded


def test_there_is_a_shape_for_one_eight_and_two_times_eight_gpus() -> None:
    engines = ("ddp", "fsdp2", "zero2", "zero3")
    assert set(SHAPES) == {"1-gpu", *(f"{gpus}-gpu-{name}" for gpus in ("8", "2x8") for name in engines)}


@pytest.mark.parametrize("name", launchers())
def test_accelerate_reads_the_file_of_each_launcher(name: str) -> None:
    load_config_from_file(str(ACCELERATE / f"{name}.yaml"))


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "1-gpu"])
def test_a_shape_differs_from_its_launcher_only_in_its_numbers(shape: str) -> None:
    own, launcher = content(f"shapes/{shape}"), content(shape.rpartition("-")[2])
    assert {key: value for key, value in own.items() if key not in OF_A_SHAPE} == {
        key: value for key, value in launcher.items() if key not in OF_A_SHAPE
    }
    comment = (ACCELERATE / "shapes" / f"{shape}.yaml").read_text("utf-8")
    assert f"--config_file launch/accelerate/shapes/{shape}.yaml" in comment, "the command is the file's own"


@pytest.mark.parametrize("shape", SHAPES)
def test_accelerate_launch_takes_the_command_that_a_shape_shows(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ACCELERATE / "shapes" / f"{shape}.yaml").read_text("utf-8")
    command = text[text.index("accelerate launch") :].split("\ncompute")[0].split("\n# The same")[0]
    words = shlex.split(command.replace("\\\n#", " ").replace("HOST-OF-0", "node-1").replace("RECIPE", "recipe.yaml"))
    words = ["1" if word == "R" else word for word in words]
    assert words[:2] == ["accelerate", "launch"]
    monkeypatch.chdir(bundled("launch").parent)
    arguments, *_ = _validate_launch_command(launch_command_parser().parse_args(words[2:]))
    assert (arguments.training_script, arguments.training_script_args) == ("d2e_sft.train", ["recipe.yaml"])
    machines, gpus = (2, 16) if shape.startswith("2x8") else (1, int(shape[0]))
    assert (arguments.num_machines, arguments.num_processes) == (machines, gpus)
    if machines == 2:
        assert (arguments.machine_rank, arguments.main_process_ip, arguments.main_process_port) == (1, "node-1", 29500)
    assert arguments.multi_gpu is shape.endswith("ddp")
    assert arguments.use_fsdp is shape.endswith("fsdp2")
    assert arguments.use_deepspeed is ("zero" in shape)


@pytest.fixture
def job() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((bundled("launch") / "sky" / "train.yaml").read_text("utf-8"))
    return loaded


def test_the_sky_job_runs_on_spot_machines_and_recovers_into_a_bucket(job: dict[str, Any]) -> None:
    assert {"name", "resources", "num_nodes", "envs", "file_mounts", "setup", "run"} <= job.keys()
    assert job["resources"]["use_spot"] is True
    assert job["resources"]["job_recovery"]["strategy"] == "EAGER_NEXT_REGION"
    assert job["file_mounts"]["/bucket"] == {"name": "${D2E_BUCKET}", "mode": "MOUNT_CACHED"}
    assert 'train.output_dir="/bucket/runs/' in job["run"], "checkpoints outlive the machine"


def test_the_sky_jobs_command_is_one_that_d2e_takes(job: dict[str, Any], tmp_path: Path) -> None:
    bin_folder = tmp_path / "d2e" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "d2e").write_text('#!/usr/bin/env bash\necho "$@"\n', encoding="utf-8")
    (bin_folder / "d2e").chmod(0o755)
    script = job["run"].replace("/bucket", str(tmp_path / "bucket"))
    (tmp_path / "piper-10k").mkdir()
    (tmp_path / "piper-10k" / "train.parquet").write_text("rows")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SKYPILOT_NUM_GPUS_PER_NODE": "8", **job["envs"]}
    first, second = (
        subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    build, train = first.splitlines()
    assert build.startswith("data build --suite piper-10k")
    assert second.splitlines() == [train], "the data are built once"
    words = train.split()
    assert words[:2] == ["train", job["envs"]["RECIPE"]]
    assert "--auto-resume" in words
    assert words[words.index("--launch") + 1] in launchers()
    load_recipe(words[1], [word for word in words[2:] if "=" in word])
    for line, verb in ((train, ("train",)), (build, ("data", "build"))):
        known = {name for parameter in verbs()[verb].params for name in parameter.opts}
        assert {word for word in line.split() if word.startswith("--")} <= known
