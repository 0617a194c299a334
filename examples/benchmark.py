"""A benchmark of your own with its scorer: true or false statements about passages.

In the folder above, name it as `module:Class`; no file of the package changes:

    d2e eval MODEL --bench examples.benchmark:Statements --data DIR
    d2e score examples.benchmark:Statements answers.csv --gold DIR

DIR has `test.jsonl`, a question on each line:

    {"id": "1", "passage": "The key is in the barn.", "statement": "The key is in the barn.", "answer": "true"}

The run, the resumption, intervals, comparisons of runs and the flat file of predictions are those of all benchmarks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from eval.run.task import TaskItem
from eval.systems.labels import LabelBenchmark, LabelQuestion
from eval.systems.reading import Text

_ASKED = "Is this true? {statement}\nAnswer with one word: true or false."
_ANSWER = re.compile(r"\b(true|false)\b", re.IGNORECASE)


class Statement(LabelQuestion):
    passage: Text
    statement: Text
    answer: Literal["true", "false"]


class Statements(LabelBenchmark[Statement]):
    name = "statements"  # of the folder of its results, RUN/eval/statements
    title = "Statements about passages"
    official_files = "test.jsonl"
    obtain = "write one statement a line"
    question = Statement

    def conversation(self, question: Statement, options: Any) -> TaskItem:
        """Return the prompt with the passage, and without it for debiased decoding."""
        asked = _ASKED.format(statement=question.statement)
        texts = (f"{question.passage}\n{asked}", asked)
        with_passage, without = ([{"role": "user", "content": text}] for text in texts)
        return TaskItem(self.name, question.id, with_passage, without)

    def read_answer(self, reply: str, question: Statement) -> str | None:
        """Return the last of the two words in a reply; None if it has neither."""
        found = _ANSWER.findall(reply)
        return found[-1].lower() if found else None

    def groups(self, questions: Sequence[Statement]) -> Mapping[str, Sequence[Statement]]:
        """Return the questions by length of passage; each group gets an accuracy of its own."""
        short = [question for question in questions if len(question.passage.split()) < 50]
        return {"short": short, "long": [question for question in questions if question not in short]}
