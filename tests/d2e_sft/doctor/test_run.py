"""`d2e doctor`: what each check finds, on machines that are made up, and what the command does with it."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from d2e_sft import cli
from d2e_sft.doctor import attentions, devices, launching, precisions, run, storage, versions
from d2e_sft.doctor.environment import slurm
from d2e_sft.doctor.finding import Finding
from d2e_sft.doctor.network import Service, ask, services
from d2e_sft.train import launch

TOPICS = ["versions", "devices", "precision", "attention", "launchers", "storage", "network", "environment"]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("SLURM_JOB_ID", "MLFLOW_TRACKING_URI", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def named(found: Iterator[Finding] | list[Finding], name: str) -> Finding:
    return next(finding for finding in found if finding.name == name)


def test_every_topic_is_reported_and_what_is_not_ok_has_a_remedy() -> None:
    found = list(run.findings())
    assert list(dict.fromkeys(finding.topic for finding in found)) == TOPICS
    for finding in found:
        assert finding.value
        assert bool(finding.remedy) == (finding.status != "ok"), finding
    assert not [finding for finding in found if finding.status == "fail"], "the tests themselves run here"


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_only_a_failure_changes_the_exit_status(
    status: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding("disks", "cache", status, "full", "make room" if code else "")  # type: ignore[arg-type]
    monkeypatch.setattr(run, "findings", lambda: iter([finding]))
    with pytest.raises(SystemExit) as stop:
        cli.main(["doctor"])
    assert stop.value.code == code
    printed = capsys.readouterr().out
    assert f"  {status:<5} cache            full" in printed
    assert ("remedy: make room" in printed) is bool(code)
    assert f"{int(status == 'ok')} ok" in printed


def test_json_is_printed_alone_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "findings", lambda: iter([Finding("a", "b", "warn", "c", "d")]))
    expected = {
        "summary": {"warn": 1},
        "findings": [{"topic": "a", "name": "b", "status": "warn", "value": "c", "remedy": "d"}],
    }
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--json", "-"])
    assert json.loads(capsys.readouterr().out) == expected
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--json", str(tmp_path / "found.json")])
    assert json.loads((tmp_path / "found.json").read_text()) == expected
    assert "no failures" in capsys.readouterr().out


def test_a_check_that_breaks_is_a_failure_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Finding]:
        raise ImportError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(devices, "check_devices", broken)
    found = list(run.findings())
    assert list(dict.fromkeys(finding.topic for finding in found)) == TOPICS
    failed = [finding for finding in found if finding.status == "fail"]
    assert [finding.topic for finding in failed] == ["devices"]
    assert "libcudart.so.12" in failed[0].value


def test_versions_are_those_that_are_installed_and_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"torch": "2.1.0", "transformers": "99.0", "wandb": "1.0"}

    def version(name: str) -> str:
        if name in installed:
            return installed[name]
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    wanted = ["torch>=2.9", "transformers>=5.19", "deepspeed>=0.18; extra == 'train-gpu'"]
    monkeypatch.setattr(metadata, "requires", lambda name: wanted)
    found = list(versions.check_versions())
    assert (named(found, "torch").status, named(found, "torch").value) == ("warn", "2.1.0; expected >=2.9")
    assert named(found, "transformers").status == "ok"
    assert named(found, "peft").status == "fail"
    assert named(found, "deepspeed").status == "warn"
    assert "d2e-sft[train-gpu]" in named(found, "deepspeed").remedy
    assert named(found, "flash-attn").status == "ok", "nothing of d2e's needs it"


def test_each_cuda_device_has_its_memory_and_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    gibibyte = 2**30
    free = {0: 79 * gibibyte, 1: 3 * gibibyte}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(name="H100", major=9, minor=0)
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (free[index], 80 * gibibyte))
    found = list(devices.check_devices())
    assert named(found, "cuda:0") == Finding("devices", "cuda:0", "ok", "H100, 80 GiB, compute capability 9.0")
    assert named(found, "cuda:1").status == "warn"
    assert "only 3.0 GiB free" in named(found, "cuda:1").value


def test_the_cpus_fast_instructions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_cpu_info", lambda: ("A CPU", {"avx2", "avx512f", "amx_bf16", "sse"}))
    monkeypatch.setattr(devices, "usable_cores", lambda: 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    found = list(devices.check_devices())
    assert named(found, "cpu").value.startswith("A CPU, 3 of ")
    assert named(found, "cpu").value.endswith("; AVX2, AVX512F, AMX_BF16")
    assert (named(found, "threads").status, named(found, "threads").remedy) == ("warn", "export OMP_NUM_THREADS=3")


def test_the_cpu_is_read_where_linux_says_it() -> None:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists() or "flags" not in cpuinfo.read_text():
        pytest.skip("no /proc/cpuinfo with flags here")
    _, flags = devices._cpu_info()
    line = next(line for line in cpuinfo.read_text().splitlines() if line.startswith("flags"))
    assert flags == set(line.split(":")[1].split())


def test_a_precision_is_believed_only_if_its_products_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        assert named(precisions.check_precisions(), "bfloat16").status == "ok"
    monkeypatch.setattr(precisions, "_error", lambda product, expected: 0.3)
    found = list(precisions.check_precisions())
    for name in ("bfloat16", "float16"):
        assert named(found, name).status == "warn"
        assert "wrong by 3e-01" in named(found, name).value


def test_a_precision_without_a_kernel_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = precisions._seconds

    def seconds(a: torch.Tensor, b: torch.Tensor) -> float:
        if a.dtype == torch.float16:
            raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")
        return measured(a, b)

    monkeypatch.setattr(precisions, "_seconds", seconds)
    found = list(precisions.check_precisions())
    assert "not implemented for 'Half'" in named(found, "float16").value
    assert named(found, "float16").status == "warn"


@pytest.mark.parametrize(("cuda", "agrees", "chosen"), [(False, True, "d2e_by_branch"), (True, True, "d2e_flex"),
                                                        (True, False, "d2e_by_branch")])  # fmt: skip
def test_the_attention_that_training_would_choose_is_named(
    cuda: bool, agrees: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr("d2e_sft.model.attention.flex.flex_agrees", lambda *arguments, **options: agrees)
    found = list(attentions.check_attentions())
    assert named(found, "packed rows").value.startswith(f"{chosen} is chosen")
    assert named(found, "d2e_flex").status == ("ok" if agrees or not cuda else "warn")
    assert "sdpa, eager" in named(found, "transformers").value


@pytest.mark.parametrize(("count", "fsdp2"), [(0, "warn"), (8, "ok")])
def test_each_launcher_is_tried(count: int, fsdp2: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (launch, launching):
        monkeypatch.setattr(module, "accelerators", lambda: count)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = list(launching.check_launchers())
    assert [finding.name for finding in found if finding.name in launch.launchers()] == launch.launchers()
    assert named(found, "ddp").status == "ok"
    assert named(found, "fsdp2").status == fsdp2
    assert named(found, "C++ compiler").status == named(found, "zero3-offload").status == "warn"


def test_a_cache_that_cannot_be_written_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "file" / "cache"))
    cache = named(storage.check_storage(), "cache")
    assert cache.status == "fail"
    assert "cannot be written" in cache.value
    assert cache.remedy.startswith("set D2E_CACHE")


def test_a_cache_that_does_not_exist_yet_is_left_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "new" / "cache"))
    assert named(storage.check_storage(), "cache").status in ("ok", "warn")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("free", "status"), [(100 * 2**30, "ok"), (5 * 2**30, "warn"), (2**20, "fail")])
def test_disks_need_room(free: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert named(storage.check_storage(), "working folder").status == status


class _Answers(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_services_are_asked_side_by_side_and_not_for_long(answering: str, silent: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}"
    asked = [
        Service("up", answering, "", "-"),
        Service("silent", silent, "", "wait"),
        Service("mute", silent, "", "wait"),
        Service("closed", closed, "", "start it"),
        Service("wrong", "no address", "", "correct it"),
        Service("off", silent, "WANDB_MODE=offline", "-"),
    ]
    started = time.monotonic()
    found = list(ask(asked, seconds=1))
    assert time.monotonic() - started < 3
    assert {finding.name: finding.status for finding in found} == {
        "up": "ok", "silent": "warn", "mute": "warn", "closed": "warn", "wrong": "warn", "off": "ok",
    }  # fmt: skip
    assert named(found, "closed").remedy == "start it"
    assert named(found, "off").value == "not asked: WANDB_MODE=offline"


@pytest.mark.parametrize(
    ("environment", "name", "url", "is_offline"),
    [
        ({}, "Hub", "https://huggingface.co", False),
        ({"HF_ENDPOINT": "https://mirror"}, "Hub", "https://mirror", False),
        ({"HF_HUB_OFFLINE": "1"}, "Hub", "https://huggingface.co", True),
        ({"HF_HUB_OFFLINE": "0"}, "Hub", "https://huggingface.co", False),
        ({"TRANSFORMERS_OFFLINE": "true"}, "Hub", "https://huggingface.co", True),
        ({"WANDB_MODE": "disabled"}, "wandb", "https://api.wandb.ai", True),
        ({"WANDB_BASE_URL": "https://own"}, "wandb", "https://own", False),
        ({"MLFLOW_TRACKING_URI": "http://own:5000"}, "mlflow", "http://own:5000", False),
    ],
)
def test_the_environment_says_whom_to_ask(environment: dict[str, str], name: str, url: str, is_offline: bool) -> None:
    service = next(item for item in services(environment) if item.name == name)
    assert (service.url, bool(service.offline)) == (url, is_offline)


@pytest.mark.parametrize(
    ("environment", "found_devices", "status", "said"),
    [
        ({}, 0, "ok", "not on a Slurm cluster"),
        ({"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "4"}, 4, "ok", "job 7, 1 node, 4 GPUs on this one"),
        ({"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "4"}, 0, "warn", "but torch finds 0"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, 0, "warn", "2 nodes, no GPUs"),
    ],
)
def test_a_slurm_job_is_compared_with_what_torch_finds(
    environment: dict[str, str], found_devices: int, status: str, said: str
) -> None:
    finding = named(slurm(environment, found_devices, can_submit=False), "slurm")
    assert finding.status == status
    assert said in finding.value


def test_a_login_node_and_a_requeued_job_are_told() -> None:
    assert "sbatch launch/slurm/train.sbatch" in next(slurm({}, 0, can_submit=True)).value
    environment = {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "1", "SLURM_RESTART_COUNT": "2"}
    assert named(slurm(environment, 1, can_submit=True), "requeued").value == "2 times so far"
