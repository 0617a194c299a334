"""An engine by name."""

from __future__ import annotations

from eval.run.engines.engine import Engine
from eval.run.options import EvalConfig
from eval.run.processes import Processes


def make_engine(model: str, config: EvalConfig, processes: Processes) -> Engine:
    """Load the model into the engine that was asked for, or find the endpoint.

    Raises:
        UserError: the engine is not installed, or cannot have the model.
    """
    if config.engine == "openai":
        from eval.run.engines.endpoint import EndpointEngine

        return EndpointEngine(config.options.endpoint.model_copy(update={"model": model}))
    if config.engine == "vllm":
        from eval.run.engines.vllm_offline import VllmEngine

        return VllmEngine(model, dtype=config.options.dtype, options=config.options.vllm)
    from eval.run.engines.in_process import InProcessEngine

    assert processes.state is not None
    return InProcessEngine(
        model,
        section=config.section,
        dtype=config.options.dtype,
        device=processes.state.device,
        compiled=config.decoding.compiled,
    )


def identity_of(model: str, config: EvalConfig) -> str:
    """Which model decodes, by content.

    Raises:
        UserError: there is no such model or endpoint.
    """
    if config.engine == "openai":
        from eval.run.engines.endpoint import endpoint_identity

        return endpoint_identity(config.options.endpoint.model_copy(update={"model": model}))
    from eval.run.model_identity import model_identity

    return model_identity(model)
