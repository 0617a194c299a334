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
        endpoint = config.options.endpoint.model_copy(update={"model": model})
        if config.options.answer == "likelihood":
            from eval.run.engines.echo import EchoEngine

            return EchoEngine(endpoint, config.options.tokenizer)
        from eval.run.engines.endpoint import EndpointEngine

        return EndpointEngine(endpoint)
    if config.engine == "vllm":
        from eval.run.engines.vllm_offline import VllmEngine

        return VllmEngine(model, config.options)
    from eval.run.engines.in_process import InProcessEngine

    assert processes.state is not None
    return InProcessEngine(model, config, processes.state.device)


class OneEngine:
    """The engine in this process, loaded once for several passes with one model; what they share is computed once."""

    def __init__(self) -> None:
        self._loaded: Engine | None = None

    def __call__(self, model: str, config: EvalConfig, processes: Processes) -> Engine:
        """As `make_engine`, the first time.

        Raises:
            UserError: as `make_engine`.
        """
        from eval.run.engines.in_process import InProcessEngine

        if self._loaded is None:
            assert processes.state is not None
            self._loaded = InProcessEngine(model, config, processes.state.device, kept={})
        return self._loaded


def identity_of(model: str, config: EvalConfig) -> str:
    """Which model decodes: by content, or of an endpoint its address and name.

    Raises:
        UserError: there is no such model or endpoint.
    """
    if config.engine == "openai":
        from d2e_sft.judge.options import find_endpoint
        from eval.run.engines.endpoint import CALLER

        return f"{model} at {find_endpoint(config.options.endpoint, CALLER).url}"
    from d2e_sft.model.identity import model_identity

    return model_identity(model)
