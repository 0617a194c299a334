"""An engine by name."""

from __future__ import annotations

from collections.abc import Callable

from eval.run.engines.engine import Engine
from eval.run.options import EvalConfig
from eval.run.processes import Processes

LoadEngine = Callable[[str, EvalConfig, Processes], Engine]


def make_engine(model: str, config: EvalConfig, processes: Processes) -> Engine:
    """Load the model into the engine that `config` names, or find the endpoint.

    Raises:
        UserError: the engine is not installed, or does not support the model.
    """
    options = config.options
    if config.engine == "openai":
        from eval.run.engines.endpoint import EndpointEngine

        endpoint = options.endpoint.model_copy(update={"model": model})
        return EndpointEngine(endpoint, options.tokenizer, likelihood=options.answer == "likelihood")
    if config.engine == "vllm":
        from eval.run.engines.vllm_offline import VllmEngine

        return VllmEngine(model, options)
    from eval.run.engines.in_process import InProcessEngine

    assert processes.state is not None
    return InProcessEngine(model, config, processes.state.device)


def shared_engine() -> LoadEngine:
    """Like `make_engine` for the engine in this process, which is loaded once and keeps states between passes."""
    loaded: list[Engine] = []

    def load(model: str, config: EvalConfig, processes: Processes) -> Engine:
        from eval.run.engines.in_process import InProcessEngine

        if not loaded:
            assert processes.state is not None
            loaded.append(InProcessEngine(model, config, processes.state.device, kept={}))
        return loaded[0]

    return load


def identity_of(model: str, config: EvalConfig) -> str:
    """Identify the model that decodes: by content, or an endpoint's by address and name.

    Raises:
        UserError: there is no such model or endpoint.
    """
    if config.engine == "openai":
        from d2e_sft.judge.options import find_endpoint
        from eval.run.engines.endpoint import CALLER

        return f"{model} at {find_endpoint(config.options.endpoint, CALLER).url}"
    from d2e_sft.model.identity import model_identity

    return model_identity(model)
