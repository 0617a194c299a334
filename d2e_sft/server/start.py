"""`d2e serve`: its options, and the server that decodes in this process."""

from __future__ import annotations

import errno
import ipaddress
import json
import shlex
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.prompts import PromptSet, load_prompt_set
from d2e_sft.data.sample import EventSample, Format
from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import warn

_GRACE = 5  # seconds for open requests after Ctrl-C or SIGTERM


@dataclass(frozen=True)
class ServeOptions:
    """Options of the server, whatever its engine.

    Attributes:
        allow_hosts, allow_origins: Further names of this server, and web pages that may use it; `*`: any.
        api_key: Bearer token that clients must send; None: no check.
        decoding: Of requests that name no decoder.
        prompt_set, format: Whose context line words a context.
        is_worded: The model is a run whose rows the prompt set worded: an example request is printed at the start.
        system: Of requests without a system message; None: the prompt set's for a worded run, else none.
        served_model_name: Names of the model in requests, instead of its own; the first is in answers.
        engine_arguments: vLLM's own command-line options.
        dtype, max_queue, max_new_tokens: Of the engine `transformers`: data type of the weights, prompts that may
            wait, longest answer to a request without `max_tokens`.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    api_key: str | None = None
    decoding: DecodingConfig = DecodingConfig()
    prompt_set: str = "default"
    format: Format = "qa"
    is_worded: bool = False
    system: str | None = None
    served_model_name: tuple[str, ...] = ()
    max_body_bytes: int = 4 * 1024 * 1024
    engine_arguments: tuple[str, ...] = ()
    dtype: str | None = None
    max_queue: int = 256
    max_new_tokens: int = 1024

    def system_of(self, prompt_set: PromptSet, fmt: Format) -> str:
        """Return the system message of requests that have none; the empty string: none."""
        default = prompt_set.zero_shot[fmt].system if self.is_worded and fmt in prompt_set.zero_shot else ""
        return default if self.system is None else self.system


def require_starlette(purpose: str, extra: str) -> None:
    """Raise UserError unless Starlette and uvicorn are installed, which the extra brings."""
    missing = [module for module in ("starlette", "uvicorn") if find_spec(module) is None]
    if missing:
        message = f"{purpose} needs {' and '.join(missing)}; expected to find them installed"
        raise UserError(message, f"pip install 'd2e-sft[{extra}]'")


def warn_if_open(options: ServeOptions) -> None:
    """Warn if others can reach the address and no key is set."""
    if options.api_key is None and not is_local(options.host):
        warn(f"{options.host} is reachable by others and no --api-key is set")


def is_local(host: str) -> bool:
    """Whether an address is only reachable from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(model: str, options: ServeOptions) -> None:
    """Serve a model, named as for `load_model`, until the process is stopped."""
    wording = load_prompt_set(options.prompt_set)
    warn_if_open(options)
    with listening(options.host, options.port) as sock:
        from d2e_sft.config.recipe import ModelSection, recipe_of
        from d2e_sft.model.loading import load_to_decode
        from d2e_sft.server.app import build_app
        from d2e_sft.server.prompts import Prompts
        from d2e_sft.server.queue import BatchQueue

        recipe = recipe_of(model)
        loaded = load_to_decode(model, ModelSection() if recipe is None else recipe.model, options.dtype)
        prompts = Prompts(loaded, wording, options)
        queue = BatchQueue(loaded, options.max_queue)
        app = build_app(model, prompts, queue, options)
        url, names = f"http://{address(sock)}/v1", options.served_model_name or (model,)
        example = example_request(names[0], options, url)
        run(app, sock, f"serving {' and '.join(names)} with transformers at {url}{example}")


def example_request(model: str, options: ServeOptions, url: str) -> str:
    """Return a command that asks a run in the words of its training; nothing if those are unknown."""
    wording = load_prompt_set(options.prompt_set)
    if not options.is_worded or options.format not in wording.zero_shot:
        return ""
    choices = ["the bridge", "the barn"] if options.format in ("scq", "mcq") else []
    sample = EventSample.model_validate(
        {
            **{"id": "example", "dataset": "example", "split": "test", "relation": "causal", "format": options.format},
            **{"context": "The river rose. Then the bridge broke.", "options": choices},
            "question": "The bridge broke first" if options.format == "nli" else "What broke?",
            "answers": ["negative" if options.format == "nli" else "the bridge"],
        }
    )
    user = json.dumps(wording.messages(sample, "imagined")[-1], ensure_ascii=False)
    body = (
        f'{{\n  "model": {json.dumps(model)}, "temperature": 0, "max_tokens": 32,\n  "messages": [{user}],\n'
        f'  "context": {json.dumps(sample.context)}}}'
    )
    key = "" if options.api_key is None else " -H 'Authorization: Bearer KEY'"
    headers = f"-H 'Content-Type: application/json'{key}"
    system = options.system_of(wording, options.format)
    note = f"a request in the words of its training{'; its system message is added' * bool(system)}:"
    return f"\n{note}\ncurl -s {url}/chat/completions {headers} -d {shlex.quote(body)}"


def listening(host: str, port: int) -> socket.socket:
    """Return a socket at an address, before minutes of loading; UserError if it is taken or not of this machine."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        of_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
        remedy = "choose another --port" if of_port else "give an address of this machine, as --host 127.0.0.1"
        raise UserError(f"--host {host} --port {port}: cannot listen there ({error})", remedy) from None
    return sock


def address(sock: socket.socket) -> str:
    """Return a socket's host and port, as in a URL."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def run(app: Any, sock: socket.socket, message: str) -> None:
    """Run an app until the process is stopped; the message is printed when it can be reached."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            print(f"d2e: {message}", file=sys.stderr, flush=True)

    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_GRACE)
    Server(config).run(sockets=[sock])
