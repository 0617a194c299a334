"""Options that commands share: `--overlong`, and those for some engines only, which other engines reject."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource
from pydantic import ValidationError

from d2e_sft.config.options import Number, reject_unused
from d2e_sft.judge.options import EndpointOptions, endpoint_flags
from d2e_sft.util.errors import UserError, describe_validation_error
from eval.run.options import OVERLONG_RULES

overlong_option = click.option(
    "--overlong",
    type=click.Choice(OVERLONG_RULES),
    default="error",
    show_default=True,
    help="What to do with contexts beyond the model's length.",
)
_ENDPOINT = endpoint_flags(EndpointOptions())
_OPTIONS = (
    click.option(
        "--batch-size",
        type=click.IntRange(min=1),
        help="Samples decoded at a time. [default: as many as fit the memory, up to 64]",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["float32", "bfloat16", "float16", "auto"]),
        help="Data type of the weights; auto: bfloat16 if this machine computes it fast, else float32. [default: as "
        "in the recipe, else float32; with vllm the checkpoint's]",
    ),
    click.option(
        "--num-beams",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Beams of plain decoding; for encoder-decoder models such as Flan-T5.",
    ),
    click.option("--compile", "compiled", is_flag=True, help="Compile the decoding step; for GPUs."),
    click.option(
        "--tensor-parallel",
        "tensor_parallel_size",
        metavar="N",
        type=click.IntRange(min=1),
        help="Devices that share a model.",
    ),
    click.option("--max-model-len", metavar="N", type=click.IntRange(min=1), help="Longest prompt and answer."),
    click.option(
        "--gpu-memory-utilization",
        metavar="SHARE",
        type=Number(0, 1, min_open=True),
        help="Share of the device's memory for weights and cache.",
    ),
    *_ENDPOINT.values(),
    click.option(
        "--tokenizer",
        metavar="NAME",
        help="Tokenizer of an endpoint's model, for --answer likelihood: a Hub name or a folder. [default: MODEL]",
    ),
)
_VLLM = ("tensor_parallel_size", "max_model_len", "gpu_memory_utilization")
_ENGINES_OF: dict[str, tuple[str, ...]] = {  # the engines of each parameter
    "batch_size": ("transformers",),
    "dtype": ("transformers", "vllm"),
    "compiled": ("transformers",),
    "num_beams": ("transformers",),
    **dict.fromkeys(_VLLM, ("vllm",)),
    **dict.fromkeys(_ENDPOINT, ("openai",)),
    "tokenizer": ("openai",),
}


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the engines' options to a click command, which gets `batch_size`, `dtype`, `compiled`, `num_beams`,
    `tokenizer`, `vllm` and `endpoint`.

    The command needs an option `engine`. An option of another engine is a UserError before anything is done.
    """

    @functools.wraps(command)
    def with_engine(*args: Any, **values: Any) -> Any:
        given = {name: values.pop(name) for name in _ENGINES_OF}
        return command(*args, **values, **_collect(values["engine"], given))

    decorated: Callable[..., Any] = with_engine
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def _collect(engine: str, values: dict[str, Any]) -> dict[str, Any]:
    if engine == "auto":
        engine = "transformers" if values["base_url"] is None else "openai"
    reject_unused("--engine", engine, _ENGINES_OF)
    try:
        endpoint = EndpointOptions(**{name: values[name] for name in _ENDPOINT})
    except ValidationError as error:
        raise UserError(f"options of the endpoint: {describe_validation_error(error)}") from None
    vllm = {name: values[name] for name in _VLLM if values[name] is not None}
    own = {name: values[name] for name in ("batch_size", "dtype", "compiled", "num_beams", "tokenizer")}
    return {**own, "vllm": vllm, "endpoint": endpoint}


def launch_if_asked(launcher: str | None, processes: int | None, engine: str) -> None:
    """With `--launch`, start this command line again on several processes, and exit with their status.

    Raises:
        UserError: the launcher or the engine does not support it.
    """
    if launcher is None:
        if processes is not None:
            raise UserError(f"--processes {processes}: needs --launch", "add --launch ddp")
        return
    from d2e_sft.train.launch import launch, launch_command

    if launcher != "ddp":
        raise UserError(
            f"--launch {launcher}: every process gets a whole model and a share of the rows; expected ddp",
            remedy="use --launch ddp; for a model that needs several devices use --engine vllm --tensor-parallel N",
        )
    if engine in ("vllm", "openai"):
        raise UserError(
            f"--launch {launcher} with --engine {engine}: it shares its work itself",
            remedy="use --tensor-parallel N" if engine == "vllm" else "use --concurrency N",
        )
    context = click.get_current_context()
    arguments = [str(context.command.name)]
    for parameter in context.command.params:
        name = parameter.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in ("launcher", "processes") or not is_given:
            continue
        value = context.params[name]
        if isinstance(parameter, click.Option):
            for one in value if parameter.multiple else [value]:
                arguments += [parameter.opts[0]] if parameter.is_flag else [parameter.opts[0], str(one)]
        else:
            arguments.append(str(value))
    sys.exit(launch(launch_command(launcher, arguments, module="d2e_sft.cli", processes=processes)))
