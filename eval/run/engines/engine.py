"""The protocol of an engine, which decodes and scores prompts, and an engine by name."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.pairs import OptionScore, PromptPair
from d2e_sft.util.startup import preload
from eval.run.options import EvalConfig
from eval.run.processes import Processes
from eval.run.task import Task


class EngineReply(NamedTuple):
    """What an engine yields while it decodes or scores; prompts come in any order.

    `answer` is None while it is not complete. `tokens` are those of prompts and answers since the last reply, for the
    progress; 0 if the engine counts none.
    """

    place: int
    answer: str | list[OptionScore] | None
    tokens: int = 0


class Engine(Protocol):
    """Decodes and scores prompts with one model, task after task; `counts` is what this engine counts in a task.

    `in_turn` engines decode one batch of a group after the other, so that the time of an answer can be measured.
    """

    name: str
    in_turn: bool
    counts: dict[str, int]

    def prepare(self, task: Task) -> Sequence[PromptPair[Any]]:
        """The task's prompts in the form that this engine takes; resets `counts`. UserError if they do not fit."""

    def generate(self, pairs: Sequence[PromptPair[Any]], decoding: DecodingConfig) -> Iterator[EngineReply]:
        """Decode prompts of the prepared task; UserError if the model cannot be asked, or stopped answering."""

    def score(self, pairs: Sequence[PromptPair[Any]], decoding: DecodingConfig) -> Iterator[EngineReply]:
        """Score the options of prompts of the prepared task; errors as for `generate`."""

    def environment(self) -> dict[str, Any]:
        """Versions and device, for the record."""


def prompt_length(pair: PromptPair[Any]) -> int:
    """Length of a prompt for sharing out work: tokens, or characters of messages and texts."""
    return sum(len(part["content"]) if isinstance(part, dict) else 1 for part in pair.original)


def make_engine(model: str, config: EvalConfig, processes: Processes, *, kept: dict[Any, Any] | None = None) -> Engine:
    """Load the model into the engine that `config` names, or find the endpoint; UserError if that cannot be done.

    `kept` holds states of the engine in this process between passes; None keeps none.
    """
    options = config.options
    if config.engine == "openai":
        from eval.run.engines.endpoint import EndpointEngine

        endpoint = options.endpoint.model_copy(update={"model": model})
        return EndpointEngine(endpoint, options.tokenizer, likelihood=options.answer == "likelihood")
    if config.engine == "vllm":
        from eval.run.engines.vllm_offline import VllmEngine

        return VllmEngine(model, options)
    preload("transformers.modeling_utils")
    from eval.run.engines.in_process import InProcessEngine

    return InProcessEngine(model, config, processes.device, kept=kept)


def shared_engine() -> Callable[[str, EvalConfig, Processes], Engine]:
    """Like `make_engine`, for an engine that is loaded once and keeps states between passes."""
    loaded: list[Engine] = []

    def load(model: str, config: EvalConfig, processes: Processes) -> Engine:
        if not loaded:
            loaded.append(make_engine(model, config, processes, kept={}))
        return loaded[0]

    return load


def identity_of(model: str, config: EvalConfig) -> str:
    """Identify the model that decodes: by content, or an endpoint's by address and name; UserError without one."""
    if config.engine == "openai":
        from d2e_sft.judge.options import find_endpoint
        from eval.run.engines.endpoint import CALLER

        return f"{model} at {find_endpoint(config.options.endpoint, CALLER).url}"
    from d2e_sft.model.storage.folder import model_identity

    return model_identity(model)
