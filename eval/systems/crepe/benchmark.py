"""CREPE as a benchmark: ask a model about each event after each step, and score what it says."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from d2e_sft.data.chat_template import BEGUN, LINES, Continuation
from d2e_sft.util.errors import UserError
from eval.systems.asking import Asker
from eval.systems.benchmark import Benchmark, BenchmarkCall, BenchmarkOptions, BenchmarkResult
from eval.systems.crepe import scorer
from eval.systems.crepe.code import ask_code, ask_flat, ask_two_steps
from eval.systems.crepe.gold import (
    LABELS,
    CrepePredictions,
    CrepeProcedure,
    ReadAs,
    fitting_states,
    predictions_text,
    read_predictions,
    read_procedures,
    read_states,
)
from eval.systems.crepe.parse import Parse
from eval.systems.crepe.prompts import (
    MOST_SHOTS,
    SHOTS,
    Demonstration,
    Entities,
    Family,
    Request,
    ask_texts,
    drawn_demonstrations,
    load_demonstrations,
)
from eval.systems.labels import Missing

PREDICTIONS_FILE = "crepe_predictions.json"
_FILES = {"dev": "data_dev_v2.json", "test": "data_test_v2.json"}
HUMAN = "dev_data_human_labeled.json"  # a second annotator's labels of dev, if it is next to the gold file
# Sections 4 and 5: gold states go to chain of thought, self-ask and code; the other kinds only to code. The paper
# asks its chat model without examples (appendix B.3) and shows the others exactly three; but its script for T5 and T0
# (appendix B.4) shows none. In one text, answers of several lines begin on a line of their own, and code stays code.
_CODE = Continuation(cue="", comment="# ")
FAMILIES: dict[str, Family] = {
    "text": Family(ask_texts, by_event=True),
    "text_change": Family(ask_texts, by_event=True),
    "text_at_once": Family(ask_texts, by_event=True, style=LINES),
    "yes_no": Family(ask_texts, shots=0, by_event=True, style=BEGUN),
    "two_questions": Family(ask_texts, shots=0, by_event=True),  # the style of training rows
    "chat": Family(ask_texts, shots=0, by_event=True),
    "cot": Family(ask_texts, ("none", "gold"), by_event=True),
    "self_ask": Family(ask_texts, ("none", "gold"), by_event=True, style=LINES),
    "code": Family(ask_code, ("none", "soft", "hard", "gold", "predicted"), style=_CODE),
    "code_no_step_comments": Family(ask_code, style=_CODE),
    "code_no_event_comments": Family(ask_code, style=_CODE),
    "code_nested": Family(ask_code, style=_CODE),
    "code_flat": Family(ask_flat, by_event=True, style=Continuation(cue=None, comment="# ")),
    "code_two_step": Family(ask_two_steps, style=_CODE),
}
if TYPE_CHECKING:
    Prompt = str
else:
    Prompt = Literal[tuple(FAMILIES)]


class CrepeOptions(BenchmarkOptions):
    split: Literal["dev", "test"] = Field("dev", description="dev or test: which official file is read from --data")
    prompt: Prompt = Field("code", description=f"the prompt family: {', '.join(FAMILIES)}")
    entities: Entities = Field(
        "none", description="entity states: none, soft or hard (the model writes them), gold, predicted (by a file)"
    )
    entities_file: Path | None = Field(
        None, description="JSON file of predicted entity states: id → step → list of entity, attribute, change"
    )
    shots: int | None = Field(
        None,
        ge=0,
        le=MOST_SHOTS,
        description=f"solved procedures in the prompt, up to {MOST_SHOTS}; chat, yes_no and two_questions 0, "
        f"else {SHOTS}",
    )
    demonstrations: Literal["first", "random"] = Field(
        "first", description="which they are: the first ones, or drawn with --seed"
    )
    parse: Parse = Field("official", description="of code: official ends at a blank line, lenient reads over them")
    chance_draws: int = Field(1_000, ge=1, le=100_000, description="how often the chance baseline is drawn")
    scoring: ClassVar[frozenset[str]] = frozenset(("parse", "chance_draws"))
    choosing: ClassVar[Mapping[str, Any] | None] = {"prompt": "yes_no"}

    def shown(self, seed: int) -> list[Demonstration]:
        family = FAMILIES[self.prompt]
        count = family.shots if self.shots is None else self.shots
        if self.demonstrations == "first":
            return list(load_demonstrations()[:count])
        return drawn_demonstrations(count, seed, by_event=family.by_event)

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if self.entities not in FAMILIES[self.prompt].entities:
            pairs = "; ".join(f"prompt={name} with entities={'|'.join(f.entities)}" for name, f in FAMILIES.items())
            raise ValueError(
                f"prompt={self.prompt} with entities={self.entities}: the paper has no such prompt; expected one of: "
                f"{pairs}"
            )
        if (self.entities == "predicted") != (self.entities_file is not None):
            form = "no entities_file" if self.entities_file is None else f"entities={self.entities}"
            raise ValueError(f"got {form}; entities=predicted and entities_file=PATH are given together or not at all")
        return self


class CrepeScoreOptions(BenchmarkOptions):
    split: Literal["dev", "test"] = Field(
        "dev", exclude=True, description="dev or test: which official file, where --gold is a folder"
    )
    read: ReadAs = Field(
        "auto",
        description="which dictionaries of the file are the predictions: predicted (predicted_event, as the official "
        "outputs have it), event (a file in the gold file's shape), auto (event where nothing is marked as predicted)",
    )
    missing: Missing = Field("error", description="procedures without predictions: error, or leave_out")
    eoi: Path | None = Field(None, description="data_dev_v2_eoi.json: also score by entity of interest, as in Table 6")
    chance_draws: int = Field(1_000, ge=1, le=100_000, description="how often the chance baseline is drawn")
    seed: int = Field(0, ge=0, description="seed of the chance baseline and the bootstrap")


class Crepe(Benchmark[Sequence[CrepeProcedure], CrepePredictions]):
    """Likelihoods of events after each step; `max_samples` counts procedures."""

    name = "crepe"
    title = "CREPE (Zhang et al., Findings of EACL 2023)"
    official_files = f"{' and '.join(_FILES.values())} of github.com/zharry29/causal_reasoning_of_entities_and_events"
    obtain = "d2e data download crepe"
    options = CrepeOptions
    score_options = CrepeScoreOptions

    def gold_files(self, options: Any) -> Sequence[str]:
        return (_FILES[options.split],)

    def prediction_files(self, options: Any) -> Sequence[str]:
        return (PREDICTIONS_FILE,)

    def read_gold(self, path: Path, options: Any) -> Sequence[CrepeProcedure]:
        procedures, human = read_procedures(path), path.with_name(HUMAN)
        if path.name != _FILES["dev"] or not human.is_file():
            return procedures
        changes = read_predictions(human, procedures, "predicted", "error").changes
        return [procedure.model_copy(update={"human": changes[procedure.id]}) for procedure in procedures]

    def ask(self, gold: Sequence[CrepeProcedure], call: BenchmarkCall, asker: Asker) -> CrepePredictions:
        options: CrepeOptions = call.options
        procedures, family = call.drawn(gold), FAMILIES[options.prompt]
        states: dict[str, Any] = {}
        if options.entities == "gold":
            states = {procedure.id: [block.entities for block in procedure.blocks] for procedure in procedures}
        if options.entities_file is not None:
            predicted = read_states(options.entities_file, gold)
            states = {p.id: fitting_states(p, predicted[p.id], call.seed) for p in procedures}
        request = Request(
            dataset=f"crepe-{options.split}",
            procedures=procedures,
            prompt=options.prompt,
            entities=options.entities,
            demonstrations=options.shown(call.seed),
            states=states,
            parse=options.parse,
            by_likelihood=call.by_likelihood,
            style=family.style,
        )
        answers = family.ask(request, asker)
        # What could not be read counts as equally likely, as in the official code.
        changes = {
            p.id: [
                {event: LABELS[label] for event, label in zip(p.events, row, strict=True) if label}
                for row in answers[p.id].labels
            ]
            for p in procedures
        }
        unread = sum(label is None for answer in answers.values() for row in answer.labels for label in row)
        title = f"CREPE {options.split}, prompt={options.prompt}, entities={options.entities}"
        entities = {name: answer.entities for name, answer in answers.items()}
        count = sum(answer.inconsistent for answer in answers.values())
        facts, notes = {}, []
        if options.prompt == "two_questions":
            facts = {"inconsistent": count}
            notes = [f"{count} pairs got True for both questions, which counts as no change"]
        return CrepePredictions(changes, title, unread, facts, notes, entities=entities)

    def read_predictions(self, path: Path, gold: Sequence[CrepeProcedure], options: Any) -> CrepePredictions:
        return read_predictions(path, gold, options.read, options.missing)

    def files(self, gold: Sequence[CrepeProcedure], answers: CrepePredictions) -> dict[str, str]:
        procedures = [procedure for procedure in gold if procedure.id in answers.changes]
        return {PREDICTIONS_FILE: predictions_text(procedures, answers)}

    def template(self, gold: Sequence[CrepeProcedure], options: Any) -> Iterator[dict[str, Any]]:
        for name, step, event in (pair for procedure in gold for pair in procedure.pairs):
            yield {"procedure": name, "step": step, "event": event, "change": ""}

    def evaluate(
        self, gold: Sequence[CrepeProcedure], answers: CrepePredictions, options: Any, seed: int
    ) -> BenchmarkResult:
        pairs = scorer.flatten(gold, answers)
        scores = {**scorer.score(pairs, draws=options.chance_draws, seed=seed), **answers.facts}
        if answers.unread is not None:
            scores["unparsed"] = {"share": answers.unread / len(pairs.rows), "pairs": answers.unread}
        outputs = answers.procedures if answers.facts.get("read") == "predicted" else ()
        if by_relation := scorer.score_by_relation(gold, outputs):
            scores["by_relation"] = by_relation
        if eoi := getattr(options, "eoi", None):
            if not answers.procedures:
                raise UserError(
                    f"--set eoi={eoi}: Table 6 needs predictions in the official form; got a flat file",
                    remedy="give predictions in the official form, or leave eoi out",
                )
            scores["by_interest"] = scorer.score_by_interest(scorer.read_labels(eoi), pairs, outputs)
        shown = scorer.tables(scores, answers.title, answers.notes)
        return BenchmarkResult(scores, shown, warnings=answers.warnings, measures=scorer.measures(pairs))


CREPE = Crepe()
