"""What starts runs on clusters: Slurm, accelerate's configurations, and LLaMA-Factory."""

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

from d2e_sft.config.recipe import load_recipe
from d2e_sft.data.sample import write_samples
from d2e_sft.train.launch import launchers
from d2e_sft.util.paths import bundled
from tests.command import output_of, verbs
from tests.tiny import make_sample

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
    words = run.stdout.splitlines()[0].split()
    known = {name for parameter in verbs()["train",].params for name in parameter.opts}
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
def test_a_job_started_again_continues(commands: Path, restarts: int, given: list[str], passed_on: str) -> None:
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
    # srun that is sent SIGTERM kills what it runs; scancel signals the tasks, which save and end with 75.
    bodies = {
        "srun": "trap 'kill -KILL $!; exit 137' TERM\nd2e &\necho $! > $REQUEUED.task\nwait $!",
        "scancel": '[ "$*" = "--signal=TERM 70123" ] && kill -TERM $(cat $REQUEUED.task)',
        "d2e": "trap 'kill $!; exit 75' TERM\nsleep 60 &\ntouch $REQUEUED.started\nwait",
    }
    for name, body in bodies.items():
        (commands / name).write_text(f"#!/usr/bin/env bash\n{body}\n", encoding="utf-8")
        (commands / name).chmod(0o755)
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
def sky_job() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((bundled("launch") / "sky" / "train.yaml").read_text("utf-8"))
    return loaded


def test_the_sky_job_runs_on_spot_machines_and_recovers_into_a_bucket(sky_job: dict[str, Any]) -> None:
    assert {"name", "resources", "num_nodes", "envs", "file_mounts", "setup", "run"} <= sky_job.keys()
    assert sky_job["resources"]["use_spot"] is True
    assert sky_job["resources"]["job_recovery"]["strategy"] == "EAGER_NEXT_REGION"
    assert sky_job["file_mounts"]["/bucket"] == {"name": "${D2E_BUCKET}", "mode": "MOUNT_CACHED"}
    assert 'train.output_dir="/bucket/runs/' in sky_job["run"], "checkpoints outlive the machine"


def test_the_sky_jobs_command_is_one_that_d2e_takes(sky_job: dict[str, Any], tmp_path: Path) -> None:
    bin_folder = tmp_path / "d2e" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "d2e").write_text('#!/usr/bin/env bash\necho "$@"\n', encoding="utf-8")
    (bin_folder / "d2e").chmod(0o755)
    script = sky_job["run"].replace("/bucket", str(tmp_path / "bucket"))
    (tmp_path / "piper-10k").mkdir()
    (tmp_path / "piper-10k" / "train.parquet").write_text("rows")
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "SKYPILOT_NUM_GPUS_PER_NODE": "8",
        **sky_job["envs"],
    }
    first, second = (
        subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    build, train = first.splitlines()
    assert build.startswith("data build --suite piper-10k")
    assert second.splitlines() == [train], "the data are built once"
    words = train.split()
    assert words[:2] == ["train", sky_job["envs"]["RECIPE"]]
    assert "--auto-resume" in words
    assert words[words.index("--launch") + 1] in launchers()
    load_recipe(words[1], [word for word in words[2:] if "=" in word])
    for line, verb in ((train, ("train",)), (build, ("data", "build"))):
        known = {name for parameter in verbs()[verb].params for name in parameter.opts}
        assert {word for word in line.split() if word.startswith("--")} <= known


FILE = bundled("launch") / "llama-factory" / "sft.yaml"
GPUS = 8


def test_it_has_the_hyper_parameters_of_the_recipe() -> None:
    theirs, recipe = yaml.safe_load(FILE.read_text("utf-8")), load_recipe("qwen1.5-7b-chat/sft")
    ours = recipe.train
    assert theirs["model_name_or_path"] == recipe.model.name
    assert theirs["cutoff_len"] == recipe.data.max_length
    assert theirs["warmup_ratio"] == ours.warmup_steps
    batch = GPUS * theirs["per_device_train_batch_size"] * theirs["gradient_accumulation_steps"]
    assert batch == ours.batch_size == 64
    for key in ("learning_rate", "num_train_epochs", "lr_scheduler_type", "fp16", "save_steps", "save_total_limit"):
        assert theirs[key] == getattr(ours, key), key


def test_its_dataset_is_the_one_that_the_export_describes(tmp_path: Path) -> None:
    write_samples([make_sample(i) for i in range(2)], tmp_path / "train.jsonl")
    output_of("data", "export", tmp_path / "train.jsonl", "--format", "llamafactory", "--out", tmp_path / "out")
    described = json.loads((tmp_path / "out" / "dataset_info.json").read_text("utf-8"))
    theirs = yaml.safe_load(FILE.read_text("utf-8"))
    assert theirs["dataset"] in described
    line = next(line for line in FILE.read_text("utf-8").splitlines() if "data export" in line)
    assert line.endswith(f"LLaMA-Factory/{theirs['dataset_dir']}")
