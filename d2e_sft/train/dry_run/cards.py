"""On what a planned run would be launched: how many processes, and graphics cards by their data sheets."""

from dataclasses import dataclass
from pathlib import Path

from d2e_sft.train.checks import count_processes
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import load_package_yaml

# Width of a model → share of a card's operations per second. The first two were measured on an H200 (D²E in packed
# rows, docs/results/bench-gpu-h200-2026-11-26.json); from the last width on it is assumed.
UTILISATION = {576: 0.05, 1024: 0.11, 2048: 0.3}


@dataclass(frozen=True)
class Card:
    """A graphics card; the fields are explained in `cards.yaml`."""

    named: str
    gib: float
    tflops: float
    memory: float
    link: float

    @property
    def flops(self) -> float:
        return self.tflops * 1e12


CARDS = {name: Card(**fields) for name, fields in load_package_yaml(Path(__file__).with_name("cards.yaml")).items()}


@dataclass(frozen=True)
class Where:
    """How and on what a run would be launched.

    Attributes:
        processes: Over all machines.
        weights: False reads no weights here, nor do `like` and `gpu`: memory is estimated, nothing timed.
        like: A key of `SHAPES` instead of the recipe's model.
        tokenizer: The model whose tokenizer `like` takes; None estimates the tokens.
        gpu: A key of `CARDS` instead of this machine.
        utilisation: The share of the card's operations per second that training reaches; None follows `UTILISATION`.
    """

    launcher: str | None = None
    processes: int = 1
    weights: bool = True
    like: str | None = None
    tokenizer: str | None = None
    gpu: str | None = None
    utilisation: float | None = None

    def __post_init__(self) -> None:
        if self.gpu not in (None, *CARDS):
            cards = [card for card in CARDS if card.startswith(str(self.gpu))] or CARDS
            raise UserError(
                f"--gpu {self.gpu}: no such card.{did_you_mean(str(self.gpu), cards)}",
                f"choose one of {', '.join(CARDS)}",
            )

    @property
    def reads_weights(self) -> bool:
        """Whether the model's weights are read here."""
        return self.weights and self.like is None and self.gpu is None

    def __str__(self) -> str:
        """Return what titles add."""
        if self.gpu is not None:
            return f" ({self.processes} × {self.gpu})"
        return "" if self.launcher is None else f" (--launch {self.launcher} on {count_processes(self.processes)})"


HERE = Where()  # one process on this machine
