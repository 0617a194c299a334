"""Processes that were launched together end as they should."""

from __future__ import annotations

import subprocess
import sys

import pytest

from d2e_sft.util.paths import safe_environment
from tests.servers import free_port

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
