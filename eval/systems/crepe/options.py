"""Options of CREPE's benchmark and scorer, and which prompts and entity states go together."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from eval.systems.crepe.demonstrations import load_demonstrations
from eval.systems.crepe.predictions import Missing, ReadAs
from eval.systems.system import SystemOptions

Prompt = Literal[
    "text",
    "chat",
    "cot",
    "self_ask",
    "code",
    "code_no_step_comments",
    "code_no_event_comments",
    "code_nested",
    "code_flat",
]
Entities = Literal["none", "soft", "hard", "gold", "predicted"]
Parse = Literal["official", "lenient"]

# Sections 4 and 5: gold states go to chain of thought, self-ask and code; the other kinds are code's alone.
PAIRS: dict[Prompt, tuple[Entities, ...]] = {
    "text": ("none",),
    "chat": ("none",),
    "cot": ("none", "gold"),
    "self_ask": ("none", "gold"),
    "code": ("none", "soft", "hard", "gold", "predicted"),
    "code_no_step_comments": ("none",),
    "code_no_event_comments": ("none",),
    "code_nested": ("none",),
    "code_flat": ("none",),
}
# The paper asks its chat model without examples (appendix B.3) and shows the others exactly three.
_SHOTS = {"chat": 0}
_MOST_SHOTS = len(load_demonstrations())


class CrepeOptions(SystemOptions):
    """Options of the benchmark."""

    split: Literal["dev", "test"] = Field("dev", description="dev or test: which official file is read from --data")
    prompt: Prompt = Field("code", description=f"the prompt family: {', '.join(PAIRS)}")
    entities: Entities = Field(
        "none", description="entity states: none, soft or hard (the model writes them), gold, predicted (by a file)"
    )
    entities_file: Path | None = Field(
        None, description="JSON file of predicted entity states: id → step → list of entity, attribute, change"
    )
    shots: int | None = Field(
        None, ge=0, le=_MOST_SHOTS, description=f"solved procedures in the prompt, up to {_MOST_SHOTS}; chat 0, else 3"
    )
    parse: Parse = Field(
        "official", description="of code: official ends at a blank line; lenient reads over blank lines"
    )
    chance_draws: int = Field(1_000, ge=1, description="how often the chance baseline is drawn")
    scoring: ClassVar[frozenset[str]] = frozenset(("parse", "chance_draws"))

    @property
    def shown(self) -> int:
        """How many demonstrations the prompts show."""
        return _SHOTS.get(self.prompt, _MOST_SHOTS) if self.shots is None else self.shots

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if self.entities not in PAIRS[self.prompt]:
            pairs = "; ".join(f"prompt={prompt} with entities={'|'.join(kinds)}" for prompt, kinds in PAIRS.items())
            raise ValueError(
                f"prompt={self.prompt} with entities={self.entities}: the paper has no such prompt; expected one of: "
                f"{pairs}"
            )
        if (self.entities == "predicted") != (self.entities_file is not None):
            got = "no entities_file" if self.entities_file is None else f"entities={self.entities}"
            raise ValueError(f"got {got}; entities=predicted and entities_file=PATH are given together or not at all")
        return self


class CrepeScoreOptions(SystemOptions):
    """Options of the scorer alone."""

    read: ReadAs = Field(
        "auto",
        description="which dictionaries of the file are the predictions: predicted (predicted_event, as the official "
        "outputs have it), event (a file in the gold file's shape), auto (event where nothing is marked as predicted)",
    )
    missing: Missing = Field("error", description="procedures without predictions: error, or leave_out")
    chance_draws: int = Field(1_000, ge=1, description="how often the chance baseline is drawn")
    seed: int = Field(0, ge=0, description="of the chance baseline and the bootstrap")
