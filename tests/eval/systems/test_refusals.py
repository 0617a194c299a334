"""Damaged files, and predictions that do not fit the gold file: one message with file, line or key, and value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.registry import load_system
from eval.systems.system import parse_options
from tests.eval.systems.boxes.rows import MOVED, ROWS, START
from tests.eval.systems.cases import CASES, SALIENCE
from tests.eval.systems.crepe.procedures import BURN, GOLD, LAMP, TEA, step
from tests.eval.systems.files import save
from tests.eval.systems.openpi2.procedures import clustered
from tests.eval.systems.wiqa.files import question

TASKS = [name.partition("=")[2] for name in CASES if "=" in name]


def refusal(folder: Path, system: str, predictions: Any, gold: Any = None) -> str:
    """Return the message about predictions, or about other gold than the case's."""
    name, *given = system.split()
    case = CASES[name if name in CASES else f"openpi2 task={given[0] if given else 'schemata'}"]
    ending = Path(case.file).suffix
    if isinstance(predictions, str):
        ending = {"{": ".json", "\t": ".tsv"}.get(predictions[:1], ".csv")
    if predictions == "\xff":
        (file := folder / "p.json").write_bytes(b"\xff")
    else:
        file = save(folder / f"p{ending}", predictions)
    truth = save(folder / f"gold{Path(case.file).suffix}", case.gold if gold is None else gold)
    chosen, options = load_system(name), [f"task={one}" if one in TASKS else one for one in given]
    with pytest.raises(UserError) as caught:
        chosen.score(file, truth, parse_options(chosen.score_options, options, name))
    return caught.value.message.replace(f"{folder}/", "")


def changes(*rows: str) -> str:
    return "procedure,step,event,change\n" + "".join(f"{row}\n" for row in rows)


PAIRS = [f"{name},{n},{event},more likely" for name, n, event in (("5", 1, "I find the door without a lamp."),)]
TSV = f"\ttarget\tprediction\tinput\n0\tthe pen\ta\t{MOVED} Box 1 contains\n"


@pytest.mark.parametrize(
    ("system", "content", "message"),
    [
        ("crepe", [], "p.json: Input should be a valid dictionary"),
        ("crepe", {}, "p.json: holds no procedure"),
        ("crepe", '{"3": {"goal": "x",\n "goal"', "p.json: not JSON (line 2, column 8"),
        ("crepe", '{"3": 1, "3": 2}', "the key '3' is given twice"),
        ("crepe", '\xff', "p.json: not UTF-8"),
        ("crepe", {"3": {"goal": "x"}}, "p.json: 3.steps: missing"),
        ("crepe", {"3": {**TEA, "steps": [[], [step("a"), {"type": "even"}]]}}, "3.steps.1.1.type: got 'even'"),
        (
            "crepe",
            {"3": {**TEA, "steps": [[], [{"type": "event", "event": BURN}, step("a")]]}},
            "change is missing or empty",
        ),
        ("crepe", {"3": {**TEA, "steps": [[], []]}}, "block 1: got 0 dictionaries of type step"),
        ("crepe", {**GOLD, "6": LAMP}, "procedure '6' is not in the gold file"),
        ("crepe", {"3": LAMP, "5": LAMP}, "procedure '3': has the 2 steps"),
        ("crepe", {"5": LAMP}, "procedure '3' is missing (1 of 2)"),
        ("crepe", changes("5,1,It rains.,more likely"), "p.csv, line 2: got step 1 and event 'It rains.'"),
        ("crepe", changes(PAIRS[0].replace("5,1", "5,9")), "line 2: got step 9 and event"),
        ("crepe", changes(PAIRS[0].replace("more likely", "more")), "line 2: change: got 'more'"),
        ("crepe", changes("9,1,x,more likely"), "procedure '9' is not in the gold file"),
        ("crepe", changes(PAIRS[0], PAIRS[0]), "line 3: step 1 and event 'I find the door"),
        ("crepe missing=leave_out", changes(PAIRS[0]), "p.csv: lacks step 2 and event 'I find the door"),
        ("crepe", changes(), "p.csv: lacks any pair"),
        ("wiqa", [{"ques_id": "q1", "answer": "perhaps"}], "p.jsonl, line 1: answer: got 'perhaps'"),
        ("wiqa", [{"answer": "more"}], "line 1: ques_id: missing"),
        ("wiqa", [{"ques_id": "q1"}], "line 1: answer: missing"),
        ("wiqa", [], "question 'q1' is missing (6 of 6"),
        ("wiqa missing=leave_out", [], "question 'q1' is missing (6 of 6"),
        ("wiqa", [[1]], "p.jsonl, line 1: Input should be a valid dictionary"),
        ("wiqa", [{"id": "q1", "answer": "a", "explanation": {"di": "up"}}], "explanation.di: got 'up'"),
        ("wiqa", [{"id": "q1", "answer": "a", "explanation": {"i": "2"}}], "explanation.i: got '2'"),
        ("boxes", [{"prediction": "the cup"}], "holds 1 predictions; the gold has 6 questions"),
        ("boxes", [{"line": 9, "prediction": "the cup"}], "p.jsonl, line 1: is about line 9"),
        ("boxes", [{"line": 1, "prediction": text} for text in "ab"], "line 2: line 1 is predicted twice"),
        ("boxes", [{"answer": "the cup"}], "line 1: prediction: missing"),
        ("boxes", [{"line": [1], "prediction": "a"}], "line 1: line: got [1]"),
        ("boxes", "\ttarget\tprediction\tinput\n", "p.tsv: holds 0 predictions"),
        ("boxes", f"{TSV}0\tthe hat\tx\tDescription: {START} Box 0 contains", "line 3: its target is 'the hat'"),
        ("boxes", f"{TSV}0\tthe cup\tx\tBox 0 contains the pen. Box 0 contains", "has no such question"),
        ("boxes", f"{TSV}0\tthe cup\tx\tWhat is in Box 0?", "line 3: its input ends in 'What is in Box 0?'"),
        ("boxes", f"{TSV}0\tthe cup", "line 3: has 2 columns"),
        ("boxes", f"{TSV}1\tthe pen\tx\t{MOVED} Box 1 contains", "gold line 5 is predicted twice"),
        ("openpi2 schemata", {}, "holds no procedure"),
        ("openpi2 schemata", {"9": []}, "procedure '9' is not in the gold file"),
        ("openpi2 schemata", {"1": [{}]}, "p.json: 1: got 1 items; expected one item for each of the 2"),
        ("openpi2 schemata", {"1": [{"tea": "x"}, {}]}, "p.json: 1.0.tea: got 'x'"),
        ("openpi2 complete", {"1": [[], [1]]}, "p.json: 1.1.0: got 1"),
        ("openpi2 states", {"1": [[["a", "b", "c", "d"]], []]}, "1: got 1 predictions; expected one for"),
        ("openpi2 states", {"1": [[["water", "heat"]], []]}, "p.json: 1.0.0.2: missing"),
        ("openpi2 salience", SALIENCE | {"7": {"states": []}}, "'7'"),
        ("openpi2 salience", clustered(), "1.states.0.global_salience_pred: missing"),
        ("openpi2 entity_clusters", {"9": {"pan": ["pan"]}}, "procedure '9' is not in the gold file"),
        ("openpi2 attribute_clusters", {"1": {"pan": {}}}, "entity of procedure 1 'pan' is not in the"),
        ("openpi2 pddl", {"soup": {"domain": "", "problem": ""}}, "task 'soup' is not in the gold file"),
        ("openpi2", "", "p.csv: holds no prediction"),
        ("openpi2", "a,b\n1,2\n", "line 2: got the columns a, b; expected those of a task"),
        ("openpi2", "procedure,step,sentence\n1,1,x\n", "has the columns of task=complete"),
        ("openpi2 complete", "procedure,step,sentence\n1,0,x\n", "line 2: step: got '0'"),
        ("openpi2 complete", "procedure,step,sentence\n1,99999,x\n", "line 2: step: got '99999'"),
        ("openpi2", "procedure,step,entity,attribute\n1,1,,heat\n", "entity: got '' for attribute 'heat'"),
        ("openpi2 entity_clusters", "procedure,name,cluster\n1,tea,x\n1,cup,\n", "line 3: cluster: got ''"),
        ("openpi2 pddl", "task,domain,problem\na,d,p\na,d,p\n", "line 3: task 'a' is given twice"),
    ],
)  # fmt: skip
def test_predictions_that_do_not_fit_are_one_message(tmp_path: Path, system: str, content: Any, message: str) -> None:
    assert message in refusal(tmp_path, system, content)


def without(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda procedure: procedure.pop(key)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("goal"), "gold.json: 1.goal: missing"),
        (lambda p: p.update(steps=[]), "1.steps: got []"),
        (lambda p: p.update(steps=["one", 2]), "1.steps.1: got 2"),
        (lambda p: p.update(steps=["one"]), "1: got {'goal': 'Brew Tea'"),
        (lambda p: p["states"][0]["answers"]["step1"][0].update(before=None), "answers.0.0.before: got None"),
        (lambda p: p["clusters"].pop("tea"), "1.clusters: 'tea' has states and no cluster"),
        (lambda p: p["clusters"]["tea"].update(entity_cluster="tea"), "tea.names.entity_cluster: got 'tea'"),
    ],
)  # fmt: skip
def test_a_damaged_gold_file_of_openpi_is_named_with_its_key(
    tmp_path: Path, damage: Callable[[dict[str, Any]], None], message: str
) -> None:
    content = clustered()
    damage(content["1"])
    assert message in refusal(tmp_path, "openpi2 schemata", {"1": [{}, {}]}, content)


@pytest.mark.parametrize(
    ("system", "rows", "message"),
    [
        ("wiqa", [question("q1", "a", "b", "more", "INPARA_EFFECT", 2, path_len="2")], "metadata.path_len: got '2'"),
        ("wiqa", [question("q1", "a", "b", "more", "OTHER", 2)], "line 1: metadata.question_type: got 'OTHER'"),
        ("boxes", [{**ROWS[0], "sentence_masked": "Box 0 contains <extra_id_0> ."}], "expected '… Box N contains"),
        ("boxes", [ROWS[0], {**ROWS[0], "masked_content": "the cup"}], "line 2: not a question of Boxes: masked"),
        ("boxes", [{**ROWS[0], "sentence_masked": "Rain fell. Box 0 contains <extra_id_0> ."}], "does not say what"),
        ("boxes", [{**ROWS[0], "sample_id": "x"}], "sample_id: got 'x'"),
        ("boxes", [{"numops": 1}], "sentence_masked: missing"),
        ("openpi2 pddl", CASES["openpi2 task=pddl"].gold * 2, "an id is given twice"),
    ],
)  # fmt: skip
def test_a_damaged_gold_file_is_named_with_its_line(tmp_path: Path, system: str, rows: Any, message: str) -> None:
    assert message in refusal(tmp_path, system, {"a": {}}, rows)
