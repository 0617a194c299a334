"""WIQA as a benchmark: ask a model all questions of a file, and score its answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from eval.systems.asker import Asker
from eval.systems.system import System, SystemCall, SystemOptions, SystemResult
from eval.systems.wiqa.explanations import explanation_table, score_explanations
from eval.systems.wiqa.graphs import read_graphs
from eval.systems.wiqa.prompts import conversation, most_shots, read_answer
from eval.systems.wiqa.questions import Answers, Missing, Question, read_predictions, read_questions, write_predictions
from eval.systems.wiqa.scorer import measures, score, tables

PREDICTIONS_FILE = "wiqa_predictions.jsonl"
_TOKENS = 12
_FILE = "the question file in the folder --data or --gold"
_GRAPHS = "wiqa_influence_graphs.jsonl: questions then also meet in other texts of the same node"


class WiqaOptions(SystemOptions):
    """Options of the benchmark."""

    file: str = Field("test.jsonl", description=_FILE)
    paragraph: Literal["yes", "no"] = Field(
        "yes",
        description="no leaves the question's paragraph out: the no-paragraph ablation, which is the imagined view",
    )
    shots: int = Field(most_shots(), ge=0, le=most_shots(), description=f"solved examples, up to {most_shots()}")
    graphs: Path | None = Field(None, description=_GRAPHS)
    scoring: ClassVar[frozenset[str]] = frozenset(("graphs",))


class WiqaScoreOptions(SystemOptions):
    """Options of the scorer."""

    file: str = Field("test.jsonl", exclude=True, description=_FILE)
    missing: Missing = Field("error", description="questions without an answer: error, or leave_out")
    graphs: Path | None = Field(None, description=_GRAPHS)
    seed: int = Field(0, ge=0, description="seed of the polarity baseline's random labels and the bootstrap")


class Wiqa(System[Sequence[Question], Answers]):
    """Questions about influences; `max_samples` counts questions."""

    name = "wiqa"
    title = "WIQA (Tandon et al., EMNLP 2019)"
    official_files = "test.jsonl of the release wiqa-dataset-v2-october-2019, github.com/allenai/wiqa-dataset"
    obtain = "d2e data download wiqa"
    options = WiqaOptions
    score_options = WiqaScoreOptions

    def gold_files(self, options: Any) -> Sequence[str]:
        return (options.file,)

    def prediction_files(self, options: Any) -> Sequence[str]:
        return (PREDICTIONS_FILE,)

    def read_gold(self, path: Path, options: Any) -> Sequence[Question]:
        return read_questions(path)

    def ask(self, gold: Sequence[Question], call: SystemCall, asker: Asker) -> Answers:
        options: WiqaOptions = call.options
        questions, paragraph = call.drawn(gold), options.paragraph == "yes"
        chats = [conversation(self.name, one, shots=options.shots, paragraph=paragraph) for one in questions]
        outputs = asker.ask("answers", chats, max_new_tokens=_TOKENS)
        labels = {question.id: read_answer(output) for question, output in zip(questions, outputs, strict=True)}
        return Answers(labels, {}, Path(options.file).name + ", without the paragraph" * (not paragraph))

    def read_predictions(self, path: Path, gold: Sequence[Question], options: Any) -> Answers:
        return read_predictions(path, gold, options.missing)

    def evaluate(self, gold: Sequence[Question], answers: Answers, options: Any, seed: int) -> SystemResult:
        graphs = read_graphs(options.graphs) if options.graphs else None
        asked = [question for question in gold if question.id in answers.labels]
        scores, notes = score(asked, answers.labels, graphs, seed), []
        if isinstance(options, WiqaScoreOptions):
            scores["missing"] = missing = len(gold) - len(asked)
            notes = [f"{missing} questions have no answer and are left out"] if missing else []
        shown = tables(scores, f"WIQA, {answers.title}", notes)
        if answers.explanations and any(question.explanation for question in gold):
            scores["explanations"] = score_explanations(asked, answers)
            shown.append(explanation_table(scores["explanations"]))
        return SystemResult(scores, shown, measures=measures(asked, answers.labels))

    def files(self, gold: Sequence[Question], answers: Answers) -> dict[str, str]:
        return {PREDICTIONS_FILE: write_predictions(answers.labels)}

    def template(self, gold: Sequence[Question], options: Any) -> Iterator[dict[str, Any]]:
        """Return one line per question, whose text is only there to be read."""
        return ({"ques_id": question.id, "question": question.stem, "answer": ""} for question in gold)


WIQA = Wiqa()
