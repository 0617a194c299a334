"""The options of `d2e eval` that are for some engines only; given for another, they are refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource
from pydantic import ValidationError

from d2e_sft.data.sample import describe_validation_error
from d2e_sft.judge.cli_options import endpoint_flags
from d2e_sft.judge.options import EndpointOptions
from d2e_sft.util.errors import UserError

_HERE = ("transformers", "vllm")
_ENDPOINT = endpoint_flags(EndpointOptions())
# parameter → (the engines it is for, the option)
_OPTIONS: dict[str, tuple[tuple[str, ...], Callable[[Any], Any]]] = {
    "batch_size": (
        ("transformers",),
        click.option("--batch-size", type=click.IntRange(min=1), help="Samples decoded together."),
    ),
    "dtype": (
        _HERE,
        click.option(
            "--dtype",
            type=click.Choice(["float32", "bfloat16", "float16"]),
            help="Of the weights; default: as the recipe says, else float32; with vllm the checkpoint's.",
        ),
    ),
    "compiled": (
        ("transformers",),
        click.option("--compile", "compiled", is_flag=True, help="Compile the decoding step; for GPUs."),
    ),
    "tensor_parallel": (
        ("vllm",),
        click.option("--tensor-parallel", metavar="N", type=click.IntRange(min=1), help="Devices that share a model."),
    ),
    "max_model_len": (
        ("vllm",),
        click.option("--max-model-len", metavar="N", type=click.IntRange(min=1), help="Longest prompt and answer."),
    ),
    "gpu_memory_utilization": (
        ("vllm",),
        click.option(
            "--gpu-memory-utilization",
            metavar="SHARE",
            type=click.FloatRange(0, 1, min_open=True),
            help="Of the device's memory, for weights and cache.",
        ),
    ),
    **{name: (("openai",), option) for name, option in _ENDPOINT.items()},
}
_VLLM_NAMES = {
    "tensor_parallel": "tensor_parallel_size",
    "max_model_len": "max_model_len",
    "gpu_memory_utilization": "gpu_memory_utilization",
}


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command the engines' options; it gets `batch_size`, `dtype`, `compiled`, `vllm` and `endpoint`.

    The command needs an option `engine`. It raises UserError for an option of another engine before it does anything.
    """

    @functools.wraps(command)
    def with_engine(*args: Any, **values: Any) -> Any:
        given = {name: values.pop(name) for name in _OPTIONS}
        return command(*args, **values, **_collect(values["engine"], given, click.get_current_context()))

    decorated: Callable[..., Any] = with_engine
    for _, option in reversed(_OPTIONS.values()):
        decorated = option(decorated)
    return decorated


def _collect(engine: str, values: dict[str, Any], context: click.Context) -> dict[str, Any]:
    if engine == "auto":
        engine = "transformers" if values["base_url"] is None else "openai"
    for name, (engines, _) in _OPTIONS.items():
        if engine not in engines and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UserError(
                f"{_flag(name)}: has no meaning with --engine {engine}; expected --engine " + " or ".join(engines),
                remedy=f"drop it, or add --engine {engines[0]}",
            )
    try:
        endpoint = EndpointOptions(**{name: values[name] for name in _ENDPOINT})
    except ValidationError as error:
        raise UserError(f"options of the endpoint: {describe_validation_error(error)}") from None
    vllm = {key: values[name] for name, key in _VLLM_NAMES.items() if values[name] is not None}
    own = {name: values[name] for name in ("batch_size", "dtype", "compiled")}
    return {**own, "vllm": vllm, "endpoint": endpoint}


def _flag(name: str) -> str:
    return "--compile" if name == "compiled" else f"--{name.replace('_', '-')}"
