"""The base of benchmarks with one label or short text per question; a subclass gives gold rows, prompt and reading."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

from pydantic import Field, create_model

from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table, percent
from eval.run.task import TaskItem
from eval.score.measures import digest, shares
from eval.score.statistics import bootstrap_average
from eval.systems.asking import Asker
from eval.systems.benchmark import Benchmark, BenchmarkCall, BenchmarkOptions, BenchmarkResult
from eval.systems.reading import (
    FlatRow,
    GoldRow,
    Text,
    check_ids,
    json_lines,
    read_lines,
    read_unique,
    refuse_unfilled,
)

Missing = Literal["error", "leave_out"]
Labels = Mapping[str, Any]  # by question id; None could not be read and is wrong


class LabelOptions(BenchmarkOptions):
    file: str = Field("test.jsonl", description="the question file in the folder --data or --gold")


class LabelScoreOptions(LabelOptions):
    missing: Missing = Field("error", description="questions without an answer: error, or leave_out")
    seed: int = Field(0, ge=0, description="seed of the bootstrap and of baselines")


class LabelQuestion(FlatRow):
    """Base of a gold row; the type of `answer` says what may be predicted."""

    id: Text
    answer: Any


Q = TypeVar("Q", bound=LabelQuestion)


class LabelAnswers(NamedTuple):
    """Predicted labels, and the lines of the file that they are from; `title` is for tables."""

    labels: Labels
    title: str
    lines: Mapping[str, Any] = {}


class LabelBenchmark(Benchmark[Sequence[Q], LabelAnswers]):
    """A benchmark of questions with one label each; `max_samples` counts questions.

    By default a line of predictions has `id` and `answer`, with the type of the question's answer. `id_name` is the
    field of the id in the predictions that a run writes.
    """

    options = LabelOptions
    score_options = LabelScoreOptions
    question: ClassVar[type[LabelQuestion]]
    line: ClassVar[type[GoldRow] | None] = None
    id_name: ClassVar[str] = "id"
    max_new_tokens: ClassVar[int] = 12

    def conversation(self, question: Q, options: Any) -> TaskItem:
        """Return the prompt in both views, and with options if the benchmark's options allow choosing."""
        raise NotImplementedError

    def read_answer(self, reply: str, question: Q) -> Any:
        """Return the answer in a reply, of the type of the gold answers; None if it has no answer."""
        raise NotImplementedError

    def is_right(self, answer: Any, question: Q) -> bool:
        """Return whether an answer is correct; by default it equals the gold answer."""
        return bool(answer == question.answer)

    def groups(self, questions: Sequence[Q]) -> Mapping[str, Sequence[Q]]:
        """Return groups of the questions, by name, whose accuracy is scored and compared too."""
        return {}

    def about(self, options: Any) -> str:
        """Return what a run asked, for the title of its tables."""
        return Path(options.file).name

    def gold_files(self, options: Any) -> Sequence[str]:
        return (options.file,)

    def read_gold(self, path: Path, options: Any) -> Sequence[Q]:
        questions: dict[str, Q] = read_unique(read_lines(path, self.question), "id")
        if not questions:
            raise UserError(f"{path}: holds no question; expected one per line")
        return list(questions.values())

    def ask(self, gold: Sequence[Q], call: BenchmarkCall, asker: Asker) -> LabelAnswers:
        questions = call.drawn(gold)
        chats = [self.conversation(question, call.options) for question in questions]
        if call.by_likelihood:
            replies = asker.choose("answers", chats)
        else:
            replies = asker.ask("answers", chats, max_new_tokens=self.max_new_tokens)
        pairs = zip(questions, replies, strict=True)
        labels = {question.id: self.read_answer(reply, question) for question, reply in pairs}
        return LabelAnswers(labels, self.about(call.options))

    def prediction_files(self, options: Any) -> Sequence[str]:
        return (f"{self.name}_predictions.jsonl",)

    def read_predictions(self, path: Path, gold: Sequence[Q], options: Any) -> LabelAnswers:
        answer: Any = self.question.model_fields["answer"].annotation
        line = self.line or create_model("Line", __base__=FlatRow, id=(Text, ...), answer=(answer | None, ...))
        lines: dict[str, Any] = read_unique(read_lines(path, line), "id")
        refuse_unfilled(path, (line.answer for line in lines.values()), "answer")
        remedy = "answer all, or score only those that are answered: --set missing=leave_out"
        needed = options.missing == "error" or not lines
        check_ids(path, "question", lines, [question.id for question in gold], all_of=remedy if needed else "")
        return LabelAnswers({name: line.answer for name, line in lines.items()}, path.name, lines)

    def files(self, gold: Sequence[Q], answers: LabelAnswers) -> dict[str, str]:
        lines = ({self.id_name: name, "answer": label} for name, label in answers.labels.items())
        return {self.prediction_files(None)[0]: json_lines(lines)}

    def template(self, gold: Sequence[Q], options: Any) -> Iterator[dict[str, Any]]:
        return ({self.id_name: question.id, "answer": ""} for question in gold)

    def evaluate(self, gold: Sequence[Q], answers: LabelAnswers, options: Any, seed: int) -> BenchmarkResult:
        """Score the questions that have an answer: accuracy of all and of each group, with an interval."""
        labels = answers.labels
        questions = [question for question in gold if question.id in labels]
        right = {question.id: self.is_right(labels[question.id], question) for question in questions}
        scores, notes = self.scores(questions, answers, right, options, seed), []
        if isinstance(options, LabelScoreOptions):
            scores["missing"] = missing = len(gold) - len(questions)
            notes = [f"{missing} questions have no answer and are left out"] if missing else []
        sha = digest({question.id: question.answer for question in questions})
        measures = [
            measure
            for name, group in {
                "": questions,
                **{f", {name}": group for name, group in self.groups(questions).items()},
            }.items()
            for measure in shares(f"accuracy{name}", "questions", sha, {q.id: float(right[q.id]) for q in group})
        ]
        title = f"{self.title.partition(' (')[0]}, {answers.title}"
        return BenchmarkResult(scores, self.tables(scores, title, notes), measures=measures)

    def scores(
        self, questions: Sequence[Q], answers: LabelAnswers, right: Mapping[str, bool], options: Any, seed: int
    ) -> dict[str, Any]:
        """Return the scores of the asked questions; `right` says by id whether the answer is correct."""
        predicted = [answers.labels[question.id] for question in questions]
        groups = {name: accuracy_of(right[q.id] for q in group) for name, group in self.groups(questions).items()}
        interval = bootstrap_average([list(right.values())], seed=seed)
        counts: dict[str, Any] = {"questions": len(questions)}
        if names := get_args(self.question.model_fields["answer"].annotation):
            gold = [question.answer for question in questions]
            counts["gold"] = {name: gold.count(name) for name in names}
            counts["predicted"] = {name: predicted.count(name) for name in names}
        return {
            "accuracy": interval.mean,
            "accuracy_interval": [interval.low, interval.high],
            **({"by_type": groups} if groups else {}),
            "counts": counts,
            "unparsed": {"share": predicted.count(None) / len(questions), "questions": predicted.count(None)},
        }

    def tables(self, scores: Mapping[str, Any], title: str, notes: Sequence[str]) -> list[Table]:
        groups = {
            name: (percent(row["accuracy"]), row["questions"]) for name, row in scores.get("by_type", {}).items()
        }
        unparsed = (percent(scores["unparsed"]["share"]), scores["unparsed"]["questions"])
        rows = {"all": (accuracy_text(scores), scores["counts"]["questions"]), **groups, "unparsed": unparsed}
        rows |= {f"note: {note}": ("", "") for note in notes}
        table = Table.of(
            ["questions", "accuracy, %", "number"], [(name, *cells) for name, cells in rows.items()], title
        )
        return [table, *label_table(scores["counts"])]


def accuracy_of(right: Iterable[bool]) -> dict[str, Any]:
    """Return the share of right answers, None without questions, and the number of questions."""
    values = list(right)
    return {"accuracy": sum(values) / len(values) if values else None, "questions": len(values)}


def accuracy_text(scores: Mapping[str, Any]) -> str:
    low, high = scores["accuracy_interval"]
    return f"{percent(scores['accuracy'])} ({percent(low)}–{percent(high)})"


def label_table(counts: Mapping[str, Any]) -> list[Table]:
    if "gold" not in counts:
        return []
    rows = [(name, count, counts["predicted"][name]) for name, count in counts["gold"].items()]
    return [Table.of(["label", "gold", "predicted"], rows, "By label")]
