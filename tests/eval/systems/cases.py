"""One table of all systems, for the tests that go through them: small gold files, and an answer to each line."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.systems.openpi2.clusters import ATTRIBUTE_GOLD, ENTITY_GOLD
from eval.systems.openpi2.gold import EXPANDED, RANKED
from eval.systems.openpi2.salience import HUMAN
from eval.systems.run import write_template
from tests.eval.systems.crepe_procedures import GOLD
from tests.eval.systems.files import ROWS, read_rows, save
from tests.eval.systems.openpi2_procedures import expanded, judged, ranked
from tests.eval.systems.wiqa_files import QUESTIONS

Line = dict[str, Any]
LABELS = {row["metadata"]["ques_id"]: row["question"]["answer_label"] for row in QUESTIONS}
SALIENCE = judged({"water": (5, [5, 2]), "kettle": (3, [4, 0]), "tea": (4, [0, 5])})
ENTITIES = {"1": {"entities": [["water", "the liquid"], ["kettle"], ["tea", "the brew"]]}}
ATTRIBUTES = {"1": {"entity_attr_dict": {"water": ["heat | temperature", "place | location"], "tea": ["existence"]}}}


@dataclass(frozen=True)
class Case:
    """A gold file, and the cells that answer a line of the template; `perfect` if these are the gold answers."""

    file: str
    gold: Any
    answers: Callable[[Line], Line]
    perfect: bool = True


def salience(row: Line) -> Line:
    state = next(one for one in SALIENCE["1"]["states"] if one["entity"] == row["entity"])
    step = state["answers"].get(f"step{row['step']}")
    return {"salience": state["global_salience"] if step is None else step["local_salience"]}


def cluster(row: Line) -> Line:
    groups = ENTITIES["1"]["entities"] if "name" in row else ATTRIBUTES["1"]["entity_attr_dict"][row["entity"]]
    names = row.get("name") or row["attribute"]
    return {"cluster": next(n for n, group in enumerate(groups) if names in group)}


def change(row: Line) -> Line:
    block = GOLD[row["procedure"]]["steps"][int(row["step"])]
    return {"change": next((one["change"] for one in block if one.get("event") == row["event"]), "equally likely")}


def states(row: Line) -> Line:
    gold = [state for state in ranked()[row["procedure"]]["states"] if state["entity"] == row["entity"]]
    changes = [own for state in gold for own in state["answers"][f"step{row['step']}"]]
    found = [own for own in changes if own["attribute"] == row["attribute"]]
    return {key: found[0][key].split(" | ")[0] for key in ("before", "after")} if found else {}


CASES: dict[str, Case] = {
    "boxes": Case(
        "test.jsonl", ROWS, lambda row: {"prediction": ROWS[int(row["line"]) - 1]["masked_content"].split(" ", 1)[1]}
    ),
    "crepe": Case("data_dev_v2.json", GOLD, change),
    "wiqa": Case("test.jsonl", QUESTIONS, lambda row: {"answer": LABELS[row["ques_id"]]}),
    "openpi2 task=schemata": Case(
        EXPANDED, expanded(), lambda row: {"entity": "water", "attribute": "place"}, perfect=False
    ),
    "openpi2 task=errors": Case(
        EXPANDED,
        expanded(),
        lambda row: {"entity": "water", "attribute": "place", "label": "correct"},
        perfect=False,
    ),
    "openpi2 task=complete": Case(
        EXPANDED, expanded(), lambda row: {"sentence": "place of water was tap before and kettle after"}, perfect=False
    ),
    "openpi2 task=states": Case(RANKED, ranked(), states),
    "openpi2 task=salience": Case(HUMAN, SALIENCE, salience),
    "openpi2 task=entity_clusters": Case(ENTITY_GOLD, ENTITIES, cluster),
    "openpi2 task=attribute_clusters": Case(ATTRIBUTE_GOLD, ATTRIBUTES, cluster),
}


def save_gold(folder: Path, name: str) -> Path:
    """Save the gold file of a case as `FOLDER/SYSTEM/FILE`."""
    return save(folder / name.split(maxsplit=1)[0] / CASES[name].file, CASES[name].gold)


def save_answers(file: Path, name: str, gold: Path) -> Path:
    """Save the template of a case with its answers."""
    system, *given = name.split()
    write_template(system, gold, given, file)
    return save(file, [{**row, **CASES[name].answers(row)} for row in read_rows(file)])
