"""WIQA (Tandon et al., EMNLP 2019): prompts, replies and scores; the imagined view has no paragraph.

Consistency (section 5.3) asks whether predictions agree with each other, right or wrong. Transitive: the prediction
for X → Z should be the product of those for X → Y and Y → Z. Disjunctive: of two questions with opposite answers, one
should be predicted as more and the other as less. Opposite questions have the same graph and cause, paths of the same
length and opposite gold answers. Questions meet in the middle by their texts, or, with the graphs' file, by other
texts of the same node.

Explanations are scored by shares of correct fields: EQDIR (de, the answer), XDIR (di, the direction of the influence
on sentence i), XSENTID (i) and YSENTID (j). A field is correct if prediction and gold both lack it. The published
evaluator never reads di, so its XDIR is always 1; here XDIR compares the values.
"""

import itertools
import math
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table, percent
from eval.compare.published import read_published
from eval.run.task import TaskItem
from eval.systems.asking import Asker, ask_as_trained, conversation, wording
from eval.systems.benchmark import BenchmarkCall
from eval.systems.labels import (
    LabelAnswers,
    LabelBenchmark,
    LabelOptions,
    Labels,
    LabelScoreOptions,
    accuracy_of,
    accuracy_text,
    label_table,
)
from eval.systems.wiqa.gold import (
    LABELS,
    POLARITY,
    TYPES,
    Explanation,
    Label,
    WiqaLine,
    WiqaQuestion,
    label_of,
    read_topics,
)
from eval.systems.wiqa.graphs import Graph, plain, read_graphs

_GRAPHS = "wiqa_influence_graphs.jsonl: questions then also meet in other texts of the same node"
_TOPICS = "para_id.prompt.topic.partition.tsv: also accuracy by topic"
_UNLISTED = "in no topic"
_NO_EFFECT = r"neither more nor less|no[ _-]?(?:\w+ )?effect|no change|unaffected|not (?:\w+ )?affect"
_ANSWER = re.compile(rf"(\b(?:{_NO_EFFECT}|more|less)|n['’]t (?:\w+ )?affect)\b", re.IGNORECASE)
_MARKER = re.compile(r"\b(answer:|effect is)", re.IGNORECASE)
_LETTER = re.compile(r"\(?([ABC])\)?\s*(?:[.:)]|$)")
_TRAINED_TOKENS = 24
MOST_SHOTS = len(wording("wiqa/prompts")["demonstrations"])
MAJORITY: Label = "more"  # "correct", in the training set
METRICS = ("EQDIR", "XDIR", "XSENTID", "YSENTID")
Questions = Sequence[WiqaQuestion]


class WiqaOptions(LabelOptions):
    prompt: Literal["own", "trained"] = Field("own", description="own, or trained: as `d2e train` words WIQA's rows")
    paragraph: Literal["yes", "no"] = Field(
        "yes",
        description="no leaves the question's paragraph out: the no-paragraph ablation, which is the imagined view",
    )
    shots: int = Field(MOST_SHOTS, ge=0, le=MOST_SHOTS, description=f"solved examples, up to {MOST_SHOTS}")
    graphs: Path | None = Field(None, description=_GRAPHS)
    topics: Path | None = Field(None, description=_TOPICS)
    scoring: ClassVar[frozenset[str]] = frozenset(("graphs", "topics"))

    @model_validator(mode="after")
    def _the_prompt_of_training_shows_nothing(self) -> Self:
        if self.prompt == "trained" and self.shots != MOST_SHOTS:
            raise ValueError("prompt=trained is the prompt of training, without solved examples; leave shots out")
        return self


class WiqaScoreOptions(LabelScoreOptions):
    graphs: Path | None = Field(None, description=_GRAPHS)
    topics: Path | None = Field(None, description=_TOPICS)


class Wiqa(LabelBenchmark[WiqaQuestion]):
    name = "wiqa"
    title = "WIQA (Tandon et al., EMNLP 2019)"
    official_files = "test.jsonl of the release wiqa-dataset-v2-october-2019, github.com/allenai/wiqa-dataset"
    obtain = "d2e data download wiqa"
    options = WiqaOptions
    score_options = WiqaScoreOptions
    question = WiqaQuestion
    line = WiqaLine
    id_name = "ques_id"

    def about(self, options: Any) -> str:
        return super().about(options) + ", without the paragraph" * (options.paragraph == "no")

    def conversation(self, question: WiqaQuestion, options: Any) -> TaskItem:
        """Ask a question after some solved ones; without its paragraph, the conversation is its imagined view."""
        steps = question.steps if options.paragraph == "yes" else ()
        values = {"shots": options.shots, "steps": steps, "stem": question.stem}
        return conversation(self.name, question.id, "wiqa/prompts", group=question.paragraph, **values)

    def ask(self, gold: Questions, call: BenchmarkCall, asker: Asker) -> LabelAnswers:
        options: WiqaOptions = call.options
        if options.prompt == "own":
            return super().ask(gold, call, asker)
        questions = call.drawn(gold)
        samples = [as_sample(question, paragraph=options.paragraph == "yes") for question in questions]
        replies = ask_as_trained(asker, samples, group=lambda sample: sample.context, max_new_tokens=_TRAINED_TOKENS)
        labels = {
            question.id: label_of(reply.answers[0]) if reply.parsed else None
            for question, reply in zip(questions, replies, strict=True)
        }
        return LabelAnswers(labels, self.about(options))

    def read_answer(self, reply: str, question: Any) -> Label | None:
        """Return the first effect or a choice's letter in a reply, after "answer:" or "effect is" if it has one."""
        marker = _MARKER.search(reply)
        after = reply[marker.end() :].strip() if marker else ""
        found = _LETTER.match(after) or _ANSWER.search(after) or _ANSWER.search(reply) or _LETTER.match(reply.strip())
        return (label_of(found[1]) or "no_effect") if found else None

    def template(self, gold: Questions, options: Any) -> Iterator[dict[str, Any]]:
        """Return one line per question, whose text is only there to be read."""
        return ({"ques_id": question.id, "question": question.stem, "answer": ""} for question in gold)

    def groups(self, questions: Questions) -> Mapping[str, Questions]:
        return {name: [question for question in questions if question.type == kind] for kind, name in TYPES.items()}

    def scores(
        self, questions: Questions, answers: LabelAnswers, right: Mapping[str, bool], options: Any, seed: int
    ) -> dict[str, Any]:
        graphs = read_graphs(options.graphs) if options.graphs else None
        common = super().scores(questions, answers, right, options, seed)
        hops = sorted({question.hops for question in questions} - {0})
        scores = {
            **{name: common.pop(name) for name in ("accuracy", "accuracy_interval", "by_type")},
            "by_hops": {str(n): accuracy_of(right[q.id] for q in questions if q.hops == n) for n in hops},
            **({"by_topic": by_topic(questions, right, options.topics)} if options.topics else {}),
            **common,
            "consistency": consistency(questions, answers.labels, graphs),
            "baselines": baselines({"all": questions, **self.groups(questions)}, seed),
        }
        if any(line.explanation for line in answers.lines.values()) and any(q.explanation for q in questions):
            scores["explanations"] = score_explanations(questions, answers)
        return scores

    def tables(self, scores: Mapping[str, Any], title: str, notes: Sequence[str]) -> list[Table]:
        types, counts = list(TYPES.values()), scores["counts"]
        blank = [""] * len(types)
        by_type = [scores["by_type"][name] for name in types]
        rows = [["predictions", *(percent(row["accuracy"]) for row in by_type), accuracy_text(scores)]]
        for name, row in scores["baselines"].items():
            rows.append([name, *(percent(row["by_type"][kind]) for kind in types), percent(row["accuracy"])])
        rows.append(["humans (published)", *blank, percent(of_people())])
        rows.append(["questions", *(row["questions"] for row in by_type), counts["questions"]])
        rows.append(["unparsed", *blank, percent(scores["unparsed"]["share"])])
        rows += [[f"note: {note}", *blank, ""] for note in notes]
        hops = [(name, percent(row["accuracy"]), row["questions"]) for name, row in scores["by_hops"].items()]
        transitive, disjunctive = scores["consistency"]["transitive"], scores["consistency"]["disjunctive"]
        agreeing = {
            "transitive": transitive,
            "transitive, over single hops": {**transitive, **transitive["one_hop"]},
            "disjunctive": disjunctive,
        }
        shares = [
            (name, percent(row["score"]), row["count"], percent(row["random"])) for name, row in agreeing.items()
        ]
        return [
            Table.of(["accuracy, %", *types, "all"], rows, title),
            Table.of(["hops", "accuracy, %", "questions"], hops, "By number of hops"),
            *([topic_table(scores["by_topic"])] if "by_topic" in scores else []),
            Table.of(["consistency", "%", "groups of questions", "random, %"], shares, "Consistency"),
            *label_table(counts),
            *([explanation_table(scores["explanations"])] if "explanations" in scores else []),
        ]


def as_sample(question: WiqaQuestion, *, paragraph: bool) -> EventSample:
    """Return the row that `d2e data build --datasets wiqa` makes of a question, with its HTML entities decoded."""
    steps = [unescape(step) for step in question.steps] if paragraph else []
    return EventSample(
        id=question.id,
        dataset="wiqa",
        split="test",
        relation="counterfactual",
        format="scq",
        context=" ".join(step if step.endswith((".", "!", "?")) else f"{step}." for step in steps),
        question=unescape(question.stem),
        options=[label.replace("_", " ") for label in LABELS],
        answers=[question.answer.replace("_", " ")],
    )


def by_topic(questions: Questions, right: Mapping[str, bool], file: Path) -> dict[str, Any]:
    """Return the accuracy of each topic; UserError if the list has no paragraph of the questions."""
    topics = read_topics(file)
    topic_of = {q.id: topics.get(q.paragraph.removeprefix("propara_"), _UNLISTED) for q in questions}
    names = sorted({*topic_of.values()}, key=lambda name: (name == _UNLISTED, name))
    if names == [_UNLISTED]:
        raise UserError(
            f"{file}: has none of the questions' paragraphs, such as {questions[0].paragraph!r}",
            remedy="give the list of the same release, or leave topics out",
        )
    return {name: accuracy_of(right[id_] for id_, topic in topic_of.items() if topic == name) for name in names}


def topic_table(scores: Mapping[str, Any]) -> Table:
    rows = [(name, percent(row["accuracy"]), row["questions"]) for name, row in scores.items()]
    return Table.of(["topic", "accuracy, %", "questions"], rows, "By topic")


def polarity_of(text: str) -> int | None:
    """Return the polarity (+1 or −1) of the first word of a change that is in the lexicon; None if no word is."""
    lexicon = wording("wiqa/polarity")
    signs = ((word in lexicon["more"]) - (word in lexicon["less"]) for word in re.findall(r"[a-z]+", text.lower()))
    return next(filter(None, signs), None)


def by_polarity(question: WiqaQuestion, seed: int) -> Label:
    """Answer more if cause and effect have the same polarity, else less; one of the two if one lacks a polarity.

    The paper draws "a random class label". Its 0.3 % on no effect fits only if that label is never drawn.
    """
    cause, effect = map(polarity_of, question.changes)
    if cause is None or effect is None:
        return random.Random(f"{seed}/{question.id}").choice(("more", "less"))
    return "more" if cause == effect else "less"


def baselines(groups: Mapping[str, Questions], seed: int) -> dict[str, Any]:
    """Return the accuracy of both baselines, overall and by type; `groups` has all questions as "all"."""
    answer: dict[str, Callable[[WiqaQuestion], Label]] = {
        "majority": lambda question: MAJORITY,
        "polarity": lambda question: by_polarity(question, seed),
    }
    scores = {}
    for name, label in answer.items():
        shares = {kind: accuracy_of(label(q) == q.answer for q in group)["accuracy"] for kind, group in groups.items()}
        scores[name] = {"accuracy": shares.pop("all"), "by_type": shares}
    return scores


def of_people() -> float:
    """Return the published accuracy of three people, on 100 questions of the paper's test file (V1)."""
    rows = [row for table in read_published("wiqa").tables for row in table.rows]
    return next(float(row.words[-1]) for row in rows if row.name == "people") / 100


def consistency(questions: Questions, labels: Labels, graphs: Mapping[str, Graph] | None = None) -> dict[str, Any]:
    """Return both scores; None if no questions belong together. An answer that could not be read agrees with nothing.

    `one_hop` counts the triples whose first two questions are single edges, as the paper does.
    """
    by_graph: dict[str, list[WiqaQuestion]] = defaultdict(list)
    alike: dict[tuple[str, str, int], list[WiqaQuestion]] = defaultdict(list)
    for question in questions:
        cause = plain(question.changes[0])
        if question.hops and question.changes[0]:
            by_graph[question.graph].append(question)
            alike[question.graph, cause, question.hops].append(question)
    triples = [triple for name, group in by_graph.items() for triple in _triples(group, (graphs or {}).get(name))]
    opposites = [
        pair
        for group in alike.values()
        for pair in itertools.combinations(group, 2)
        if POLARITY[pair[0].answer] * POLARITY[pair[1].answer] == -1
        and plain(pair[0].changes[1]) != plain(pair[1].changes[1])
    ]

    def share(test: Callable[..., bool], groups: Sequence[Questions]) -> dict[str, Any]:
        agree = [test(*(labels[question.id] for question in group)) for group in groups]
        return {"score": sum(agree) / len(agree) if agree else None, "count": len(agree)}

    edges = [triple for triple in triples if triple[0].hops == triple[1].hops == 1]
    one_hop = share(is_transitive, edges)
    return {
        "transitive": {**share(is_transitive, triples), "one_hop": one_hop, "random": 1 / 3},
        "disjunctive": {**share(is_disjunctive, opposites), "random": 2 / 9},
    }


def is_transitive(*labels: Label | None) -> bool:
    """Return whether the answer for X → Z is the product of those for X → Y and Y → Z."""
    first, second, whole = (POLARITY.get(label, math.nan) if label else math.nan for label in labels)
    return first * second == whole


def is_disjunctive(*labels: Label | None) -> bool:
    """Return whether one of two answers is more and the other less."""
    return set(labels) == {"more", "less"}


def _triples(questions: Questions, graph: Graph | None) -> Iterator[Questions]:
    """Yield questions X → Y, Y → Z and X → Z; they meet in a node of the graph if it is known, else in a text."""

    def meeting(text: str) -> str:
        node = None if graph is None else graph.node_of(text)
        return plain(text) if node is None else f"node {node}"

    by_ends: dict[tuple[str, ...], list[WiqaQuestion]] = defaultdict(list)
    by_cause: dict[str, list[WiqaQuestion]] = defaultdict(list)
    for question in questions:
        by_ends[tuple(map(plain, question.changes))].append(question)
        by_cause[meeting(question.changes[0])].append(question)
    for first in questions:
        for second in by_cause[meeting(first.changes[1])]:
            for whole in by_ends[plain(first.changes[0]), plain(second.changes[1])]:
                yield first, second, whole


def score_explanations(questions: Questions, answers: LabelAnswers) -> dict[str, Any]:
    """Return the four shares over answered questions that have a gold explanation, overall and by type.

    A question without a predicted explanation counts as one with empty fields.
    """
    explained = {name: line.explanation for name, line in answers.lines.items() if line.explanation}
    correct: dict[str, list[tuple[bool, ...]]] = {kind: [] for kind in TYPES}
    for question in questions:
        if gold := question.explanation:
            guess = explained.get(question.id, Explanation())
            is_right = answers.labels[question.id] == question.answer
            correct[question.type].append((is_right, guess.di == gold.di, guess.i == gold.i, guess.j == gold.j))

    def shares(rows: Sequence[tuple[bool, ...]]) -> dict[str, Any]:
        means = [sum(column) / len(rows) for column in zip(*rows, strict=True)] or [None] * len(METRICS)
        return {**dict(zip(METRICS, means, strict=True)), "questions": len(rows)}

    return {
        **shares([row for rows in correct.values() for row in rows]),
        "by_type": {name: shares(correct[kind]) for kind, name in TYPES.items()},
        "without_gold": sum(question.explanation is None for question in questions),
        "without_prediction": sum(question.id not in explained for question in questions),
    }


def explanation_table(scores: Mapping[str, Any]) -> Table:
    parts = {**scores["by_type"], "all": scores}
    rows = [[name, *(percent(row[key]) for key in METRICS), row["questions"]] for name, row in parts.items()]
    left_out = f", {scores['without_gold']} questions without a gold one left out" * bool(scores["without_gold"])
    silent = f", {scores['without_prediction']} predictions without one" * bool(scores["without_prediction"])
    return Table.of(["type", *METRICS, "questions"], rows, f"Explanations, %{left_out}{silent}")


WIQA = Wiqa()
