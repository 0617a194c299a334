"""What the tasks share: options, the base of a task, questions step by step, precision and recall, BERTScore.

The prompts of schemata, states and complete sentences are a demonstration, then the procedure step by step. A prompt
has turns, or in other forms than chat is one text to be continued. The imagined view leaves out the procedure's goal
and steps, and so the answers to earlier steps.

BERTScore (Zhang et al., ICLR 2020) is that of the package `bert-score`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from d2e_sft.data.chat_template import Continuation, Form
from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table
from eval.run.task import TaskItem
from eval.score.measures import Measure, measure
from eval.systems.asking import Asker, ask_by_turns, conversation
from eval.systems.benchmark import Answers, Benchmark, BenchmarkCall, BenchmarkOptions, Gold
from eval.systems.openpi2.gold import (
    CLUSTERED,
    EXPANDED,
    Procedures,
    empty_lines,
    official_text,
    read_by_step,
    read_clustered,
    sentence,
)

TaskName = Literal[
    "all", "schemata", "states", "complete", "salience", "clusters", "expansion", "crepe", "crepe_states"
]
AttributeForm = Literal["vanilla", "concise"]
PredictionKind = Literal[
    "schemata", "errors", "states", "complete", "salience", "entity_clusters", "attribute_clusters"
]
# How to score, which is no part of what is asked: answers are kept when it changes.
ScorerModel = Annotated[str | None, Field(exclude=True, description="BERTScore's model; none is computed without")]
ScorerLayers = Annotated[int | None, Field(ge=1, exclude=True, description="the layer compared, where not known")]


class ScorerOptions(BenchmarkOptions):
    task: PredictionKind = Field(default="schemata", description="what the predictions are of")
    attribute_form: AttributeForm = Field(
        default="vanilla", description="how attribute clusters are written: concise is ATTRIBUTE of ENTITY"
    )
    bertscore_model: ScorerModel = None
    bertscore_layers: ScorerLayers = None
    seed: ClassVar[int] = 0


class OpenPIOptions(BenchmarkOptions):
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


class OpenPITask(Benchmark[Gold, Answers]):
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


TRACKING = "openpi2/prompts/tracking"
Listing = Literal["schemata", "complete"]
_LISTING_TOKENS = 200  # as the official scripts ask for
BEGUN = Continuation(cue=None, stops=("\n\n", "\nStep:"))  # the texts here end where the answer begins


def ask_listing(
    asker: Asker, task: Listing, form: Form, procedures: Procedures, *, name: str = "", **sampling: Any
) -> dict[str, list[str]]:
    """Return the reply to each step, asked with the replies before it; `name` is of the passes [the task's]."""

    def next_step(key: str, replies: Sequence[str]) -> TaskItem:
        procedure, count = procedures[key], len(replies) + 1
        values = {"goal": procedure.goal, "steps": procedure.steps[:count], "replies": replies, "sentence": sentence}
        return conversation("openpi2", f"{key}/{count}", TRACKING, task=task, form=form, **values)

    return ask_by_turns(
        asker,
        f"{name or task}-step{{}}",
        {key: len(procedure.steps) for key, procedure in procedures.items()},
        next_step,
        read=lambda output: cut_answer(output, form, task),
        max_new_tokens=_LISTING_TOKENS,
        style=BEGUN,
        **sampling,
    )


Listed = Mapping[str, Sequence[Any]]  # by procedure, what is listed at each step


class ListingTask(OpenPITask[Procedures, Listed]):
    """A task that lists something at each step; `schema` is what a file of predictions has for one step."""

    kind: ClassVar[Listing]
    # The expanded file also has the clusters without paraphrases.
    official = (EXPANDED, CLUSTERED)
    schema: ClassVar[Any]

    def parse(self, reply: str) -> Any:
        raise NotImplementedError

    def read_gold(self, path: Path, options: Any) -> Procedures:
        return read_clustered(path)

    def ask(self, gold: Procedures, call: BenchmarkCall, asker: Asker) -> Listed:
        scorer_of(call.options)
        replies = ask_listing(asker, self.kind, call.form, call.drawn_from(gold), **call.sampling)
        return {key: list(map(self.parse, texts)) for key, texts in replies.items()}

    def read_predictions(self, path: Path, gold: Procedures, options: Any) -> Listed:
        return read_by_step(path, {key: procedure.steps for key, procedure in gold.items()}, self.schema)

    def template(self, gold: Procedures, options: Any) -> Iterator[dict[str, Any]]:
        return empty_lines(self.kind, gold)


def cut_answer(output: str, form: Form, task: str) -> str:
    """Return what belongs to this answer: in a continued text its line, or the lines up to the next step."""
    if form == "chat":
        return output.strip()
    if task == "complete":
        return output.split("Step:", maxsplit=1)[0].strip()
    return output.strip().split("\n", maxsplit=1)[0].strip()


@dataclass
class PrecisionRecall:
    """Counts of what was predicted and what was to be found; a ratio without anything below is 0.

    The official counts of hits are not always of the same things (see `schemata`), so recall may exceed 1.
    """

    predicted: int = 0
    predicted_right: int = 0
    gold: int = 0
    gold_found: int = 0

    @property
    def precision(self) -> float:
        return self.predicted_right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return self.gold_found / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        return cls(*map(sum, zip(*map(astuple, parts), strict=True)))

    def count(self, predicted: Set[object], gold: Set[object]) -> None:
        """Add distinct predictions and gold items; items in both are correct and found."""
        shared = len(predicted & gold)
        self.predicted += len(predicted)
        self.predicted_right += shared
        self.gold += len(gold)
        self.gold_found += shared

    def as_json(self) -> dict[str, Any]:
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1, **vars(self)}


def f1_measure(name: str, gold: str, figures: Mapping[str, PrecisionRecall]) -> list[Measure]:
    """Return F1 procedure by procedure, from the figures of each procedure."""
    return measure(name, "f1", "procedures", gold, {key: astuple(item) for key, item in figures.items()})


# Candidates and references, one to one → F1 of each.
BertScorer = Callable[[Sequence[str], Sequence[str]], list[float]]
_AT_ONCE = 20_000  # pairs; the package holds the states of their texts in memory
_LONGEST = 512  # tokens; the positions of the usual scorer models


def scorer_of(options: OpenPIOptions | ScorerOptions) -> BertScorer | None:
    """Return the scorer of BERTScore, if any; call it before asking a model, because it may fail to load."""
    return None if options.bertscore_model is None else bert_scorer(options.bertscore_model, options.bertscore_layers)


@lru_cache(maxsize=1)  # several tasks of a run take the same
def bert_scorer(model: str, layers: int | None = None) -> BertScorer:
    """Load a scorer by a Hub name or folder; UserError if that fails. `layers=None` is the package's choice."""
    try:
        from bert_score import BERTScorer

        scorer: Any = BERTScorer(model_type=model, num_layers=layers)
    except ImportError as error:
        remedy = "pip install 'd2e-sft[openpi2]'"
        raise UserError(f"bertscore_model={model}: needs the package bert-score ({error})", remedy) from None
    except KeyError:
        raise UserError(
            f"bertscore_model={model}: bert-score does not know which of its layers to compare",
            remedy="name one: bertscore_layers=N, counted from 1 (the paper's model takes 40)",
        ) from None
    except (OSError, ValueError, AssertionError) as error:
        raise UserError(f"bertscore_model={model}: cannot be loaded ({error})", "name a model or folder") from None
    # Tokenizers that know no limit say 10^30, on which the package's call of newer transformers fails.
    scorer._tokenizer.model_max_length = min(scorer._tokenizer.model_max_length, _LONGEST)

    def score(candidates: Sequence[str], references: Sequence[str]) -> list[float]:
        # An empty text scores 0, which the package would say too but for transformers that lack a method it calls.
        pairs = list(zip(candidates, references, strict=True))
        unlike = list(dict.fromkeys(pair for pair in pairs if pair[0].strip() and pair[1].strip()))
        known: dict[tuple[str, str], float] = {}
        for start in range(0, len(unlike), _AT_ONCE):
            some = unlike[start : start + _AT_ONCE]
            _, _, f1 = scorer.score([pair[0] for pair in some], [pair[1] for pair in some])
            known |= zip(some, f1.tolist(), strict=True)
        return [known.get(pair, 0.0) for pair in pairs]

    return score


def best_scores(scorer: BertScorer, candidates: Sequence[tuple[str, Sequence[str]]]) -> list[float]:
    """Return for each text the best F1 over its references; texts without a reference are left out, as officially."""
    pairs = [(text, reference) for text, references in candidates for reference in references]
    scores = iter(scorer([text for text, _ in pairs], [reference for _, reference in pairs]))
    return [max(next(scores) for _ in references) for _, references in candidates if references]


def bertscore_table(title: str, rows: list[tuple[str, float | None, float | None]]) -> Table:
    """Return BERTScore without and with expansion; its title says how to compute it."""
    missing = all(plain is None and expanded is None for _, plain, expanded in rows)
    title = f"{title}: not computed, set bertscore_model=NAME" if missing else title
    return Table.of(("of", "BERTScore", "+ expansion"), [(name, *map(cell, values)) for name, *values in rows], title)


def cell(value: float | None) -> str:
    return "not computed" if value is None else f"{value:.3f}"


def scored(count: int, total: int, noun: str = "procedures") -> str:
    return f"{count} {noun}" if count == total else f"{count} of {total} {noun}"
