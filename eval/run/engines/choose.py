"""An engine by name."""

from __future__ import annotations

from eval.run.engines.engine import Engine
from eval.run.options import Decoding, EvalOptions
from eval.run.processes import Processes


def make_engine(model: str, decoding: Decoding, options: EvalOptions, processes: Processes) -> Engine:
    """Load the model into the engine that was asked for, or find the endpoint.

    Raises:
        UserError: the engine is not installed, or cannot have the model.
    """
    if decoding.engine == "openai":
        from eval.run.engines.endpoint import EndpointEngine

        return EndpointEngine(options.endpoint.model_copy(update={"model": model}))
    if decoding.engine == "vllm":
        from eval.run.engines.vllm_offline import VllmEngine

        return VllmEngine(model, dtype=decoding.dtype, options=options.vllm)
    from eval.run.engines.in_process import InProcessEngine

    assert processes.state is not None
    return InProcessEngine(
        model,
        section=decoding.section,
        dtype=decoding.dtype,
        device=processes.state.device,
        compiled=options.compiled,
    )


def identity_of(model: str, decoding: Decoding, options: EvalOptions) -> str:
    """Which model decodes, by content.

    Raises:
        UserError: there is no such model or endpoint.
    """
    if decoding.engine == "openai":
        from eval.run.engines.endpoint import endpoint_identity

        return endpoint_identity(options.endpoint.model_copy(update={"model": model}))
    from eval.run.model_identity import model_identity

    return model_identity(model)
