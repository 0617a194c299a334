"""CREPE as a benchmark: ask a model about each event after each step, and score what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from d2e_sft.util.errors import UserError
from eval.systems.asker import Asker
from eval.systems.crepe.code_families import ask_code, ask_flat
from eval.systems.crepe.demonstrations import Demonstration, drawn_demonstrations, load_demonstrations
from eval.systems.crepe.family import MOST_SHOTS, SHOTS, Entities, Family, Request
from eval.systems.crepe.gold import (
    EQUALLY,
    Procedure,
    States,
    fitting_states,
    gold_states,
    read_procedures,
    read_states,
)
from eval.systems.crepe.interest import interest_table, read_labels, score_by_interest
from eval.systems.crepe.parse import Answer, Parse
from eval.systems.crepe.predictions import (
    Missing,
    Predicted,
    PredictionFile,
    ReadAs,
    read_predictions,
    write_predictions,
)
from eval.systems.crepe.relation import relation_table, score_by_relation
from eval.systems.crepe.scorer import measures, score, tables
from eval.systems.crepe.text_at_once import ask_at_once
from eval.systems.crepe.text_families import ask_texts
from eval.systems.crepe.turn_families import ask_changes, ask_chat
from eval.systems.crepe.two_step import ask_two_steps
from eval.systems.flat import crepe as flat
from eval.systems.system import System, SystemCall, SystemOptions, SystemResult

PREDICTIONS_FILE = "crepe_predictions.json"
_FILES = {"dev": "data_dev_v2.json", "test": "data_test_v2.json"}
# Sections 4 and 5: gold states go to chain of thought, self-ask and code; the other kinds are code's alone. The paper
# asks its chat model without examples (appendix B.3) and shows the others exactly three; but its script for T5 and T0
# (appendix B.4) shows none.
FAMILIES: dict[str, Family] = {
    "text": Family(ask_texts, by_event=True, by_step=True),
    "text_change": Family(ask_changes, by_event=True),
    "text_at_once": Family(ask_at_once, by_event=True),
    "yes_no": Family(ask_texts, shots=0, by_event=True),
    "chat": Family(ask_chat, shots=0, by_event=True, by_step=True),
    "cot": Family(ask_changes, ("none", "gold"), by_event=True, by_step=True),
    "self_ask": Family(ask_texts, ("none", "gold"), by_event=True, by_step=True),
    "code": Family(ask_code, ("none", "soft", "hard", "gold", "predicted")),
    "code_no_step_comments": Family(ask_code),
    "code_no_event_comments": Family(ask_code),
    "code_nested": Family(ask_code),
    "code_flat": Family(ask_flat, by_event=True),
    "code_two_step": Family(ask_two_steps),
}
if TYPE_CHECKING:
    Prompt = str
else:
    Prompt = Literal[tuple(FAMILIES)]


class CrepeOptions(SystemOptions):
    """Options of the benchmark."""

    split: Literal["dev", "test"] = Field("dev", description="dev or test: which official file is read from --data")
    prompt: Prompt = Field("code", description=f"the prompt family: {', '.join(FAMILIES)}")
    entities: Entities = Field(
        "none", description="entity states: none, soft or hard (the model writes them), gold, predicted (by a file)"
    )
    entities_file: Path | None = Field(
        None, description="JSON file of predicted entity states: id → step → list of entity, attribute, change"
    )
    structure: Literal["official", "independent"] = Field(
        "official",
        description="official: as the authors' scripts ask; independent: text, chat, cot and self_ask by each step "
        "alone, likelihoods also before the first step",
    )
    shots: int | None = Field(
        None,
        ge=0,
        le=MOST_SHOTS,
        description=f"solved procedures in the prompt, up to {MOST_SHOTS}; chat and yes_no 0, else {SHOTS}",
    )
    demonstrations: Literal["first", "random"] = Field(
        "first", description="which they are: the first ones, or drawn with --seed"
    )
    parse: Parse = Field(
        "official", description="of code: official ends at a blank line; lenient reads over blank lines"
    )
    chance_draws: int = Field(1_000, ge=1, description="how often the chance baseline is drawn")
    scoring: ClassVar[frozenset[str]] = frozenset(("parse", "chance_draws"))

    @property
    def can_choose(self) -> bool:
        return self.prompt == "yes_no"

    def shown(self, seed: int) -> list[Demonstration]:
        """The demonstrations that the prompts show."""
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
        if self.structure == "independent" and not FAMILIES[self.prompt].by_step:
            forms = ", ".join(name for name, family in FAMILIES.items() if family.by_step)
            raise ValueError(
                f"structure=independent with prompt={self.prompt}: it has one structure; expected one of {forms}"
            )
        if (self.entities == "predicted") != (self.entities_file is not None):
            got = "no entities_file" if self.entities_file is None else f"entities={self.entities}"
            raise ValueError(f"got {got}; entities=predicted and entities_file=PATH are given together or not at all")
        return self


class CrepeScoreOptions(SystemOptions):
    """Options of the scorer alone."""

    split: Literal["dev", "test"] = Field(
        "dev", exclude=True, description="dev or test: which official file, where --gold is a folder"
    )
    read: ReadAs = Field(
        "auto",
        description="which dictionaries of the file are the predictions: predicted (predicted_event, as the official "
        "outputs have it), event (a file in the gold file's shape), auto (event where nothing is marked as predicted)",
    )
    missing: Missing = Field("error", description="procedures without predictions: error, or leave_out")
    eoi: Path | None = Field(
        None, description="data_dev_v2_eoi.json: also score by entity of interest, as Table 6 of the paper"
    )
    chance_draws: int = Field(1_000, ge=1, description="how often the chance baseline is drawn")
    seed: int = Field(0, ge=0, description="of the chance baseline and the bootstrap")


def _run(call: SystemCall, asker: Asker) -> SystemResult:
    """Ask about all (event, step) pairs of a split and score the answers; `max_samples` counts procedures."""
    options: CrepeOptions = call.options
    everything = read_procedures(_gold_file(call.data, options.split))
    procedures = call.drawn(everything)
    request = Request(
        dataset=f"crepe-{options.split}",
        procedures=procedures,
        prompt=options.prompt,
        entities=options.entities,
        demonstrations=options.shown(call.seed),
        states=_states(options, everything, procedures, call.seed),
        parse=options.parse,
        independent=options.structure == "independent",
        by_likelihood=call.by_likelihood,
    )
    answers = FAMILIES[options.prompt].ask(request, asker)
    # What could not be read counts as equally likely, as in the official code.
    labels = {
        name: [[EQUALLY if label is None else label for label in row] for row in answer.labels]
        for name, answer in answers.items()
    }
    predicted = {name: Predicted(rows, rows) for name, rows in labels.items()}
    scores = score(procedures, predicted, draws=options.chance_draws, seed=call.seed)
    scores["unparsed"] = _unparsed(answers)
    title = f"CREPE {options.split}, prompt={options.prompt}, entities={options.entities}"
    written = write_predictions(procedures, labels, {name: answer.entities for name, answer in answers.items()})
    shown = tables(scores, title, [])
    return SystemResult(scores, shown, {PREDICTIONS_FILE: written}, measures=measures(procedures, predicted))


def _score(predictions: Path, gold: Path, options: Any) -> SystemResult:
    """Score an official output file, or one in the gold file's shape."""
    procedures = read_procedures(gold)
    found = read_predictions(predictions, procedures, options.read, options.missing)
    scores = score(procedures, found.procedures, draws=options.chance_draws, seed=options.seed)
    missing = len(procedures) - len(found.procedures)
    scores |= {"read": found.read, "strangers": found.strangers, "missing": missing}
    if found.unread is not None:
        scores["unparsed"] = {"share": found.unread / found.pairs, "pairs": found.unread}
    notes = _notes(options.read, found)
    if missing:
        notes.append(f"{missing} of {len(procedures)} procedures have no predictions and are left out")
    scores["other_gold"] = found.other_gold
    shown = tables(scores, f"CREPE, {predictions.name}", notes)
    if found.read == "predicted" and found.unread is None:
        by_relation = score_by_relation(procedures, read_procedures(predictions))
        if by_relation is not None:
            scores["by_relation"] = by_relation
            shown.append(relation_table(by_relation))
    if options.eoi is not None:
        if found.unread is not None:
            raise UserError(
                f"--set eoi={options.eoi}: Table 6 reads what else stands in the official form; got {predictions}, "
                "which is flat",
                remedy="give predictions in the official form, or leave eoi out",
            )
        rows = {procedure.id: procedure.raw["steps"] for procedure in read_procedures(predictions)}
        official = rows if found.read == "predicted" else None
        scores["by_interest"] = score_by_interest(read_labels(options.eoi), procedures, found.procedures, official)
        shown.append(interest_table(scores["by_interest"]))
    return SystemResult(
        scores,
        shown,
        warnings=_warnings(predictions, gold, found),
        measures=measures(procedures, found.procedures),
    )


def _warnings(predictions: Path, gold: Path, found: PredictionFile) -> list[str]:
    """A file in the official format holds gold, too, and the official script scores against that."""
    if not found.other_gold:
        return []
    return [
        f"{predictions} carries other gold than {gold}: {found.other_gold:,} of {found.pairs:,} (event, step) pairs "
        "have another label there. These scores are against --gold; the official script, which reads the file "
        f"alone, gives others. To score against its own gold: --gold {predictions}"
    ]


def _notes(read: ReadAs, found: PredictionFile) -> list[str]:
    """What the scores of a file have to be read with."""
    notes = []
    if read == "auto" and found.same_events:
        notes.append(
            "nothing is marked as predicted, and the events are the gold ones, so they score as perfect "
            "predictions; of an official output without a predicted change say so: --set read=predicted"
        )
    elif read == "auto" and found.read == "event":
        notes.append("nothing is marked as predicted: the event dictionaries were read as the predictions")
    if found.strangers:
        notes.append(f"{found.strangers} predicted changes are of events that the gold file has not")
    return notes


def _gold_file(data: Path, split: str) -> Path:
    path = data / _FILES[split] if data.is_dir() else data
    if not path.is_file():
        raise UserError(
            f"{path}: no such file; expected CREPE's {split} split", remedy=f"give --data DIR with {_FILES[split]}"
        )
    return path


def _states(
    options: CrepeOptions, everything: Sequence[Procedure], procedures: Sequence[Procedure], seed: int
) -> States:
    if options.entities == "gold":
        return gold_states(procedures)
    if options.entities_file is None:
        return {}
    states = read_states(options.entities_file, everything)
    return {procedure.id: fitting_states(procedure, states[procedure.id], seed) for procedure in procedures}


def _unparsed(answers: Mapping[str, Answer]) -> dict[str, Any]:
    labels = [label for answer in answers.values() for row in answer.labels for label in row]
    missing = sum(label is None for label in labels)
    return {"share": missing / len(labels) if labels else 0.0, "pairs": missing}


CREPE = System(
    name="crepe",
    title="CREPE (Zhang et al., Findings of EACL 2023)",
    files=f"{' and '.join(_FILES.values())} of github.com/zharry29/causal_reasoning_of_entities_and_events",
    obtain="d2e data download crepe",
    options=CrepeOptions,
    score_options=CrepeScoreOptions,
    run=_run,
    score=_score,
    prediction_files=lambda options: (PREDICTIONS_FILE,),
    gold_files=lambda options: (_FILES[options.split],),
    template=lambda gold, options: flat.template(read_procedures(gold)),
)
