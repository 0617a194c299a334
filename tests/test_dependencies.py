"""What an installation needs: declared packages, a wheel with all files, and scoring without torch."""

import ast
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from d2e_sft.cli import main
from tests.eval.systems.cases import CASES, save_answers, save_gold
from tests.factories import save_bench
from tests.tiny import make_sample

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("d2e_sft", "data_builders", "eval")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Built on classes of another library: only verbs that need the library import them.
OF_AN_EXTRA = ("d2e_sft.server.app", "d2e_sft.vllm", "eval.lm_eval")

# A process that finds no library but those allowed.
_ONLY = """
import importlib, json, sys
from importlib.machinery import PathFinder

allowed, given = json.load(sys.stdin)

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return super().find_spec(name, path, target) if name.split(".")[0] in allowed or name[0] == "_" else None

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""
_IMPORT_ALL = f"""{_ONLY}
failed = {{}}
for module in given:
    try:
        importlib.import_module(module)
    except ImportError as error:
        failed[module] = str(error)
print(json.dumps(failed))
"""
_CALL_ALL = f"""{_ONLY}
from d2e_sft.cli import main
for words in given:
    try:
        main(words)
    except SystemExit as stop:
        if stop.code:
            sys.exit(f"{{words}}: {{stop.code}}")
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}} & {{"torch", "transformers", "numpy"}})))
"""


def printed_with(distributions: set[str], script: str, given: object) -> object:
    """The last line, as JSON, of a script in a process that has these distributions alone."""
    owners = metadata.packages_distributions()
    own = [name for name, of in owners.items() if distributions & {canonicalize_name(one) for one in of}]
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps([[*own, *PACKAGES, *sys.stdlib_module_names], given]),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def closure(requirements: Iterable[str]) -> set[str]:
    """The distributions that these and what they ask for are, by canonical name."""
    found: set[tuple[str, str]] = set()
    todo = [Requirement(line) for line in requirements]
    while todo:
        asked = todo.pop()
        for extra in ("", *asked.extras):
            name = canonicalize_name(asked.name)
            if (name, extra) in found:
                continue
            found.add((name, extra))
            for line in metadata.requires(name) or []:
                more = Requirement(line)
                if more.marker is None or more.marker.evaluate({"extra": extra}):
                    todo.append(more)
    return {name for name, _ in found}


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def imported(file: Path) -> set[str]:
    """Top-level names that a file imports anywhere, in functions too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_every_module_imports_with_the_core_dependencies_alone() -> None:
    wanted = [
        name
        for name, _ in modules()
        if not name.endswith("__main__") and "custom_generate" not in name and not name.startswith(OF_AN_EXTRA)
    ]
    assert len(wanted) > 200
    assert printed_with(closure(PROJECT["dependencies"]), _IMPORT_ALL, wanted) == {}


def test_every_library_that_is_imported_is_asked_for_by_the_project_or_an_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for name, of in extras.items() if name != "dev" for line in of)]
    declared = {canonicalize_name(Requirement(line).name) for line in lines}
    owners = metadata.packages_distributions()
    # Part of what these offer.
    of_another = {
        "markupsafe": "jinja2",
        "pydantic_core": "pydantic",
        "tokenizers": "transformers",
    }
    unasked: dict[str, str] = {}
    for module, file in modules():
        for name in imported(file) - {*PACKAGES, *sys.stdlib_module_names, "__future__"}:
            of = owners.get(name, [name])  # one that is not installed here has its module's name
            if not {canonicalize_name(one) for one in [*of, of_another.get(name, name)]} & declared:
                unasked.setdefault(name, module)
    assert unasked == {}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("d2e_sft-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def test_the_wheel_holds_the_three_packages_with_their_data(installed: Path) -> None:
    packages = [(ROOT / name, Path(name)) for name in ("d2e_sft", "data_builders", "eval")]
    bundled = [(ROOT / name, Path("d2e_sft/bundled") / name) for name in ("recipes", "launch")]
    for folder, place in (*packages, *bundled):
        files = [
            file.relative_to(folder)
            for file in folder.rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        ]
        assert [str(file) for file in files if not (installed / place / file).is_file()] == []
    assert not list(installed.rglob("test_*.py"))


# In one process without torch, whose import takes long: where the packages are, a launcher, and what `d2e` prints.
_SCRIPT = """
import d2e_sft, eval, data_builders
from d2e_sft import cli
from d2e_sft.train import launch
print(d2e_sft.__file__)
launch.accelerators = lambda: 0
print(launch.launch_command("ddp", [], processes=1)[4])
cli.main(["data", "build", "--datasets", "boxes", "--out", "boxes", "boxes.train_samples=4"])
cli.main(["recipes", "show", "smollm2-135m-mini/d2e-lora", "--resolved"])
"""


def test_d2e_finds_its_launchers_recipes_and_builders_away_from_the_clone(installed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        cwd=installed.parent,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    where, config, *shown = done.stdout.splitlines()
    assert where.startswith(str(installed)), "the wheel must be tested, not the clone"
    assert config == str(installed / "d2e_sft" / "bundled" / "launch" / "accelerate" / "ddp.yaml")
    assert Path(config).is_file()
    assert (installed.parent / "boxes" / "train.parquet").is_file()
    assert "  train: data/mini/train.parquet" in shown


def requirements() -> list[Requirement]:
    lines = (ROOT / "launch" / "requirements-score.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


def test_the_file_asks_for_what_the_project_asks_for() -> None:
    known = {Requirement(text).name: Requirement(text).specifier for text in PROJECT["dependencies"]}
    assert {item.name: item.specifier for item in requirements()}.items() <= known.items()
    assert not {"torch", "transformers", "datasets", "httpx"} & closure(map(str, requirements()))


def test_every_scorer_compare_table_and_report_work_without_torch(tmp_path: Path) -> None:
    bench, said = save_bench(tmp_path / "bench", [make_sample(0, split="test")]), tmp_path / "said.jsonl"
    said.write_text('{"id": "s0", "output": "yes"}\n')
    calls = [["score", "rows", str(said), "--gold", str(bench)]]
    for name in CASES:
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
    assert printed_with(closure(map(str, requirements())), _CALL_ALL, calls) == ["numpy"]
    assert (tmp_path / "r.html").is_file()


def test_what_needs_torch_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("d2e_sft.cli.run", fails)
    with pytest.raises(SystemExit):
        main(["train"])
    assert "this needs torch, which is not installed" in capsys.readouterr().err
