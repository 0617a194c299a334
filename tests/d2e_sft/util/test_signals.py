"""Processes: signals, a fast start, and work that one of several does."""

import gc
import logging
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from d2e_sft.util.paths import safe_environment
from d2e_sft.util.signals import PARENT, REQUEUE, on_sigterm
from d2e_sft.util.startup import preload, quieten
from tests.servers import free_port


def test_sigterm_ends_at_once_with_the_status_for_schedulers(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with on_sigterm("the same command resumes"), pytest.raises(SystemExit) as ended:
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == REQUEUE == 75
    assert capsys.readouterr().err == "d2e: ended by SIGTERM; the same command resumes\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_sigterm_is_kept_for_whoever_defers_it() -> None:
    with on_sigterm("…") as termination:
        termination.deferred = True
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert termination.asked


_CHILD = """
import os, time
from d2e_sft.util.paths import safe_environment
from d2e_sft.util.signals import end_with_parent

end_with_parent()
parent = os.getppid()
print(parent, flush=True)
while os.getppid() == parent:
    time.sleep(0.01)
print("runs on", flush=True)
"""
_START = "import os, subprocess, sys; subprocess.run([sys.executable, sys.argv[1]], env={{**os.environ, {}}})"
_ACCELERATE = ("-m", "accelerate.commands.launch", "--num_processes", "1", "--cpu")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the signal is Linux's")
@pytest.mark.parametrize(
    ("start", "ends"),
    [
        (("-c", _START.format(f"{PARENT!r}: str(os.getpid())")), True),
        (("-c", _START.format("'TORCHELASTIC_RUN_ID': 'none'")), True),
        (_ACCELERATE, True),
        (("-c", _START.format("'ACCELERATE_MIXED_PRECISION': 'no'")), False),
    ],
    ids=["ours", "of several", "the only one of accelerate", "of a user"],
)
def test_a_process_ends_with_its_launcher(tmp_path: Path, start: tuple[str, ...], ends: bool) -> None:
    child = tmp_path / "child.py"
    child.write_text(_CHILD)
    command = [sys.executable, *start, str(child)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=safe_environment()) as started:
        assert started.stdout is not None
        assert int(started.stdout.readline()) == started.pid
        started.kill()
        assert started.stdout.read() == ("" if ends else "runs on\n"), "the pipe closes with the child"


NAMES = ("DeepSpeed", "huggingface_hub.utils._http")


@pytest.fixture(autouse=True)
def filters() -> Iterator[None]:
    before = {name: list(logging.getLogger(name).filters) for name in NAMES}
    for name in NAMES:
        logging.getLogger(name).filters.clear()
    quieten()
    yield
    for name, kept in before.items():
        logging.getLogger(name).filters[:] = kept


def told(name: str, *messages: str) -> list[str]:
    """Those of the messages that the logger lets through, as it words them."""
    logger = logging.getLogger(name)
    records = [logger.makeRecord(name, logging.WARNING, "f", 1, message, (), None) for message in messages]
    return [record.getMessage() for record in records if logger.filter(record)]


def test_failed_attempts_are_shown_once_and_a_guess_about_gpus_not_at_all() -> None:
    failed = "'[Errno 111]' thrown while requesting HEAD https://hub/x"
    found = told(NAMES[1], failed, "Retrying in 1s [Retry 1/5].", failed, "Retrying in 2s", "else")
    assert found == [f"{failed}; trying again, up to five times a file", "else"]
    assert told("DeepSpeed", "Setting accelerator to CPU. If you have GPU, …", "out of memory") == ["out of memory"]


def test_warnings_about_calls_of_other_libraries_are_dropped_and_others_shown() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        quieten()
        warnings.warn("`is_gradient_checkpointing` is deprecated and will be removed", FutureWarning, stacklevel=1)
        warnings.warn("Could not find a config file in x", UserWarning, stacklevel=1)
        warnings.warn("something else", UserWarning, stacklevel=1)
    assert [str(one.message) for one in shown] == ["something else"]


def test_the_collector_is_off_during_the_import_and_as_before_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_large_library.py").write_text("import gc\nCOLLECTS = gc.isenabled()\n")
    preload("a_large_library")
    assert not sys.modules["a_large_library"].COLLECTS  # type: ignore[attr-defined]
    assert gc.isenabled()
    with pytest.raises(ImportError):
        preload("no_such_module")
    assert gc.isenabled()


_PAIR = """
import os, sys
import torch
from d2e_sft.{join}

for rank in range(2):
    if not os.fork():
        os.environ |= {{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}}
        os.environ |= {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"}}
        joined = {call}
        group = torch.distributed.group.WORLD  # as a model in DDP keeps it
        work = torch.distributed.all_reduce_coalesced([torch.ones(1) for _ in range(30_000)], async_op=True)
        work.wait()
        del work
        sys.exit(5)
print([os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks a process that has imported torch")
@pytest.mark.parametrize(
    ("join", "call"),
    [
        ("util.distributed import process_state", "process_state()"),
        ("train.config import D2EConfig", 'D2EConfig("run", batch_size=2)'),
    ],
)
def test_a_process_whose_last_tensors_gloo_still_releases_ends_with_its_own_status(join: str, call: str) -> None:
    script = _PAIR.format(join=join, call=call, port=free_port())
    command = [sys.executable, "-W", "ignore", "-c", script]
    environment = safe_environment() | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[5, 5]", ended.stderr
