"""Scoring without torch: with what `launch/requirements-score.txt` brings and nothing else that this machine has."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from d2e_sft.cli import main
from tests.eval.systems.cases import WITHOUT_PLANNER, save_answers, save_gold
from tests.factories import save_bench
from tests.test_dependencies import closure
from tests.tiny import make_sample

ROOT = Path(__file__).parents[1]
# Runs command lines, each given as a line of its standard input, where some packages cannot be imported.
SCRIPT = """
import sys
from importlib.abc import MetaPathFinder
missing = set(sys.argv[1].split(","))
class Only(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if path is None and top in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Only())
from d2e_sft.cli import main
for line in sys.stdin.read().splitlines():
    try:
        main(line.split("\\t"))
    except SystemExit as stop:
        if stop.code:
            sys.exit(f"{line}: {stop.code}")
print("imported", *sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "transformers", "numpy"}))
"""


def requirements() -> list[Requirement]:
    lines = (ROOT / "launch" / "requirements-score.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


def test_the_file_asks_for_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = {Requirement(text).name: Requirement(text).specifier for text in project["dependencies"]}
    assert {item.name: item.specifier for item in requirements()}.items() <= known.items()
    assert "torch" not in closure(map(str, requirements()))


def test_every_scorer_compare_table_and_report_work_without_torch(tmp_path: Path) -> None:
    bench, said = save_bench(tmp_path / "bench", [make_sample(0, split="test")]), tmp_path / "said.jsonl"
    said.write_text('{"id": "s0", "output": "yes"}\n')
    calls = [["score", "rows", str(said), "--gold", str(bench)]]
    for name in WITHOUT_PLANNER:
        system, *given = name.split()
        gold = save_gold(tmp_path, name)
        options = ["--gold", str(gold), *(part for one in given for part in ("--set", one))]
        calls.append(["score", system, str(save_answers(tmp_path / f"{name}.csv", name, gold)), *options])
        calls.append(["score", system, *options, "--template", str(tmp_path / f"empty {name}.csv")])
    runs = [str(tmp_path / "a"), str(tmp_path / "b")]
    wiqa = ["score", "wiqa", str(tmp_path / "wiqa.csv"), "--gold", str(save_gold(tmp_path, "wiqa"))]
    calls += [
        *([*wiqa, "--out", run] for run in runs),
        ["compare", *runs],
        ["table", *runs, "--format", "latex"],
        ["report", *runs, "--out", str(tmp_path / "r.html")],
    ]  # fmt: skip
    kept = {"d2e-sft", *closure(map(str, requirements()))}
    missing = [
        top
        for top, owners in packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners} & kept
    ]
    assert {"torch", "transformers", "datasets", "httpx"} <= set(missing)
    script = [sys.executable, "-c", SCRIPT, ",".join(missing)]
    done = subprocess.run(
        script,
        input="\n".join("\t".join(call) for call in calls),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "imported numpy"
    assert (tmp_path / "r.html").is_file()


def test_what_needs_torch_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("d2e_sft.cli.run", fails)
    with pytest.raises(SystemExit):
        main(["train"])
    assert "this needs torch, which is not installed" in capsys.readouterr().err
