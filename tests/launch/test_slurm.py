"""The Slurm scripts: what they run on each node and when they requeue, with Slurm's own commands replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import click
import pytest

from d2e_sft.cli import d2e
from d2e_sft.util.paths import bundled

SLURM = bundled("launch") / "slurm"
SCRIPT, EVAL_SCRIPT = SLURM / "train.sbatch", SLURM / "eval.sbatch"
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
        ("scontrol", 'if [ "$1" = show ]; then seq -f "node-%g" 1 500; else echo scontrol "$@" >> "$REQUEUED"; fi'),
        ("d2e", 'echo "$#" "$@"'),
    ):
        (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def job(commands: Path, *, nodes: int = 2, gpus: str | None = "4", restarts: int = 0) -> dict[str, str]:
    """The environment that Slurm gives a job."""
    environment = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "REQUEUED": str(commands / "requeued"),
        "SLURM_JOB_ID": "70123",
        "SLURM_JOB_NODELIST": "node-[1-500]",
        "SLURM_JOB_NUM_NODES": str(nodes),
    }
    if gpus is not None:
        environment["SLURM_GPUS_ON_NODE"] = gpus
    if restarts:
        environment["SLURM_RESTART_COUNT"] = str(restarts)
    return environment


def submit(
    commands: Path, *arguments: str, script: Path = SCRIPT, **settings: object
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(script), *arguments],
        env=job(commands, **settings),  # type: ignore[arg-type]
        capture_output=True,
        text=True,
        check=False,
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
    train = d2e.get_command(click.Context(d2e), "train")
    known = {name for parameter in train.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_a_call_without_launcher_and_a_node_without_gpus_are_errors(commands: Path) -> None:
    run = submit(commands, "recipe.yaml")
    assert (run.returncode, "usage: sbatch" in run.stderr) == (2, True)
    run = submit(commands, "recipe.yaml", "zero3", gpus=None)
    assert (run.returncode != 0, "no GPUs on this node" in run.stderr) == (True, True)


@pytest.mark.parametrize(
    ("restarts", "given", "passed_on"),
    [
        (0, ["--overwrite"], "--overwrite"),
        (1, ["d2e.alpha=0.7"], "--auto-resume d2e.alpha=0.7"),
        (1, ["--overwrite", "d2e.alpha=0.7"], "--auto-resume d2e.alpha=0.7"),
        (1, [], "--auto-resume"),
    ],
)
def test_a_job_that_is_started_again_continues_its_run(
    commands: Path, restarts: int, given: list[str], passed_on: str
) -> None:
    run = submit(commands, "recipe.yaml", "zero3", *given, nodes=1, restarts=restarts)
    assert run.returncode == 0, run.stderr
    assert f" train recipe.yaml {passed_on} --launch zero3 " in run.stdout


@pytest.mark.parametrize(
    ("script", "arguments"), [(SCRIPT, ["recipe.yaml", "zero3"]), (EVAL_SCRIPT, ["runs/x", "--suite", "piper"])]
)
@pytest.mark.parametrize(("restarts", "requeued"), [(0, True), (3, False)])
def test_near_the_time_limit_a_job_is_requeued_so_many_times(
    commands: Path, script: Path, arguments: list[str], restarts: int, requeued: bool
) -> None:
    # srun hands SIGTERM on to what it runs, which saves and ends with 75.
    body = "trap 'kill $!; exit 75' TERM\nd2e &\ntouch $REQUEUED.started\nwait\n"
    (commands / "srun").write_text(f"#!/usr/bin/env bash\n{body}", encoding="utf-8")
    (commands / "d2e").write_text("#!/usr/bin/env bash\nexec sleep 60\n", encoding="utf-8")
    environment = {**job(commands, nodes=1, restarts=restarts), "D2E_MAX_REQUEUES": "3"}
    process = subprocess.Popen(["bash", str(script), *arguments], env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not (commands / "requeued.started").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    _, said = process.communicate(timeout=60)
    written = commands / "requeued"
    assert (written.read_text() if written.exists() else "") == ("scontrol requeue 70123\n" if requeued else "")
    assert "the time limit is near" in said
    assert process.returncode == 75, "the status of the step, which has saved what it has"


@pytest.mark.parametrize("script", [SCRIPT, EVAL_SCRIPT])
def test_slurm_is_told_to_requeue_to_signal_the_script_and_to_keep_the_log(script: Path) -> None:
    lines = script.read_text("utf-8").splitlines()
    assert "#SBATCH --requeue" in lines
    assert any(line.startswith("#SBATCH --signal=B:USR1@") for line in lines)
    assert "#SBATCH --open-mode=append" in lines


def test_evaluation_uses_every_gpu_of_the_node(commands: Path) -> None:
    run = submit(commands, "runs/x", "--suite", "piper", "--overwrite", script=EVAL_SCRIPT, nodes=1)
    assert run.stdout == "9 eval runs/x --suite piper --overwrite --launch ddp --processes 4\n"
    again = submit(commands, "runs/x", "--suite", "piper", "--overwrite", script=EVAL_SCRIPT, nodes=1, restarts=1)
    assert again.stdout == "8 eval runs/x --suite piper --launch ddp --processes 4\n", "what was decoded is kept"
    refused = submit(commands, "runs/x", script=EVAL_SCRIPT)
    assert refused.returncode == 2
    assert "usage: sbatch" in refused.stderr
