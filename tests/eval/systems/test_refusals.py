"""Damaged files, wrong options, and predictions that do not fit the gold file, with the message for each."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from d2e_sft.util.encrypted_zip import write_encrypted
from eval.systems import load_benchmark
from eval.systems.benchmark import BenchmarkCall, parse_options
from eval.systems.boxes.benchmark import BoxesOptions, as_masked
from eval.systems.boxes.gold import read_questions
from eval.systems.crepe.benchmark import CrepeOptions, CrepeScoreOptions
from eval.systems.crepe.gold import read_procedures, read_states
from eval.systems.openpi2.downstream import crepe_procedures
from eval.systems.openpi2.task import OpenPIOptions, bert_scorer
from eval.systems.reading import file_in, read_json, read_lines
from eval.systems.run import score_files, write_template
from eval.systems.wiqa.benchmark import WiqaOptions
from eval.systems.wiqa.graphs import read_alignments
from tests.eval.systems.cases import CASES, SALIENCE, save_gold
from tests.eval.systems.crepe_procedures import BURN, DARK, GOLD, LAMP, TEA, event, step
from tests.eval.systems.files import MOVED, ROWS, START, save
from tests.eval.systems.openpi2_procedures import clustered, judged
from tests.eval.systems.riddles import GOLD as RIDDLE_GOLD
from tests.eval.systems.riddles import RIDDLES
from tests.eval.systems.wiqa_files import GRAPH, graphs, question
from tests.factories import save_bench
from tests.messages import messages_of
from tests.tiny import make_sample

Call = Callable[[Path], Any]
TASKS = [name.partition("=")[2] for name in CASES if "=" in name]


def scored(system: str, predictions: Any, gold: Any = None) -> Call:
    """Score predictions, or other gold than the case's; text is a whole file."""
    name, *given = system.split()
    case = CASES[name if name in CASES else f"openpi2 task={given[0] if given else 'schemata'}"]

    def call(tmp: Path) -> None:
        ending = Path(case.file).suffix
        if isinstance(predictions, str):
            ending = {"{": ".json", "\t": ".tsv"}.get(predictions[:1], ".csv")
        file = save(tmp / f"p{ending}", predictions)
        truth = save(tmp / f"gold{Path(case.file).suffix}", case.gold if gold is None else gold)
        benchmark, options = load_benchmark(name), [f"task={one}" if one in TASKS else one for one in given]
        benchmark.score(file, truth, parse_options(benchmark.score_options, options, name))

    return call


def damaged(change: Callable[[dict[str, Any]], Any]) -> Call:
    """Score against a gold file of OpenPI2.0 that is changed."""
    content = clustered()
    change(content["1"])
    return scored("openpi2 schemata", {"1": [{}, {}]}, content)


def riddle(gold: Any, predictions: Any) -> Call:
    options = RIDDLES.score_options()
    return lambda tmp: RIDDLES.score(save(tmp / "p.jsonl", predictions), save(tmp / "g.jsonl", gold), options)


def row(*lines: dict[str, Any], datasets: tuple[str, ...] = ("keys",)) -> Call:
    """Score lines of outputs of two rows of each dataset."""

    def call(tmp: Path) -> None:
        rows = [make_sample(n, dataset=d, split="test", answers=["garage"]) for d in datasets for n in range(2)]
        bench = save_bench(tmp / "bench", rows)
        score_files("rows", [save(tmp / "p.jsonl", list(lines))], bench, [])

    return call


def states(content: Any) -> Call:
    return lambda tmp: read_states(save(tmp / "states.json", content), read_procedures(save(tmp / "gold.json", GOLD)))


def find(path: Path) -> Path:
    return file_in(path, ["a.json", "b.json"], "--gold", "gold")


def flat(text: str) -> Call:
    return lambda tmp: list(read_lines(save(tmp / "a.csv", text)))


def options(cls: Any, name: str, *given: str) -> Call:
    return lambda tmp: parse_options(cls, given, name)


def changed(**values: str) -> dict[str, str]:
    return {"entity": "the kettle", "attribute": "hot", "change": "more likely", **values}


def split(name: str, **files: list[str]) -> Call:
    """Read the questions of a split in an archive of Boxes."""

    def call(tmp: Path) -> None:
        write_encrypted(tmp / "a.zip", {f"{folder}/test.jsonl": lines for folder, lines in files.items()})
        read_questions(tmp / "a.zip", split=name)

    return call


def changes(*rows: str) -> str:
    return "procedure,step,event,change\n" + "".join(f"{row}\n" for row in rows)


def interest(labels: Path, predictions: Any) -> Call:
    return scored(f"crepe eoi={labels} missing=leave_out", predictions)


PAIR = "5,1,I find the door without a lamp.,more likely"
LINES = changes(PAIR, PAIR.replace("5,1", "5,2"))
TSV = f"\ttarget\tprediction\tinput\n0\tthe pen\ta\t{MOVED} Box 1 contains\n"
RELATED = {**event(DARK, "less likely", "predicted_event"), "event_entity_inference": ["a", "b", "implied"]}
UNLABELLED = {"5": {**LAMP, "steps": [[], [step("a"), event(DARK, "more likely")]]}}
CREPE: dict[str, Any] = {
    "a list": [],
    "empty": {},
    "cut off": '{"3": {"goal": "x",\n "goal"',
    "a key twice": '{"3": 1, "3": 2}',
    "no steps": {"3": {"goal": "x"}},
    "a type": {"3": {**TEA, "steps": [[], [step("a"), {"type": "even"}]]}},
    "no change": {"3": {**TEA, "steps": [[], [{"type": "event", "event": BURN}, step("a")]]}},
    "no step": {"3": {**TEA, "steps": [[], []]}},
    "a stranger": {**GOLD, "6": LAMP},
    "other steps": {"3": LAMP, "5": LAMP},
    "a missing procedure": {"5": LAMP},
    "an event": changes("5,1,It rains.,more likely"),
    "a step": changes(PAIR.replace("5,1", "5,9")),
    "a change": changes(PAIR.replace("more likely", "more")),
    "an unknown procedure": changes("9,1,x,more likely"),
    "a line twice": changes(PAIR, PAIR),
    "nothing": changes(),
    "a relation": {"3": TEA, "5": {**LAMP, "steps": [[], [*LAMP["steps"][1], RELATED], LAMP["steps"][2]]}},
}
WIQA: dict[str, Any] = {
    "an answer": [{"ques_id": "q1", "answer": "perhaps"}],
    "no id": [{"answer": "more"}],
    "no answer": [{"ques_id": "q1"}],
    "empty": [],
    "a list": [[1]],
    "a direction": [{"id": "q1", "answer": "a", "explanation": {"di": "up"}}],
    "a sentence": [{"id": "q1", "answer": "a", "explanation": {"i": "2"}}],
}
BOXES: dict[str, Any] = {
    "too few": [{"prediction": "the cup"}],
    "a line": [{"line": 9, "prediction": "the cup"}],
    "a line twice": [{"line": 1, "prediction": text} for text in "ab"],
    "no prediction": [{"answer": "the cup"}],
    "a list": [{"line": [1], "prediction": "a"}],
    "empty": "\ttarget\tprediction\tinput\n",
    "another target": f"{TSV}0\tthe hat\tx\tDescription: {START} Box 0 contains",
    "another question": f"{TSV}0\tthe cup\tx\tBox 0 contains the pen. Box 0 contains",
    "no statement": f"{TSV}0\tthe cup\tx\tWhat is in Box 0?",
    "columns": f"{TSV}0\tthe cup",
    "a question twice": f"{TSV}1\tthe pen\tx\t{MOVED} Box 1 contains",
}
OPENPI: dict[str, Any] = {
    "schemata empty": {},
    "schemata stranger": {"9": []},
    "schemata steps": {"1": [{}]},
    "schemata type": {"1": [{"tea": "x"}, {}]},
    "complete type": {"1": [[], [1]]},
    "states too few": {"1": [[["a", "b", "c", "d"]], []]},
    "states fields": {"1": [[["water", "heat"]], []]},
    "salience stranger": SALIENCE | {"7": {"states": []}},
    "salience none": clustered(),
    "salience entities": judged({"water": (5, [5, 2]), "kettle": (3, [4, 0]), "tea": (4, [0, 5])})
    | {"1": {"states": SALIENCE["1"]["states"][:2]}},
    "entity_clusters stranger": {"9": {"pan": ["pan"]}},
    "attribute_clusters stranger": {"1": {"pan": {}}},
    "errors label": {"1": [{"tea": [["colour", "4"]]}, {}, "annotated"]},
    "errors type": {"1": [{"tea": ["colour"]}, {}]},
    "errors steps": {"1": [{}]},
    "schemata empty lines": "",
    "schemata columns": "a,b\n1,2\n",
    "schemata task": "procedure,step,sentence\n1,1,x\n",
    "complete step 0": "procedure,step,sentence\n1,0,x\n",
    "complete far step": "procedure,step,sentence\n1,99999,x\n",
    "schemata no entity": "procedure,step,entity,attribute\n1,1,,heat\n",
    "entity_clusters no cluster": "procedure,name,cluster\n1,tea,x\n1,cup,\n",
}
DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no goal": lambda p: p.pop("goal"),
    "no steps": lambda p: p.update(steps=[]),
    "a step's type": lambda p: p.update(steps=["one", 2]),
    "other steps": lambda p: p.update(steps=["one"]),
    "no state": lambda p: p["states"][0]["answers"]["step1"][0].update(before=None),
    "a step's name": lambda p: p["states"][0]["answers"].update(step9=[]),
    "no cluster": lambda p: p["clusters"].pop("tea"),
    "names' type": lambda p: p["clusters"]["tea"].update(entity_cluster="tea"),
}
GOLD_FILES: dict[str, tuple[str, Any]] = {
    "wiqa path_len": ("wiqa", [question("q1", "a", "b", "more", "INPARA_EFFECT", 2, path_len="2")]),
    "wiqa type": ("wiqa", [question("q1", "a", "b", "more", "OTHER", 2)]),
    "boxes sentence": ("boxes", [{**ROWS[0], "sentence_masked": "Box 0 contains <extra_id_0> ."}]),
    "boxes content": ("boxes", [ROWS[0], {**ROWS[0], "masked_content": "the cup"}]),
    "boxes start": ("boxes", [{**ROWS[0], "sentence_masked": "Rain fell. Box 0 contains <extra_id_0> ."}]),
    "boxes sample_id": ("boxes", [{**ROWS[0], "sample_id": "x"}]),
    "boxes fields": ("boxes", [{"numops": 1}]),
    "boxes empty": ("boxes", []),
}
EGG = {"id": "1", "answer": "egg"}

CALLS: dict[str, Call] = {
    **{f"crepe: {what}": scored("crepe", content) for what, content in CREPE.items()},
    "crepe: a lacking line": scored("crepe missing=leave_out", changes(PAIR)),
    "crepe: not UTF-8": lambda tmp: (tmp / "p.json").write_bytes(b"\xff") and read_json(tmp / "p.json"),
    "crepe: labels of interest of a flat file": lambda tmp: interest(tmp / "e.json", LINES)(tmp),
    "crepe: no labels of interest": lambda tmp: interest(save(tmp / "e.json", UNLABELLED), GOLD)(tmp),
    **{f"wiqa: {what}": scored("wiqa", content) for what, content in WIQA.items()},
    **{f"boxes: {what}": scored("boxes", content) for what, content in BOXES.items()},
    **{f"openpi2: {what}": scored(f"openpi2 {what.split()[0]}", content) for what, content in OPENPI.items()},
    **{f"openpi2's gold: {what}": damaged(change) for what, change in DAMAGES.items()},
    **{f"gold of {what}": scored(system, {"a": {}}, rows) for what, (system, rows) in GOLD_FILES.items()},
    "bert-score: not installed": mock.patch.dict(sys.modules, bert_score=None)(lambda tmp: bert_scorer("any")),
    "bert-score: an unknown model": lambda tmp: bert_scorer(str(tmp / "none"), 2),
    "openpi2: no file of CREPE": lambda tmp: crepe_procedures(BenchmarkCall(tmp, OpenPIOptions(), None, 0)),
    **{
        f"states of CREPE: {what}": states(content)
        for what, content in {
            "missing": {"3": {}},
            "stranger": {"3": {}, "5": {}, "9": {}},
            "step": {"3": {"4": []}, "5": {}},
            "number": {"3": {"x": []}, "5": {}},
            "change": {"3": {"1": [changed(change="hotter")]}, "5": {}},
            "entity": {"3": {"1": [{"change": "more likely"}]}, "5": {}},
        }.items()
    },
    **{
        f"graph: {what}": lambda tmp, change=change: graphs(tmp, {**GRAPH, **change})
        for what, change in {"X": {"X": 3}, "paragraph": {"paragraph": ""}, "id": {"graph_id": None}}.items()
    },
    "graph: twice": lambda tmp: graphs(tmp, GRAPH, GRAPH),
    **{
        f"alignment: {what}": lambda tmp, content=content: read_alignments(save(tmp / "a.json", content), graphs(tmp))
        for what, content in {
            "graph": {"9": {"x": 0, "y": 1, "d_x": "more"}},
            "sentence": {"7": {"x": 0, "y": 3, "d_x": "more"}},
            "direction": {"7": {"x": 0, "y": 1, "d_x": "up"}},
        }.items()
    },
    "riddles: an answer": riddle(RIDDLE_GOLD, [{"id": "1", "answer": "ice"}]),
    "riddles: missing": riddle(RIDDLE_GOLD, [EGG]),
    "riddles: a stranger": riddle(RIDDLE_GOLD, [{**EGG, "id": "7"}]),
    "riddles: twice": riddle(RIDDLE_GOLD, [EGG] * 2),
    "riddles: gold twice": riddle([RIDDLE_GOLD[0]] * 2, []),
    "riddles: a gold answer": riddle([{**RIDDLE_GOLD[0], "answer": "ice"}], []),
    "riddles: no gold": riddle([], []),
    "rows: a stranger": row({"id": "s0", "output": "x"}, {"id": "s9", "output": "x"}),
    "rows: twice": row({"id": "s0", "output": "x"}, {"id": "s0", "output": "x"}),
    "rows: another dataset": row({"id": "s1", "dataset": "locks", "output": "x"}),
    "rows: no output": row({"id": "s1"}),
    "rows: missing": row({"id": "s1", "output": "x"}),
    "rows: an id of two datasets": row({"id": "s0", "output": "x"}, datasets=("keys", "locks")),
    "csv: a cell too many": flat("id,output\n1,a,b\n"),
    "csv: a cell too few": flat("id,output\n1\n"),
    "csv: a column twice": flat("id,id\n1,2\n"),
    "csv: a quote": flat('id,output\n1,"a"b\n'),
    "json: a value": lambda tmp: read_json(save(tmp / "f.json", {"a": [3, "x"]}), dict[str, list[int]]),
    "json: too deep": lambda tmp: read_json(save(tmp / "f.json", "[" * 100_000)),
    "a folder that is none": lambda tmp: find(tmp / "none"),
    "a folder without the file": lambda tmp: find(save(tmp / "x" / "readme.md", "").parent),
    "a file twice": lambda tmp: [save(tmp / n / "a.json", "") for n in "bc"] and find(tmp),
    "boxes: no split": split("dev", x=[json.dumps(ROWS[0])]),
    "boxes: two splits": split("test", x=[], y=[]),
    "boxes: no mask of T5": lambda tmp: as_masked(read_questions(save(tmp / "test.jsonl", ROWS), split="test")[0]),
    "a prompt of CREPE without states": options(CrepeOptions, "crepe", "prompt=chat", "entities=gold"),
    "states of CREPE without their file": options(CrepeOptions, "crepe", "entities=predicted"),
    "a file of states without its option": options(CrepeOptions, "crepe", "entities_file=x.json"),
    "demonstrations in a prompt of training": options(BoxesOptions, "boxes", "prompt=trained", "demonstrations=none"),
    "solved examples in a prompt of training": options(WiqaOptions, "wiqa", "prompt=trained", "shots=1"),
    "a seed below 0": options(CrepeScoreOptions, "crepe", "seed=-1"),
    "an option without a value": options(CrepeOptions, "crepe", "shots"),
    "an unknown option": options(RIDDLES.options, "riddles", "levels=1"),
    "an option twice": options(CrepeOptions, "crepe", "shots=1", "shots=2"),
    "an option's value": options(CrepeOptions, "crepe", "shots=few"),
    "an option out of range": options(CrepeOptions, "crepe", "shots=7"),
    "a template's ending": lambda tmp: write_template("wiqa", save_gold(tmp, "wiqa"), [], tmp / "p.txt"),
    "a template that is there": lambda tmp: write_template(
        "wiqa", save_gold(tmp, "wiqa"), [], save(tmp / "p.csv", "a,b\n")
    ),
    "a template that nobody filled in": lambda tmp: write_template("wiqa", save_gold(tmp, "wiqa"), [], tmp / "p.csv")
    and score_files("wiqa", [tmp / "p.csv"], tmp, []),
    "names of files": lambda tmp: score_files("wiqa", [tmp / "a", tmp / "b"], tmp, [], ["A"]),
}  # fmt: skip

test_message = messages_of(__file__, CALLS)
