"""Options of the benchmark and of its scorer."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from eval.systems.openpi2.tracking_prompts import Form
from eval.systems.system import SystemOptions

Task = Literal["all", "schemata", "states", "complete", "salience", "clusters", "expansion", "crepe", "pddl"]
ScoredTask = Literal["schemata", "states", "complete", "salience", "entity_clusters", "attribute_clusters", "pddl"]


class ScorerOptions(SystemOptions):
    """What the scorer alone needs to know."""

    task: ScoredTask = Field(default="schemata", description="what the predictions are of")
    bertscore_model: str | None = Field(
        default=None, description="scorer model of BERTScore; none is computed without"
    )
    bertscore_layers: int | None = Field(default=None, ge=1, description="the layer compared, where not known")
    planner_seconds: float = Field(default=30.0, gt=0, description="for task=pddl: time for one problem")


class OpenPIOptions(SystemOptions):
    """What is asked and how; what is excluded says how to score, so that answers are kept when it changes."""

    task: Task = Field(default="all", description="all is schemata, states and complete")
    prompt: Form = Field(
        default="chat", description="chat: turns, as for gpt-3.5-turbo; text: as for text-davinci-003"
    )
    temperature: float = Field(
        default=0.0, ge=0, description="of all tasks but clusters and expansion, which take 0.7"
    )
    bertscore_model: str | None = Field(
        default=None, exclude=True, description="scorer model of BERTScore; none is computed without"
    )
    bertscore_layers: int | None = Field(
        default=None, ge=1, exclude=True, description="the layer compared, where not known"
    )
    entity_runs: int = Field(default=5, ge=1, description="answers that make one clustering of entities")
    attribute_runs: int = Field(default=3, ge=1, description="answers that make one clustering of attributes")
    repeats: int = Field(default=5, ge=1, description="clusterings of entities, whose scores are averaged")
    expansion_runs: int = Field(default=3, ge=1, description="answers whose paraphrases are joined")
    crepe_file: Path | None = Field(default=None, description="CREPE's data file, for task=crepe")
    salient: int = Field(default=5, ge=0, le=5, description="least local salience of salient entities")
    entities: Literal["none", "all", "salient"] = Field(
        default="none", description="for task=pddl: the entity states that the prompt tells"
    )
    pddl_file: Path | None = Field(default=None, description="planning tasks, for task=pddl; none is our own set")
    planner_seconds: float = Field(default=30.0, gt=0, exclude=True, description="for task=pddl: time for one problem")
