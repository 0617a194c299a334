"""A part's sizes, what all parts share, and the rows that they give."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.bench.cost import Cost, median, take_turns
from d2e_sft.bench.table.stories import write_suite
from d2e_sft.data.sample import EventSample, read_samples
from d2e_sft.model.device import usable_device
from d2e_sft.model.loading import load_model
from d2e_sft.model.onednn import ready_to_decode


@dataclass(frozen=True)
class Plan:
    """Sizes: samples and pairs of a step and tokens of their contexts; prompts; rows of suites; timed turns."""

    samples: int
    pairs: int
    context: int
    prompt: int
    batches: Sequence[int]
    new_tokens: int
    stories: int
    sentences: int
    built: int
    refined: int
    repeats: int


FULL = Plan(
    samples=4, pairs=2, context=200, prompt=400, batches=(1, 8), new_tokens=32, stories=5, sentences=16, built=2000,
    refined=3, repeats=3,
)  # fmt: skip
REHEARSAL = Plan(
    samples=2, pairs=2, context=20, prompt=180, batches=(2,), new_tokens=4, stories=2, sentences=3, built=20,
    refined=2, repeats=1,
)  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """What all parts share.

    Attributes:
        folder: For rows, builds and runs of the measurement.
        lent: Gives functions of the data builders by name.
    """

    model: str
    plan: Plan
    folder: Path
    lent: Callable[[str], Any]

    def turns(self, ways: Mapping[str, Callable[[], Any]]) -> tuple[dict[str, list[Cost]], dict[str, Any]]:
        """Run the ways of a part in turns."""
        return take_turns(ways, self.plan.repeats, usable_device(), with_memory=True)

    def models(self) -> tuple[Any, Any, Any]:
        """Return the model as this project decodes with it, as transformers does, and the tokenizer."""
        loaded = load_model(self.model)
        device = usable_device()
        return ready_to_decode(load_model(self.model).model, device), loaded.model.to(device).eval(), loaded.tokenizer

    def built_suite(self, name: str, stories: int, split: str = "test") -> tuple[list[Path], list[EventSample]]:
        """Write stories and build them; returns the descriptions and the rows."""
        folder = self.folder / name
        descriptions = write_suite(folder, stories, self.plan.sentences, split)
        quietly(build_command(descriptions, folder / "built"))
        return descriptions, read_samples(folder / "built" / f"{split}.parquet")


@dataclass(frozen=True)
class Row:
    """One line of the table; without a peer, `why` says what is missing.

    Attributes:
        ratio: Processor time relative to the peer's, the median over the turns.
        same: Share of results that equal the peer's, where both should give the same.
    """

    task: str
    ours: Cost
    peer: str
    theirs: Cost | None = None
    ratio: float | None = None
    same: float | None = None
    why: str = ""


def compared(
    task: str,
    ours: Sequence[Cost],
    peer: str,
    theirs: Sequence[Cost] = (),
    *,
    each: int = 1,
    same: float | None = None,
    why: str = "",
) -> Row:
    """Make a row of the costs of all turns; `each` is the number of samples that share them."""

    def shared(costs: Sequence[Cost]) -> Cost:
        one = median(costs)
        return Cost(one.clock_s / each, one.cpu_s / each, one.peak_mb)

    if not theirs:
        return Row(task, shared(ours), peer, why=why)
    ratio = statistics.median(one.cpu_s / other.cpu_s for one, other in zip(ours, theirs, strict=True))
    return Row(task, shared(ours), peer, shared(theirs), ratio, same)


def build_command(descriptions: Sequence[Path], out: Path) -> list[str]:
    """Return the command that builds own data."""
    return ["data", "build", "--datasets", ",".join(map(str, descriptions)), "--out", str(out), "--overwrite"]


def quietly(arguments: Sequence[str]) -> None:
    """Run a command line of d2e in this process, without its output; errors are raised."""
    from d2e_sft.cli import run

    quietly_called(lambda: run(arguments))


def quietly_called(act: Callable[[], Any]) -> Any:
    """Call without output."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return act()
