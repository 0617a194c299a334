"""Options that commands share: those of `EvalOptions`, of the engines, which other engines reject, and `--launch`."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.core import ParameterSource
from pydantic import ValidationError

from d2e_sft.config.options import Number, reject_unused
from d2e_sft.judge.options import EndpointOptions, endpoint_flags
from d2e_sft.util.errors import UserError, describe_validation_error
from eval.run.options import EvalOptions

_FIELDS = {option.name: option for option in dataclasses.fields(EvalOptions) if option.metadata}
_ENDPOINT = endpoint_flags()
_VLLM = {
    "tensor_parallel_size": click.option(
        "--tensor-parallel",
        "tensor_parallel_size",
        metavar="N",
        type=click.IntRange(min=1),
        help="Devices that share a model.",
    ),
    "max_model_len": click.option(
        "--max-model-len", metavar="N", type=click.IntRange(min=1), help="Longest prompt and answer."
    ),
    "gpu_memory_utilization": click.option(
        "--gpu-memory-utilization",
        metavar="SHARE",
        type=Number(0, 1, min_open=True),
        help="Share of the device's memory for weights and cache.",
    ),
}
_ENGINES_OF: dict[str, Sequence[str]] = {  # the engines of each parameter
    **{name: option.metadata["engines"] for name, option in _FIELDS.items() if option.metadata["engines"]},
    **dict.fromkeys(_VLLM, ("vllm",)),
    **dict.fromkeys(_ENDPOINT, ("openai",)),
}
_OF_ENGINES = [name for name in _FIELDS if name in _ENGINES_OF]
COMMON = tuple(name for name in _FIELDS if name not in _ENGINES_OF)


def eval_option(name: str) -> Callable[[Any], Any]:
    """Return the click option of a field of `EvalOptions`."""
    default, settings = _FIELDS[name].default, dict(_FIELDS[name].metadata)
    settings.pop("engines")
    flag, shown = settings.pop("flag", f"--{name.replace('_', '-')}"), "[default" not in settings["help"]
    if default is False:
        return click.option(flag, name, is_flag=True, **settings)
    return click.option(flag, name, default=default, show_default=shown and default is not None, **settings)


def eval_options(*names: str) -> Callable[[Any], Any]:
    """Return a decorator that adds the options with these names, and those of the engines, to a click command.

    The command needs an option `engine`; it gets `batch_size`, `dtype`, `compiled`, `num_beams`, `tokenizer`, `vllm`
    and `endpoint`. An option of another engine is a UserError before anything is done.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_engine(*args: Any, **values: Any) -> Any:
            engine_options = {name: values.pop(name) for name in _ENGINES_OF}
            return command(*args, **values, **_collect(values["engine"], engine_options))

        options = [*map(eval_option, (*names, *_OF_ENGINES)), *_VLLM.values(), *_ENDPOINT.values()]
        return functools.reduce(lambda made, option: option(made), reversed(options), with_engine)

    return decorate


def _collect(engine: str, values: dict[str, Any]) -> dict[str, Any]:
    if engine == "auto":
        engine = "transformers" if values["base_url"] is None else "openai"
    reject_unused("--engine", engine, _ENGINES_OF)
    try:
        endpoint = EndpointOptions(**{name: values[name] for name in _ENDPOINT})
    except ValidationError as error:
        raise UserError(f"options of the endpoint: {describe_validation_error(error)}") from None
    vllm = {name: values[name] for name in _VLLM if values[name] is not None}
    return {**{name: values[name] for name in _OF_ENGINES}, "vllm": vllm, "endpoint": endpoint}


def launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--launch` and `--processes` to a click command, for `launch_if_asked`."""
    processes = click.option(
        "--processes",
        type=click.IntRange(min=1),
        metavar="N",
        help="Processes on this machine. [default: one per accelerator]",
    )
    decorated: Callable[..., Any] = click.option(
        "--launch", "launcher", metavar="ddp", help="Decode on several processes, each with its share of rows."
    )(processes(command))
    return decorated


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
            for text in value if parameter.multiple else [value]:
                arguments += [parameter.opts[0]] if parameter.is_flag else [parameter.opts[0], str(text)]
        else:
            arguments.append(str(value))
    sys.exit(launch(launch_command(launcher, arguments, module="d2e_sft.cli", processes=processes)))
