"""The base of benchmarks with one label or short text per question; a subclass gives gold rows, prompt and reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

from pydantic import Field, create_model

from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table, percent
from eval.compare.measures.measure import digest, shares
from eval.run.task import Conversation
from eval.score.statistics import bootstrap_average
from eval.systems.asker import Asker
from eval.systems.files import Row, Text, check_ids, json_lines, read_unique
from eval.systems.flat.lines import FlatRow, read_lines, refuse_unfilled
from eval.systems.system import System, SystemCall, SystemOptions, SystemResult

Missing = Literal["error", "leave_out"]
Labels = Mapping[str, Any]  # by question id; None could not be read and is wrong


class LabelOptions(SystemOptions):
    """Options of a run."""

    file: str = Field("test.jsonl", description="the question file in the folder --data or --gold")


class LabelScoreOptions(LabelOptions):
    """Options of the scorer."""

    missing: Missing = Field("error", description="questions without an answer: error, or leave_out")
    seed: int = Field(0, ge=0, description="seed of the bootstrap and of baselines")


class Question(FlatRow):
    """Base of a gold row; the type of `answer` says what may be predicted."""

    id: Text
    answer: Any


Q = TypeVar("Q", bound=Question)


class Answers(NamedTuple):
    """Predicted labels, and the lines of the file that they are from; `title` is for tables."""

    labels: Labels
    title: str
    lines: Mapping[str, Any]


class LabelSystem(System[Sequence[Q], Answers]):
    """A benchmark of questions with one label each; `max_samples` counts questions.

    Attributes:
        question: Class of the gold rows.
        line: Class of the lines of predictions; by default `id` and `answer`, with the type of the question's answer.
        id_name: Field of a question's id in the predictions that a run writes.
        max_new_tokens: Limit of a reply.
    """

    options = LabelOptions
    score_options = LabelScoreOptions
    question: ClassVar[type[Question]]
    line: ClassVar[type[Row] | None] = None
    id_name: ClassVar[str] = "id"
    max_new_tokens: ClassVar[int] = 12

    def conversation(self, question: Q, options: Any) -> Conversation:
        """Return the prompt in both views, and with options if the system's options allow choosing."""
        raise NotImplementedError

    def read_answer(self, reply: str, question: Q) -> Any:
        """Return the answer in a reply, of the type of the gold answers; None if it has no answer."""
        raise NotImplementedError

    def is_right(self, answer: Any, question: Q) -> bool:
        """Return whether an answer is correct; by default it equals the gold answer."""
        return bool(answer == question.answer)

    def scores(self, asked: Sequence[Q], answers: Answers, options: Any, seed: int) -> dict[str, Any]:
        """Return the scores of the questions that have an answer."""
        labels = answers.labels
        right = {one.id: self.is_right(labels[one.id], one) for one in asked}
        groups = {name: accuracy_of([right[one.id] for one in own]) for name, own in self.groups(asked).items()}
        interval = bootstrap_average([list(right.values())], seed=seed)
        unparsed = sum(labels[one.id] is None for one in asked)
        counts: dict[str, Any] = {"questions": len(asked)}
        if names := get_args(self.question.model_fields["answer"].annotation):
            for side, found in (("gold", [o.answer for o in asked]), ("predicted", [labels[o.id] for o in asked])):
                counts[side] = {name: found.count(name) for name in names}
        return {
            "accuracy": interval.mean,
            "accuracy_interval": [interval.low, interval.high],
            **({"by_type": groups} if groups else {}),
            "counts": counts,
            "unparsed": {"share": unparsed / len(asked), "questions": unparsed},
        }

    def tables(self, scores: Mapping[str, Any], title: str, notes: Sequence[str]) -> list[Table]:
        """Return the tables of the scores."""
        low, high = scores["accuracy_interval"]
        counts = scores["counts"]
        rows = [["all", f"{percent(scores['accuracy'])} ({percent(low)}–{percent(high)})", str(counts["questions"])]]
        for name, own in scores.get("by_type", {}).items():
            rows.append([name, percent(own["accuracy"]), str(own["questions"])])
        unparsed = scores["unparsed"]
        rows.append(["unparsed", percent(unparsed["share"]), str(unparsed["questions"])])
        rows += [[f"note: {note}", "", ""] for note in notes]
        return [Table.of(["questions", "accuracy, %", "number"], rows, title), *label_table(counts)]

    def groups(self, asked: Sequence[Q]) -> Mapping[str, Sequence[Q]]:
        """Return groups of the questions, by name, whose accuracy is scored and compared too."""
        return {}

    def about(self, options: Any) -> str:
        """Return what a run asked, for the title of its tables."""
        return Path(options.file).name

    def gold_files(self, options: Any) -> Sequence[str]:
        return (options.file,)

    def prediction_files(self, options: Any) -> Sequence[str]:
        return (f"{self.name}_predictions.jsonl",)

    def read_gold(self, path: Path, options: Any) -> Sequence[Q]:
        questions: dict[str, Q] = read_unique(read_lines(path, self.question), "id")
        if not questions:
            raise UserError(f"{path}: holds no question; expected one per line")
        return list(questions.values())

    def ask(self, gold: Sequence[Q], call: SystemCall, asker: Asker) -> Answers:
        questions = call.drawn(gold)
        chats = [self.conversation(question, call.options) for question in questions]
        if call.by_likelihood:
            outputs = asker.choose("answers", chats)
        else:
            outputs = asker.ask("answers", chats, max_new_tokens=self.max_new_tokens)
        pairs = zip(questions, outputs, strict=True)
        labels = {question.id: self.read_answer(output, question) for question, output in pairs}
        return Answers(labels, self.about(call.options), {})

    def read_predictions(self, path: Path, gold: Sequence[Q], options: Any) -> Answers:
        answer: Any = self.question.model_fields["answer"].annotation
        line = self.line or create_model("Line", __base__=FlatRow, id=(Text, ...), answer=(answer | None, ...))
        found: dict[str, Any] = read_unique(read_lines(path, line), "id")
        refuse_unfilled(path, (one.answer for one in found.values()), "answer")
        remedy = "answer all, or score only those that are answered: --set missing=leave_out"
        needed = options.missing == "error" or not found
        check_ids(path, "question", found, [question.id for question in gold], all_of=remedy if needed else "")
        return Answers({name: one.answer for name, one in found.items()}, path.name, found)

    def evaluate(self, gold: Sequence[Q], answers: Answers, options: Any, seed: int) -> SystemResult:
        asked = [question for question in gold if question.id in answers.labels]
        scores, notes = self.scores(asked, answers, options, seed), []
        if isinstance(options, LabelScoreOptions):
            scores["missing"] = missing = len(gold) - len(asked)
            notes = [f"{missing} questions have no answer and are left out"] if missing else []
        shown = self.tables(scores, f"{self.title.partition(' (')[0]}, {answers.title}", notes)
        right = {question.id: float(self.is_right(answers.labels[question.id], question)) for question in asked}
        about = digest({question.id: question.answer for question in asked})
        groups = {"": asked, **{f", {name}": own for name, own in self.groups(asked).items()}}
        measures = [
            measure
            for name, own in groups.items()
            for measure in shares(f"accuracy{name}", "questions", about, {one.id: right[one.id] for one in own})
        ]
        return SystemResult(scores, shown, measures=measures)

    def files(self, gold: Sequence[Q], answers: Answers) -> dict[str, str]:
        lines = ({self.id_name: name, "answer": label} for name, label in answers.labels.items())
        return {self.prediction_files(None)[0]: json_lines(lines)}

    def template(self, gold: Sequence[Q], options: Any) -> Iterator[dict[str, Any]]:
        return ({self.id_name: question.id, "answer": ""} for question in gold)


def accuracy_of(right: Sequence[bool]) -> dict[str, Any]:
    """Return the share of right answers, None without questions, and the number of questions."""
    return {"accuracy": sum(right) / len(right) if right else None, "questions": len(right)}


def label_table(counts: Mapping[str, Any]) -> list[Table]:
    """Return the table of the counts by label, if there are some."""
    if "gold" not in counts:
        return []
    rows = [[name, str(count), str(counts["predicted"][name])] for name, count in counts["gold"].items()]
    return [Table.of(["label", "gold", "predicted"], rows, "By label")]
