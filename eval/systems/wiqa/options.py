"""Options of WIQA's benchmark and scorer."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from eval.systems.system import SystemOptions
from eval.systems.wiqa.predictions import Missing
from eval.systems.wiqa.prompts import most_shots


class WiqaOptions(SystemOptions):
    """Options of the benchmark."""

    file: str = Field("test.jsonl", description="the question file in the folder --data")
    paragraph: Literal["yes", "no"] = Field(
        "yes",
        description="no leaves the question's paragraph out: the no-paragraph ablation, which is the imagined view",
    )
    shots: int = Field(most_shots(), ge=0, le=most_shots(), description=f"solved examples, up to {most_shots()}")
    graphs: Path | None = Field(
        None, description="wiqa_influence_graphs.jsonl: questions then also meet in other texts of the same node"
    )
    scoring: ClassVar[frozenset[str]] = frozenset(("graphs",))


class WiqaScoreOptions(SystemOptions):
    """Options of the scorer alone."""

    missing: Missing = Field("error", description="questions without an answer: error, or leave_out")
    graphs: Path | None = Field(
        None, description="wiqa_influence_graphs.jsonl: questions then also meet in other texts of the same node"
    )
    seed: int = Field(0, ge=0, description="of the polarity baseline's random labels and the bootstrap")
