"""What the tasks share: the options of the benchmark and of its scorer, and the base of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field

from d2e_sft.data.chat_template import Messages
from eval.run.task import Conversation
from eval.systems.openpi2.gold import official_text
from eval.systems.openpi2.metrics import Scorer, bert_scorer
from eval.systems.system import Answers, Gold, System, SystemCall, SystemOptions

Item = TypeVar("Item")
TaskName = Literal[
    "all", "schemata", "states", "complete", "salience", "clusters", "expansion", "crepe", "crepe_states", "pddl"
]
AttributeForm = Literal["vanilla", "concise"]
PredictionKind = Literal[
    "schemata", "errors", "states", "complete", "salience", "entity_clusters", "attribute_clusters", "pddl"
]
# How to score, which is no part of what is asked: answers are kept when it changes.
ScorerModel = Annotated[str | None, Field(exclude=True, description="BERTScore's model; none is computed without")]
ScorerLayers = Annotated[int | None, Field(ge=1, exclude=True, description="the layer compared, where not known")]
PlannerSeconds = Annotated[
    float, Field(gt=0, le=86_400, exclude=True, description="for task=pddl: time for one problem")
]


class ScorerOptions(SystemOptions):
    """Options of the scorer."""

    task: PredictionKind = Field(default="schemata", description="what the predictions are of")
    attribute_form: AttributeForm = Field(
        default="vanilla", description="how attribute clusters are written: concise is ATTRIBUTE of ENTITY"
    )
    bertscore_model: ScorerModel = None
    bertscore_layers: ScorerLayers = None
    planner_seconds: PlannerSeconds = 30.0
    seed: ClassVar[int] = 0


class OpenPIOptions(SystemOptions):
    """What is asked and how, and how it is scored."""

    task: TaskName = Field(default="all", description="all is schemata, states and complete")
    temperature: float = Field(0.0, ge=0, description="for all tasks but clusters and expansion, which take 0.7")
    bertscore_model: ScorerModel = None
    bertscore_layers: ScorerLayers = None
    entity_runs: int = Field(default=5, ge=1, le=100, description="answers that make one clustering of entities")
    attribute_runs: int = Field(default=3, ge=1, le=100, description="answers that make one clustering of attributes")
    attribute_form: AttributeForm = Field(
        default="vanilla", description="how attributes are shown for clustering: concise is ATTRIBUTE of ENTITY"
    )
    repeats: int = Field(default=5, ge=1, le=1_000, description="clusterings of entities, whose scores are averaged")
    expansion_runs: int = Field(default=3, ge=1, le=100, description="answers whose paraphrases are joined")
    crepe_file: Path | None = Field(default=None, description="CREPE's data file, for task=crepe and crepe_states")
    salient: int = Field(default=5, ge=0, le=5, description="least local salience of salient entities")
    entities: Literal["none", "all", "salient"] = Field(
        default="none", description="for task=pddl: the entity states that the prompt tells"
    )
    pddl_file: Path | None = Field(default=None, description="planning tasks, for task=pddl; none is our own set")
    planner_seconds: PlannerSeconds = 30.0


class Task(System[Gold, Answers]):
    """One task or kind of predictions; `kind` names their file, `official` are names of the gold file, best first."""

    obtain = "d2e data download openpi2"
    kind: ClassVar[str]
    official: ClassVar[tuple[str, ...]] = ()

    def gold_files(self, options: Any) -> Sequence[str]:
        return self.official

    def prediction_files(self, options: Any) -> Sequence[str]:
        return (f"{self.kind}.json",)

    def files(self, gold: Gold, answers: Answers) -> dict[str, str]:
        return {f"{self.kind}.json": official_text(answers)}


def drawn(call: SystemCall, items: Mapping[str, Item]) -> dict[str, Item]:
    """Return at most `max_samples` of the items."""
    return {key: items[key] for key in call.drawn(list(items))}


def sampling(call: SystemCall) -> dict[str, Any]:
    """Return temperature and seed of a run, for `Asker.ask`."""
    return {"temperature": call.options.temperature, "seed": call.seed}


def scorer_of(options: OpenPIOptions | ScorerOptions) -> Scorer | None:
    """Return the scorer of BERTScore, if any; call it before asking a model, because it may fail to load."""
    return None if options.bertscore_model is None else bert_scorer(options.bertscore_model, options.bertscore_layers)


def conversation(name: str, prompt: Callable[..., Messages], *about: Any, group: str = "") -> Conversation:
    """Return a prompt in both views: as it is, and `hidden`."""
    return Conversation("openpi2", name, prompt(*about), prompt(*about, hidden=True), group=group)
