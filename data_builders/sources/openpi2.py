"""OpenPI2.0 (Zhang et al., EACL 2024): what is an attribute of an entity before and after a step of a procedure?

The rows are of the ranked files, which all three splits have: each change that people named at a step is a question,
and the states that they gave are its answers. The benchmark's files (clusters, salience) are of the dev split alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft, RawInput
from data_builders.raw.row import Row, clean
from data_builders.raw.source import SPLITS, Input, Job, RawFile, Samples, Source, SplitRows, github
from data_builders.sources.rows import not_in_test
from data_builders.text.texts import goal_and_steps

_FILES = github("allenai/openpi-dataset", "90acda8957e232decad40c41d86af79800bdd68e", "v2.0")


def _file(name: str, sha256: str = "", size: int = 0) -> RawFile:
    published = name.replace("cluster_mini", "source/cluster/archived/comparison_data")
    return _FILES.file(f"v2.0/{name}", sha256, size, path=published if published != name else f"data/{name}")


# No checksum of the training file is known.
TRAIN = _file("train-ranked.json")
DEV = _file("dev-ranked.json", "3b8388a979c4f95381ebd7622c57fb3ebc45d81f9fb48fe0b811ddd25626dbf2", 630_441)
TEST = _file("test-ranked.json", "ea0960f079d90c57d0a88f9b67cdd4d1184f3412cacf357a7db01c71b407ac14", 1_497_702)

# What `d2e eval --bench openpi2` reads beside them.
_BENCHMARK = (
    _file(
        "dev-data-reformatted-v4.json",
        "6465aa596e780739e70aa88b05e6977254b36b1036fe85c3f9787dcfa6c89ba2",
        807_110,
    ),
    _file(
        "dev-data-reformatted-v4-overgenerated-unique.json",
        "7987f646a89599530b4a855454c623c0be824fb363c1396c5f19e7fb495ddfe5",
        1_596_360,
    ),
    _file(
        "dev-data-reformatted-v4_votes_score_salience_1-20.json",
        "8ea82618f2b5986cceb60c6a73e9dd47b821a7f734e01df39404961d85849b5b",
        1_321_504,
    ),
    _file(
        "dev-data-reformatted-v4_votes_salience_1-20_human2.json",
        "4c6ac907491cb5762ac53024bccaa3fafa5beb90e6c8f17ee835e9368eeaf57d",
        1_282_494,
    ),
    _file(
        "cluster_mini/dev_data_mini_entity.json",
        "b2ff8c032268a51f8bf6db5e04e0c55726d186112da2d635d7b03317151b71c6",
        15_615,
    ),
    _file(
        "cluster_mini/dev_data_mini_annotated_entity.json",
        "27efae55ef0635b3019d306634b4367e9fc64cd2dcc60642f26c8fc4db394743",
        15_001,
    ),
    _file(
        "cluster_mini/dev_data_mini_attr.json",
        "2021e33a8e0c4727b70eeccaf8209e16b3814e4f1e79c0c8128d1abbeb24090a",
        14_852,
    ),
    _file(
        "cluster_mini/dev_data_mini_annotated_attr.json",
        "a879dbb2ca8064c53c2d071b3ae8c568d407ca5e7ed9567e49769f179277afd1",
        14_970,
    ),
)
_BETWEEN = " | "


@dataclass(frozen=True)
class _Procedure:
    number: int
    name: str
    goal: str
    steps: list[str]
    changes: list[_Change]

    @property
    def text(self) -> str:
        return "\n".join((self.goal, *self.steps)).casefold()


@dataclass(frozen=True)
class _Change:
    step: int  # counted from 1
    entity: str
    attribute: str
    answers: list[str]


@dataclass(frozen=True)
class _Question:
    number: int  # of the row that holds the procedure
    procedure: _Procedure
    place: int  # among the procedure's questions
    change: _Change


def read(job: Job) -> dict[Split, Samples]:
    """Build train, dev (1,311 rows) and test (3,091)."""
    held_out: list[_Procedure] = []
    found: dict[Split, Samples] = {}
    for split in ("test", "dev"):
        raw = job.input(split)
        procedures = _procedures(raw)
        held_out += procedures.rows
        found[raw.split] = _finish(raw, procedures)
    if job.wants("train"):
        raw = job.input("train")
        train = _procedures(raw)
        train.keep(
            "procedures of dev and test",
            "the procedure, by its goal and steps, is one of dev or test, too",
            not_in_test(train.rows, held_out, lambda procedure: procedure.text),
            unit="procedures",
        )
        found["train"] = _finish(raw, train)
    return found


def _procedures(raw: RawInput) -> SplitRows[_Procedure]:
    procedures = raw.parse(raw.json_members(), _parse)
    return SplitRows(procedures, rows_read=sum(len(procedure.changes) for procedure in procedures))


def _finish(raw: RawInput, procedures: SplitRows[_Procedure]) -> Samples:
    questions = procedures.become(
        [_Question(item.number, item, 0, change) for item in procedures.rows for change in item.changes]
    )
    questions.keep(
        "changes without a name or a state",
        "entity, attribute, state before or state after is empty",
        [question for question in questions.rows if _is_whole(question.change)],
    )
    questions.keep(
        "changes named twice",
        "the same attribute of the same entity at the same step; the states of both are answers of one row",
        _merged(questions.rows),
    )
    return questions.become(raw.parse(map(_draft, questions.rows), raw.sample))


def _is_whole(change: _Change) -> bool:
    return bool(change.entity and change.attribute and change.answers)


def _parse(row: Row) -> _Procedure:
    steps = row.texts("steps")
    if not steps or not all(steps):
        raise row.error("steps", "at least one step, none of them empty", steps)
    changes = [change for states in row.objects("states") for change in _changes(states, len(steps))]
    # By step, and within a step in the file's order, as they are asked about in the benchmark.
    return _Procedure(row.number, row.key, row.text("goal"), steps, sorted(changes, key=lambda change: change.step))


def _changes(states: Row, steps: int) -> Iterator[_Change]:
    entity = _mentions(states, "entity")
    answers = states.object("answers")
    for step in range(1, steps + 1):
        for change in answers.objects(f"step{step}"):
            attribute, before, after = (_mentions(change, key) for key in ("attribute", "before", "after"))
            texts = [f"{first} before and {second} after" for first, second in product(before, after)]
            yield _Change(step, entity[0] if entity else "", attribute[0] if attribute else "", texts)


def _mentions(row: Row, key: str) -> list[str]:
    value = row.get(key)
    if not isinstance(value, str):
        raise row.error(key, "text")
    return [text for text in map(clean, value.split(_BETWEEN)) if text]


def _merged(questions: Sequence[_Question]) -> list[_Question]:
    alike: dict[tuple[str, int, str, str], list[_Question]] = {}
    for question in questions:
        change = question.change
        alike.setdefault((question.procedure.name, change.step, change.entity, change.attribute), []).append(question)
    numbers: Counter[str] = Counter()
    merged = []
    for same in alike.values():
        name = same[0].procedure.name
        answers = list(dict.fromkeys(text for question in same for text in question.change.answers))
        merged.append(replace(same[0], place=numbers[name], change=replace(same[0].change, answers=answers)))
        numbers[name] += 1
    return merged


def _draft(question: _Question) -> Draft:
    procedure, change = question.procedure, question.change
    lines = goal_and_steps(procedure.goal, procedure.steps[: change.step])
    return Draft(
        number=question.number,
        record_number=False,
        id=f"{procedure.name}-{question.place}",
        relation="temporal",
        context="\n".join(lines),
        question=f"What is the {change.attribute} of {change.entity} before and after the latest step?",
        answers=change.answers,
        meta={
            "procedure": procedure.name,
            "step": change.step,
            "steps": len(procedure.steps),
            "entity": change.entity,
            "attribute": change.attribute,
            "evidence": [lines[0], lines[-1]],
        },
    )


OPENPI2 = Source(
    name="openpi2",
    format="qa",
    licence="MIT",
    homepage="https://github.com/allenai/openpi-dataset/tree/main/v2.0",
    inputs=(
        Input("train", (TRAIN,), ("train",)),
        Input("dev", (DEV,), SPLITS),
        Input("test", (TEST,), SPLITS),
    ),
    splits=SPLITS,
    read=read,
    notes={
        "rows": "one for each step, entity and attribute that changes; entity and attribute by their first mention",
        "answers": "BEFORE before and AFTER after, for each accepted state before and each after",
        "context": "the goal, and the steps up to the one that is asked about, each on a line of its own",
        "evidence": "the goal and the step that is asked about, which refined contexts keep",
    },
    others=_BENCHMARK,
)
