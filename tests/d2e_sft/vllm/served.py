"""A served SmolLM2, and what is asked of it: a question, its context, and the request that carries both."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from d2e_sft.model.storage.folder import BUILTIN
from tests.servers import free_port

if TYPE_CHECKING:
    from openai import OpenAI  # takes two seconds

KEY, LIMIT, ROWS, QUEUE = "a-key-of-the-test", 20_000, 8, 12
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
SYSTEM = {"role": "system", "content": "Answer shortly."}
CONTEXT = "Rain fell for nine days on the hills. Then the river rose, and the old stone bridge broke."
QUESTION = "Question: What broke after the river rose?"


@contextmanager
def serving(python: str | Path, queue: int = QUEUE) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address of a server with 8 rows and a queue of this many requests, and its process."""
    port = free_port()
    log = Path(tempfile.mkdtemp()) / "server.log"
    command = [
        str(python), "-m", "d2e_sft.cli", "serve", "--port", str(port), "--max-body-bytes", str(LIMIT), BUILTIN,
        "--dtype", "float32", "--max-model-len", "1024", "--enforce-eager",
        "--max-num-seqs", str(ROWS), "--max-num-queued-reqs", str(queue),
    ]  # fmt: skip
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env={**ENVIRONMENT, **os.environ, "D2E_API_KEY": KEY}
        )
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 400
        while True:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            try:
                if httpx.get(f"{address}/health").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(1)
        yield address, process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def requests_inside(address: str) -> float:
    """How many requests the engine computes or keeps waiting; a pair is two."""
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting{")
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(names))


def seconds_until_idle(address: str, most: float) -> float:
    """Wait until the engine has no requests, at most `most` seconds; the seconds waited."""
    started = time.monotonic()
    while requests_inside(address) > 0 and time.monotonic() - started < most:
        time.sleep(0.1)
    return time.monotonic() - started


def ask(client: OpenAI, *, question: str = QUESTION, extra: dict[str, Any] | None = None, **options: Any) -> Any:
    """The reply to a question, debiased by a context unless `extra` says otherwise."""
    messages: list[Any] = [SYSTEM, {"role": "user", "content": question}]
    body = {"context": CONTEXT, "alpha": 0.5} if extra is None else extra
    given: dict[str, Any] = {"temperature": 0, "max_tokens": 24, **options}
    return client.chat.completions.create(model=BUILTIN, messages=messages, extra_body=body, **given)
