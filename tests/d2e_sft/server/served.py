"""A tiny model behind `d2e serve --engine transformers`, over real HTTP in this process."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.model.loading import LoadedModel
from d2e_sft.server.app import build_app
from d2e_sft.server.prompts import Prompts
from d2e_sft.server.queue import BatchQueue
from d2e_sft.server.start import ServeOptions, address, listening
from tests.tiny import tiny_model, tiny_tokenizer

KEY, LIMIT, NAME = "a-key-of-the-test", 20_000, "tiny"


@dataclass(frozen=True)
class Served:
    url: str

    def post(self, route: str, **fields: Any) -> httpx.Response:
        """Send a request with the key."""
        headers = {"Authorization": f"Bearer {KEY}"}
        return httpx.post(f"{self.url}/v1/{route}", json=fields, headers=headers, timeout=60)


@contextmanager
def serving(loaded: LoadedModel, *, name: str = NAME, key: str | None = KEY, **options: Any) -> Iterator[Served]:
    """Serve a model while the block lasts; its defaults are α = 0.5 and 30 tokens."""
    queue = BatchQueue(loaded, 64)
    how = ServeOptions(api_key=key, max_body_bytes=LIMIT, max_new_tokens=30, **options)
    with running(build_app(name, Prompts(loaded, load_prompt_set("default"), how), queue, how)) as url:
        yield Served(url)


def tiny() -> LoadedModel:
    return LoadedModel(tiny_model("llama", seed=4).eval(), tiny_tokenizer())


@contextmanager
def sent(server: Served, route: str, fields: dict[str, Any]) -> Iterator[None]:
    """Send a request, and leave when the block is left."""
    body = json.dumps(fields)
    head = f"POST /v1/{route} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    head += f"\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}"
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(f"{head}\r\n\r\n{body}".encode())
        yield


@contextmanager
def running(app: Any) -> Iterator[str]:
    """Serve an app while the block lasts; its address."""
    with listening("127.0.0.1", 0) as sock:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://{address(sock)}"
        finally:
            server.should_exit = True
            thread.join()
