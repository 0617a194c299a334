"""WIQA as a benchmark: ask a model all questions of a file, and score what it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from d2e_sft.util.errors import UserError
from eval.systems.asker import Asker
from eval.systems.system import System, SystemCall, SystemOptions, SystemResult
from eval.systems.wiqa.explanations import explanation_table, read_explanations, score_explanations
from eval.systems.wiqa.graphs import read_graphs
from eval.systems.wiqa.prompts import conversation, most_shots, read_answer
from eval.systems.wiqa.questions import Missing, read_predictions, read_questions, write_predictions
from eval.systems.wiqa.scorer import measures, score, tables

PREDICTIONS_FILE = "wiqa_predictions.jsonl"
_TOKENS = 12


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

    file: str = Field("test.jsonl", exclude=True, description="the question file, where --gold is a folder")
    missing: Missing = Field("error", description="questions without an answer: error, or leave_out")
    graphs: Path | None = Field(
        None, description="wiqa_influence_graphs.jsonl: questions then also meet in other texts of the same node"
    )
    seed: int = Field(0, ge=0, description="of the polarity baseline's random labels and the bootstrap")


def _run(call: SystemCall, asker: Asker) -> SystemResult:
    """Ask every question of a file, which are what `max_samples` counts, and score the answers."""
    options: WiqaOptions = call.options
    graphs = read_graphs(options.graphs) if options.graphs else None
    path = call.data / options.file if call.data.is_dir() else call.data
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected WIQA's questions", "give --data DIR and --set file=NAME")
    questions = call.drawn(read_questions(path))
    shown = options.paragraph == "yes"
    chats = [conversation("wiqa", question, shots=options.shots, paragraph=shown) for question in questions]
    outputs = asker.ask("answers", chats, max_new_tokens=_TOKENS)
    answers = {question.id: read_answer(output) for question, output in zip(questions, outputs, strict=True)}
    scores = score(questions, answers, graphs, call.seed)
    title = f"WIQA, {path.name}" + ", without the paragraph" * (not shown)
    files = {PREDICTIONS_FILE: write_predictions(answers)}
    return SystemResult(scores, tables(scores, title, []), files, measures=measures(questions, answers))


def _score(predictions: Path, gold: Path, options: Any) -> SystemResult:
    """Score a file of answers."""
    questions = read_questions(gold)
    answers = read_predictions(predictions, questions, options.missing)
    graphs = read_graphs(options.graphs) if options.graphs else None
    scores = score(questions, answers, graphs, options.seed)
    scores["missing"] = len(questions) - len(answers)
    notes = [f"{scores['missing']} questions have no answer and are left out"] if scores["missing"] else []
    shown = tables(scores, f"WIQA, {predictions.name}", notes)
    explained, said = read_explanations(gold), read_explanations(predictions)
    if explained and said:
        scores["explanations"] = score_explanations(questions, answers, explained, said)
        shown.append(explanation_table(scores["explanations"]))
    return SystemResult(scores, shown, measures=measures(questions, answers))


def _template(gold: Path, options: Any) -> Iterator[dict[str, Any]]:
    """A line a question, which stands there to be read."""
    return ({"ques_id": question.id, "question": question.stem, "answer": ""} for question in read_questions(gold))


WIQA = System(
    name="wiqa",
    title="WIQA (Tandon et al., EMNLP 2019)",
    files="test.jsonl of the release wiqa-dataset-v2-october-2019, github.com/allenai/wiqa-dataset",
    obtain="d2e data download wiqa",
    options=WiqaOptions,
    score_options=WiqaScoreOptions,
    run=_run,
    score=_score,
    prediction_files=lambda options: (PREDICTIONS_FILE,),
    gold_files=lambda options: (options.file,),
    template=_template,
)
