"""The smallest benchmark: one label per question."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from eval.run.task import TaskItem
from eval.systems.asking import user
from eval.systems.labels import LabelBenchmark, LabelOptions, LabelQuestion


class Options(LabelOptions):
    level: int = 1
    choosing: ClassVar[Mapping[str, Any] | None] = {}


class Riddle(LabelQuestion):
    text: str
    answer: Literal["egg", "fire"]


class Riddles(LabelBenchmark[Riddle]):
    name = "riddles"
    title = "Riddles (Anon, 1900)"
    official_files = "test.jsonl"
    obtain = "make riddles"
    options = Options
    question = Riddle

    def conversation(self, question: Riddle, options: Any) -> TaskItem:
        chat = [user(question.text)]
        return TaskItem(self.name, question.id, chat, chat, options=("egg", "fire"))

    def read_answer(self, reply: str, question: Riddle) -> str | None:
        return next((label for label in ("egg", "fire") if label in reply), None)


RIDDLES = Riddles()
GOLD = [
    {"id": "1", "text": "What has no door?", "answer": "egg"},
    {"id": 2, "text": "What eats all?", "answer": "fire"},
    {"id": "3", "text": "What breaks?", "answer": "egg"},
]
