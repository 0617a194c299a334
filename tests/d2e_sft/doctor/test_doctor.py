"""`d2e doctor` on simulated machines: findings with a remedy, the exit status, and JSON."""

import json
import shutil
import socket
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from d2e_sft.doctor import machine, run
from d2e_sft.doctor.run import Finding, check_network, check_storage, check_versions
from d2e_sft.train import launch
from tests.command import call, output_of
from tests.factories import ScriptedServer
from tests.servers import free_port

TOPICS = ["versions", "devices", "precision", "attention", "launchers", "storage", "network", "environment"]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("SLURM_JOB_ID", "MLFLOW_TRACKING_URI", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def named(found: Iterator[Finding] | list[Finding], name: str) -> Finding:
    return next(finding for finding in found if finding.name == name)


def test_every_topic_is_reported_and_problems_have_a_remedy() -> None:
    found = list(run.findings())
    assert list(dict.fromkeys(finding.topic for finding in found)) == TOPICS
    for finding in found:
        assert finding.value
        assert bool(finding.remedy) == (finding.status != "ok"), finding
    assert not [finding for finding in found if finding.status == "fail"], "the tests run here"


def test_a_check_that_breaks_is_a_failure_and_the_others_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Finding]:
        raise ImportError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(machine, "check_devices", broken)
    found = list(run.findings())
    assert list(dict.fromkeys(finding.topic for finding in found)) == TOPICS
    failed = [finding for finding in found if finding.status == "fail"]
    assert [finding.topic for finding in failed] == ["devices"]
    assert "libcudart.so.12" in failed[0].value


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_only_a_failure_changes_the_exit_status(status: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("cache", status, "full", "make room" if code else "", "disks")  # type: ignore[arg-type]
    monkeypatch.setattr(run, "findings", lambda: iter([finding]))
    called = call("doctor")
    assert called.status == code
    assert f"  {status:<5} cache            full" in called.out
    assert ("remedy: make room" in called.out) is bool(code)
    assert f"{int(status == 'ok')} ok" in called.out


def test_json_is_printed_alone_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "findings", lambda: iter([Finding("b", "warn", "c", "d", "a")]))
    expected = {
        "summary": {"warn": 1},
        "findings": [{"topic": "a", "name": "b", "status": "warn", "value": "c", "remedy": "d"}],
    }
    assert json.loads(output_of("doctor", "--json", "-")) == expected
    assert "no failures" in output_of("doctor", "--json", tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text()) == expected


def test_each_cuda_device_has_its_memory_and_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    gibibyte = 2**30
    free = {0: 79 * gibibyte, 1: 3 * gibibyte}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(name="H100", major=9, minor=0)
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (free[index], 80 * gibibyte))
    found = list(machine.check_devices())
    assert named(found, "cuda:0") == Finding("cuda:0", "ok", "H100, 80 GiB, compute capability 9.0")
    assert named(found, "cuda:1").status == "warn"
    assert "only 3.0 GiB free" in named(found, "cuda:1").value


def test_more_threads_than_cores_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    found = named(machine.check_devices(), "cpu")
    assert (found.status, found.remedy) == ("warn", "export OMP_NUM_THREADS=3")
    assert ", 3 of " in found.value
    assert found.value.endswith("; torch computes with 8 threads and AVX512 instructions")


def test_a_precision_is_ok_only_if_its_products_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        assert named(machine.check_precisions(), "bfloat16").status == "ok"
    monkeypatch.setattr(machine, "_TOLERANCE", {"bfloat16": 0, "float16": 0})
    for finding in machine.check_precisions():
        assert finding.status == "warn"
        assert "wrong by " in finding.value


def test_a_precision_without_a_kernel_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.Tensor.to

    def to(self: torch.Tensor, *wanted: Any) -> torch.Tensor:
        if torch.float16 in wanted:
            raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")
        return plain(self, *wanted)

    monkeypatch.setattr(torch.Tensor, "to", to)
    found = list(machine.check_precisions())
    assert "not implemented for 'Half'" in named(found, "float16").value
    assert named(found, "float16").status == "warn"


@pytest.mark.parametrize(("count", "fsdp2"), [(0, "warn"), (8, "ok")])
def test_each_launcher_is_tried(count: int, fsdp2: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (launch, machine):
        monkeypatch.setattr(module, "accelerators", lambda: count)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = list(machine.check_launchers())
    assert [finding.name for finding in found if finding.name in launch.launchers()] == launch.launchers()
    assert named(found, "ddp").status == "ok"
    assert named(found, "fsdp2").status == fsdp2
    assert named(found, "C++ compiler").status == named(found, "zero3-offload").status == "warn"


@pytest.mark.parametrize(
    ("environment", "found_devices", "status", "said"),
    [
        ({}, 0, "ok", "not on a Slurm cluster"),
        ({"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "4"}, 4, "ok", "job 7, 1 node, 4 GPUs on this one"),
        ({"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "4"}, 0, "warn", "but torch finds 0"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, 0, "warn", "2 nodes, no GPUs"),
    ],
)
def test_slurm_is_compared_with_torch(environment: dict[str, str], found_devices: int, status: str, said: str) -> None:
    finding = named(machine.slurm(environment, found_devices, can_submit=False), "slurm")
    assert finding.status == status
    assert said in finding.value


def test_a_login_node_and_a_requeued_job_are_reported() -> None:
    assert "sbatch launch/slurm/train.sbatch" in next(machine.slurm({}, 0, can_submit=True)).value
    environment = {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "1", "SLURM_RESTART_COUNT": "2"}
    assert named(machine.slurm(environment, 1, can_submit=True), "requeued").value == "2 times so far"


def test_a_cache_that_cannot_be_written_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "file" / "cache"))
    cache = named(check_storage(), "cache")
    assert cache.status == "fail"
    assert "not writable" in cache.value
    assert cache.remedy.startswith("set D2E_CACHE")


@pytest.mark.parametrize(("free", "status"), [(100 * 2**30, "ok"), (5 * 2**30, "warn"), (2**20, "fail")])
def test_disks_need_room(free: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert named(check_storage(), "working folder").status == status


def test_versions_are_those_that_are_installed_and_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"torch": "2.1.0", "transformers": "99.0", "wandb": "1.0"}

    def version(name: str) -> str:
        if name in installed:
            return installed[name]
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    wanted = ["torch>=2.9", "transformers>=5.19", "deepspeed>=0.18; extra == 'train-gpu'"]
    monkeypatch.setattr(metadata, "requires", lambda name: wanted)
    found = list(check_versions())
    assert (named(found, "torch").status, named(found, "torch").value) == ("warn", "2.1.0; expected >=2.9")
    assert named(found, "transformers").status == "ok"
    assert named(found, "peft").status == "fail"
    assert named(found, "deepspeed").status == "warn"
    assert "d2e-sft[train-gpu]" in named(found, "deepspeed").remedy
    assert named(found, "flash-attn").status == "ok", "nothing of d2e's needs it"


def test_services_are_asked_at_the_same_time_unless_the_environment_is_offline() -> None:
    closed = f"http://127.0.0.1:{free_port()}"
    with ScriptedServer(lambda path, request: (404, {})) as server, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # accepts connections and never answers
        silent = f"http://127.0.0.1:{listening.getsockname()[1]}"
        environment = {"HF_ENDPOINT": silent, "WANDB_BASE_URL": server.url, "MLFLOW_TRACKING_URI": closed}
        started = time.monotonic()
        found = list(check_network(environment, seconds=1))
        assert time.monotonic() - started < 3
    assert [finding.status for finding in found] == ["warn", "ok", "warn"]
    assert named(found, "mlflow").remedy == "start the server, or correct MLFLOW_TRACKING_URI"
    environment = {"TRANSFORMERS_OFFLINE": "true", "HF_HUB_OFFLINE": "0", "WANDB_MODE": "disabled"}
    found = list(check_network(environment))
    assert [finding.value for finding in found] == [
        "not asked: TRANSFORMERS_OFFLINE=true",
        "not asked: WANDB_MODE=disabled",
    ]
