"""The docs: links, commands, keys and files exist, generated pages are current, and their Python runs."""

import importlib.util
import re
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from markdown.extensions.toc import slugify
from packaging.utils import canonicalize_name

from d2e_sft.data.sample import write_samples
from tests.d2e_sft.train.test_messages import ROWS
from tests.docs.commands import (
    KEYS,
    OWN_FOLDERS,
    ROOT,
    commands,
    expect,
    fences,
    inline_codes,
    named,
    problem_of,
    text_of,
)
from tests.tiny import make_samples

DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "examples").glob("*.ipynb"),
    *(ROOT / "skills").rglob("*.md"),
    *(page for page in sorted(DOCS.rglob("*.md")) if "results" not in page.parts),
]  # fmt: skip
FILES = (".parquet", ".jsonl", ".json", ".csv", ".yaml", ".md", ".py", ".safetensors")
SECTIONS = {key.partition(".")[0] for key in KEYS}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@each_page
def test_every_command_parses(page: Path) -> None:
    problems = [problem for command in dict.fromkeys(commands(text_of(page))) if (problem := problem_of(command))]
    assert problems == []


def test_every_command_that_the_program_or_its_files_name_parses() -> None:
    modules = (file for package in ("d2e_sft", "data_builders", "eval") for file in (ROOT / package).rglob("*"))
    files = (*modules, *(ROOT / "recipes").rglob("*"), *(ROOT / "launch").rglob("*"))
    found = [command for file in files if file.suffix in (".py", ".yaml") for command in named(file)]
    assert len(found) > 300
    assert [problem for command in dict.fromkeys(found) if (problem := problem_of(command))] == []


@pytest.mark.parametrize(
    "file", ["Dockerfile", *(f".github/workflows/{name}.yml" for name in ("ci", "docs", "release"))]
)
def test_targets_and_extras_of_builds_exist(file: str) -> None:
    calls = re.findall(
        r"(?:run: |RUN |&& )(?:uv )?((?:make|pip) [^\n&|\\]+)", (ROOT / file).read_text(encoding="utf-8")
    )
    assert [problem for call in calls if (problem := problem_of(call))] == []


@each_page
def test_every_recipe_key_exists(page: Path) -> None:
    text = text_of(page)
    named = [code.partition("=")[0].partition(":")[0] for code in inline_codes(text)]
    keys = [name for name in named if re.fullmatch(rf"(?:{'|'.join(SECTIONS)})(?:\.[a-z]\w*)+", name)]
    for language, block in fences(text):
        recipe = yaml.safe_load(block) if language == "yaml" else None
        if isinstance(recipe, dict) and recipe.keys() <= {*SECTIONS, "extends"}:
            keys += [f"{section}.{key}" for section, values in recipe.items() for key in _names(section, values)]
    expect((key for key in keys if not key.endswith(FILES)), KEYS, "recipe key")


def _names(section: str, values: object) -> list[str]:
    return [*values] if section in SECTIONS and isinstance(values, dict) else []


@each_page
def test_every_file_of_the_project_exists(page: Path) -> None:
    named = [code for code in inline_codes(text_of(page)) if re.fullmatch(r"[\w./-]+", code)]
    files = [code for code in named if code.startswith(OWN_FOLDERS)]
    expect((file for file in files if not (ROOT / file).exists()), (), "file")


@cache
def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings: those of the site, or GitHub's for what is read there."""
    text = re.sub(r"^ *```.*?^ *```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    headings = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", line) for line in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    ]
    return {slugify(heading, "-") for heading in headings} | {*re.findall(r'id="([^"]+)"', text)}


@each_page
def test_every_link_and_anchor_resolves(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    broken = []
    for target in (target for target in targets if not re.match(r"[a-z]+:", target)):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize(
    "wrong",
    ["d2e evall MODEL", "d2e eval MODEL --bensh crepe", "d2e eval MODEL --bench crepe --set prompt=prose",
     "d2e train --model gpt", "d2e eval MODEL --suite pipper", "d2e data show traci", "d2e wiqa-questions",
     "d2e train --model smollm2-135m --method d2e d2e.alpa=1", "d2e data buildd", "make tests", "pip install d2e-sft",
     "pip install '.[trainer]'", "d2e data build --datasets boxes boxes.box=3", "d2e sweep launch/no.yaml",
     "d2e sweep smollm2-135m-mini/d2e d2e.alfa=0,1", "accelerate launch -m d2e_sft.train --metod d2e",
     "sbatch launch/slurm/none.sbatch"],
)  # fmt: skip
def test_a_wrong_command_is_found(wrong: str) -> None:
    assert problem_of(wrong)


@pytest.mark.parametrize(("name", "made"), [("cli_pages", "pages"), ("assistants", "files"), ("recipe_keys", "files")])
def test_pages_made_from_the_program_and_the_docs_are_current(name: str, made: str) -> None:
    for file, text in getattr(script(name), made)().items():
        assert file.read_text(encoding="utf-8") == text, f"run python docs/{name}.py"


def test_the_list_of_pages_has_every_page() -> None:
    listed = set(re.findall(r"\]\(([^)]+)\)", (DOCS / "llms.txt").read_text(encoding="utf-8")))
    there = {str(page.relative_to(DOCS)) for page in PAGES if page.is_relative_to(DOCS)}
    assert listed == there - {"index.md"}


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["architecture_picture", "packed_row_picture"])
def test_a_picture_is_what_its_script_draws_now(name: str) -> None:
    module = script(name)
    assert module.PICTURE.read_text(encoding="utf-8") == module.draw(), f"run python docs/{name}.py"


@pytest.mark.parametrize("name", ["habit-ways", "habit-mechanism", "choosing-ways", "choosing-alpha"])
def test_the_pictures_of_the_habit_studies_are_of_the_rows_that_are_kept(name: str) -> None:
    figure = script("habit_pictures").FIGURES[name]()
    drawn = (DOCS / "images" / f"{name}.svg").read_text(encoding="utf-8")
    labels = [text.get_text() for panel in figure.axes for text in (*panel.get_yticklabels(), panel.title)]
    labels += [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    told = [line for label in labels for line in label.split("\n") if any(c.isalpha() for c in line)]
    assert len(told) >= 3
    for line in told:
        assert line in drawn, f"{line!r} is not in {name}.svg: run python docs/habit_pictures.py"


def test_the_table_of_the_readme_is_of_the_rows_that_are_kept() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = script("habit_pictures").front_rows()
    assert len(rows) == 7
    assert [row for row in rows if f"| {row} |" not in readme] == []


def pins(file: str) -> dict[str, str]:
    """Package → version of a file of pins; what a marker leaves out here is in it, too."""
    text = (ROOT / file).read_text(encoding="utf-8")
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\\n]+)", text, flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def test_every_package_is_listed_with_its_licence() -> None:
    licences, pinned = script("licences"), pins("launch/constraints.txt")
    rows = [line.strip("| ").split(" | ") for line in licences.PAGE.read_text("utf-8").splitlines() if " | " in line]
    listed = {name: row[0] for row in rows if len(row) == 3 for name in row[2].split(", ")}
    installed = licences.packages()
    same = [name for name in installed if pinned.get(name) == metadata.version(name).partition("+")[0]]
    assert len(same) > 40, "the versions here are others, so what they bring may be other packages"
    wrong = {name: licences.licence_of(name) for name in same if listed.get(name) != licences.licence_of(name)}
    assert wrong == {}, "run make licences"


def test_the_hashes_are_of_the_pins_and_of_all_that_is_needed() -> None:
    licences, pinned = script("licences"), pins("launch/constraints.txt")
    core, dev = (pins(f".ci/hashes/{name}.txt") for name in ("core", "dev"))
    assert core.items() <= dev.items()
    for name in pinned.keys() & dev.keys():
        assert dev[name] == pinned[name], "run make hashes"
    installed = licences.packages()
    needed = {name for name, parts in installed.items() if {"core", "builtin"} & {*parts}}
    assert needed <= core.keys(), "run make hashes"
    assert installed.keys() <= dev.keys(), "run make hashes"
    for name in ("core", "dev"):
        text = (ROOT / f".ci/hashes/{name}.txt").read_text(encoding="utf-8")
        unhashed = re.findall(r"^[^ #\n].*[^\\]\n(?! )", text, flags=re.MULTILINE)
        assert unhashed == []


_MODELS = re.compile("Qwen/Qwen3-0.6B|builtin:smollm2-135m-instruct|runs/d2e-mini")


@pytest.mark.parametrize(
    "page", ["README.md", "docs/how-to/python.md", "docs/how-to/from-trl.md", "docs/reference/decoding.md"]
)
def test_the_python_of_a_page_runs(page: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_samples(make_samples(2), Path("data/mini/test.parquet"))
    names: dict[str, Any] = {"rows": ROWS} if page.endswith("from-trl.md") else {}  # the user's own
    blocks = [block for language, block in fences(text_of(ROOT / page)) if language == "python"]
    assert blocks
    for block in blocks:
        exec(_MODELS.sub(str(world / "model"), block), names)
