"""The Slurm script: what it runs on each node, with Slurm's own commands replaced."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from d2e_sft.cli import d2e
from d2e_sft.paths import bundled

SCRIPT = bundled("launch") / "slurm" / "train.sbatch"
# As srun does: the command once a node, each with its number and its GPUs.
SRUN = """
while [[ $1 == --* ]]; do shift 2; done
for ((SLURM_NODEID = 0; SLURM_NODEID < SLURM_JOB_NUM_NODES; SLURM_NODEID++)); do
    export SLURM_NODEID
    "$@" || exit $?
done
"""


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder with stand-ins for srun, scontrol and d2e; the last writes down its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in (
        ("srun", SRUN),
        ("scontrol", 'seq -f "node-%g" 1 500'),
        ("d2e", 'echo "$#" "$@"'),
    ):
        (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def submit(
    commands: Path, *arguments: str, nodes: int = 2, gpus: str | None = "4"
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "70123",
        "SLURM_JOB_NODELIST": "node-[1-500]",
        "SLURM_JOB_NUM_NODES": str(nodes),
    }
    if gpus is not None:
        environment["SLURM_GPUS_ON_NODE"] = gpus
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("nodes", [1, 2])
def test_each_node_launches_once_with_its_number_and_its_gpus(commands: Path, nodes: int) -> None:
    run = submit(commands, "my recipe.yaml", "zero3", "d2e.alpha=0.7", "--resume", nodes=nodes)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "14 train my recipe.yaml d2e.alpha=0.7 --resume --launch zero3 --processes 4 "
        f"--machines {nodes} --machine-rank {rank} --main-address node-1:30123"
        for rank in range(nodes)
    ], "14 arguments: a blank in a name does not part it"


def test_it_uses_only_options_that_d2e_train_has(commands: Path) -> None:
    words = submit(commands, "recipe.yaml", "zero3").stdout.splitlines()[0].split()[1:]
    train = d2e.get_command(None, "train")  # type: ignore[arg-type]
    known = {name for parameter in train.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_a_call_without_launcher_shows_the_usage(commands: Path) -> None:
    run = submit(commands, "recipe.yaml")
    assert run.returncode == 2
    assert "usage: sbatch" in run.stderr


def test_a_node_without_gpus_is_an_error(commands: Path) -> None:
    run = submit(commands, "recipe.yaml", "zero3", gpus=None)
    assert run.returncode != 0
    assert "no GPUs on this node" in run.stderr
