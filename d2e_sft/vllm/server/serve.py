"""`d2e serve`: vLLM's OpenAI-compatible server with paired requests; the engine runs in a process of its own.

The app, its routes and options are vLLM's. This module adds the engine client that takes pairs, the chat route with a
context, limits on bodies and the queue, and defaults that are safe on a shared machine.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from d2e_sft.data.chat_template import takes_system
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.server.start import ServeOptions, example_request, warn_if_open
from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import warn
from d2e_sft.vllm.engine import model_folder, require_vllm, unregistered_plugin


def serve(model: str, options: ServeOptions) -> None:
    """Serve a model, named as for `load_llm`, until the process is stopped."""
    require_vllm()
    missing = [module for module in ("fastapi", "uvicorn") if find_spec(module) is None]
    if missing:
        raise UserError(f"d2e serve needs {' and '.join(missing)}", remedy="pip install 'd2e-sft[serve]'")
    load_prompt_set(options.prompt_set)  # a wrong name is an error before the model is loaded
    warn_if_open(options)
    arguments = engine_arguments(model, options)
    asyncio.run(_run(arguments, options))


def engine_arguments(model: str, options: ServeOptions) -> Namespace:
    """vLLM's parsed options; UserError if an option does not support pairs."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser(prog="d2e serve"))
    passed_on = list(options.engine_arguments)
    has_name = any(argument.split("=")[0] == "--served-model-name" for argument in passed_on)
    arguments: Namespace = parser.parse_args(
        [
            f"--model={model_folder(model)}",
            f"--host={options.host}",
            f"--port={options.port}",
            # Parted pairs go first, while the cache holds their prompts.
            "--scheduling-policy=priority",
            *([] if has_name else ["--served-model-name", *(options.served_model_name or (model,))]),
            *(f"--logits-processors={plugin}" for plugin in unregistered_plugin()),
            *passed_on,
        ]
    )
    check_address(arguments, options)
    arguments.allowed_origins = list(options.allow_origins)
    if (arguments.api_server_count or 1) > 1 or arguments.headless:
        raise UserError(
            "--api-server-count and --headless: the two requests of a pair need one API server",
            remedy="drop them; --data-parallel-size and --tensor-parallel-size work",
        )
    validate_parsed_serve_args(arguments)
    return arguments


def check_address(arguments: Namespace, options: ServeOptions) -> None:
    """Raise UserError if vLLM's options have another address than ours, or what our middleware checks."""
    ours = {"host": options.host, "port": options.port, "api_key": None, "allowed_origins": None}
    changed = [
        f"--{name.replace('_', '-')}"
        for name, value in ours.items()
        if (getattr(arguments, name, value) or None) != value
    ]
    if changed:
        raise UserError(
            f"got {' and '.join(changed)} after MODEL, or in a file of --config: an option of d2e serve",
            "put it before MODEL: d2e serve --host HOST --port PORT --api-key KEY --allow-origin ORIGIN MODEL",
        )


async def _run(arguments: Namespace, options: ServeOptions) -> None:
    from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
    from vllm.entrypoints.launchers.launcher import serve_http, setup_server

    address, sock = setup_server(arguments, reuse_port=False)
    try:
        async with build_async_engine_client(arguments) as engine:
            app = await build_app(engine, arguments, options)
            name, url = arguments.served_model_name[0], f"{address}/v1"
            print(f"d2e: serving {name} at {url}{example_request(name, options, url)}", file=sys.stderr, flush=True)
            stopped = await serve_http(
                app,
                sock=sock,
                host=arguments.host,
                port=arguments.port,
                log_level=arguments.uvicorn_log_level,
                access_log=not arguments.disable_uvicorn_access_log,
            )
        await stopped
    finally:
        sock.close()


async def build_app(engine: Any, arguments: Namespace, options: ServeOptions) -> Any:
    """vLLM's app around an engine, with pairs, the chat route and the limits."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app as build_vllm_app
    from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

    from d2e_sft.server.limits import BodyCheck, PageCheck, QueueLimit
    from d2e_sft.vllm.server.chat import add_chat_route
    from d2e_sft.vllm.server.online import PairingEngine

    client = PairingEngine(engine)
    await client.probe()
    tasks = await engine.get_supported_tasks()
    app = build_vllm_app(arguments, tasks, engine.model_config)
    await init_app_state(client, app.state, arguments, tasks)
    wording = load_prompt_set(options.prompt_set)
    tokenizer = client.engine.get_tokenizer()
    if options.system_of(wording, options.format) and tokenizer.chat_template and not takes_system(tokenizer):
        warn("the model's chat template has no system message, so requests without one get none")
        options = replace(options, system="")
    add_chat_route(app, wording, options)
    # vLLM's app has already built its middleware, so ours wraps it. The key is checked before a body is read.
    limited: Any = QueueLimit(BodyCheck(app.middleware_stack or app.build_middleware_stack(), options.max_body_bytes))
    keyed = AuthenticationMiddleware(limited, [options.api_key]) if options.api_key else limited
    app.middleware_stack = PageCheck(keyed, options)
    return app
