"""What README and docs tell a reader to type, and whether the program takes it."""

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import click

from d2e_sft.config.recipe import load_recipe
from d2e_sft.config.reference import recipe_keys
from d2e_sft.util.files import load_yaml
from data_builders.build.options import parse_settings
from data_builders.sources import SOURCES
from eval.systems import ROWS, SYSTEM_NAMES, load_benchmark
from tests.command import verbs

ROOT = Path(__file__).resolve().parents[2]
VERBS = verbs()
KEYS = {key.name for key in recipe_keys()}
OWN_FOLDERS = ("d2e_sft/", "data_builders/", "launch/", "recipes/", "tests/", "docs/", "examples/")
_EXAMPLE = "smollm2-135m"  # for a recipe of the reader's own
_PLACEHOLDER = "VALUE"
_CHECKED_TYPES = (click.Choice, type(click.INT), type(click.FLOAT))
_FENCE = re.compile(r"^ *```([\w-]*)[^\n]*\n(.*?)^ *```", flags=re.DOTALL | re.MULTILINE)
_PROGRAM = re.compile(r"(?:[A-Z_0-9]+=\S+ )*(?:\.venv/bin/)?(?:d2e|make|pip|python|accelerate|sbatch|docker)(?: |$)")
# Words up to the end of the line, or of the clause.
_NAMED = re.compile(r"\bd2e(?: (?:[^\s`\"();,:.]|[,:.](?=\S))+)+")


def text_of(page: Path) -> str:
    """The Markdown of a page, or of a notebook's cells."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    return "\n\n".join(
        "".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"
    )


def fences(text: str) -> list[tuple[str, str]]:
    """Language and content of each block of code."""
    return _FENCE.findall(text)


def inline_codes(text: str) -> list[str]:
    """Code in sentences and tables, on one line each."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", _FENCE.sub("", text))]


def commands(text: str) -> Iterator[str]:
    """Each command of a page that begins with a program named here: lines of shell blocks, and inline code."""
    found = inline_codes(text)
    for language, block in fences(text):
        lines = [line.strip() for line in block.replace("\\\n", " ").splitlines()]
        if language == "console":
            found += [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        elif language in ("bash", "sh"):
            found += lines
    return (command for command in found if _PROGRAM.match(command))


def named(file: Path) -> list[str]:
    """Each `d2e …` in the strings of a module, or in a YAML file and its comments; VALUE is what is filled in."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".yaml":
        text = text.replace("{build}", "d2e data build --datasets NAMES")
        said = "\n".join([*_leaves(load_yaml(text, texts_only=True)), *re.findall(r"#(.*)", text)])
        texts = [re.sub(r"\{\w+\}", _PLACEHOLDER, said)]
    else:
        texts = [*_strings(ast.parse(text))]
    found = [words.replace("'", "") for text in texts for words in _NAMED.findall(text.replace("\\\n", " "))]
    return [command for command in found if any(command.split()[1] == own[0] for own in VERBS if own)]


def _strings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else _PLACEHOLDER for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _strings(child)


def _leaves(content: object) -> Iterator[str]:
    if isinstance(content, dict | list):
        for part in content.values() if isinstance(content, dict) else content:
            yield from _leaves(part)
    elif isinstance(content, str):
        yield content


def problem_of(command: str) -> str | None:
    """What is wrong with a command line, or None."""
    try:
        for words in _parts(shlex.split(command, comments=True)):
            check(words)
    except (Exception, SystemExit) as error:
        return f"{command}: {type(error).__name__}: {error}"
    return None


def _parts(words: Iterable[str]) -> Iterator[list[str]]:
    """The single commands of a line, without variables before them."""
    part: list[str] = []
    for word in [*words, "&&"]:
        if word in ("&&", "|", ";", ">", "&", "<"):
            yield part
            part = []
        elif part or not re.fullmatch(r"[A-Z_0-9]+=.*", word):
            part.append(word)


def check(words: list[str]) -> None:
    """Fail if a program of the project does not take these words, or a file of the project does not exist."""
    program, rest = (words[0].rpartition("/")[2], words[1:]) if words else ("", [])
    if program == "d2e":
        check_verb([word for word in rest if word != "--debug"])
    elif program == "make":
        expect((word for word in rest if re.fullmatch(r"[a-z-]+", word)), _targets(), "target")
    elif program == "pip":
        extras = [one for word in rest for part in re.findall(r"\.\[([\w,-]+)\]$", word) for one in part.split(",")]
        extras = [extra for extra in extras if not extra.isupper()]
        expect(extras, _project()["optional-dependencies"], "extra")
        assert not [word for word in rest if re.match(r"d2e[-_]sft", word)], "d2e-sft is not on the index"
    elif "d2e_sft.train" in rest:
        check_verb(["train", *rest[rest.index("d2e_sft.train") + 1 :]])
    files = [word for word in rest if word.startswith(OWN_FOLDERS) and not re.search(r"[*{]|NAME", word)]
    expect((file for file in files if not (ROOT / file).exists()), (), "file")


def expect(given: Iterable[str], known: Iterable[str], kind: str) -> None:
    unknown = sorted({*given}.difference(known))
    assert not unknown, f"no such {kind}: {', '.join(unknown)}"


@cache
def _project() -> dict[str, dict[str, list[str]]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@cache
def _targets() -> list[str]:
    return re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


def check_verb(words: list[str]) -> None:
    """Fail if a verb, an option, a choice, a recipe, a key, a dataset's or system's option does not exist."""
    own = next(words[:n] for n in range(len(words), -1, -1) if tuple(words[:n]) in VERBS)
    command, rest = VERBS[tuple(own)], words[len(own) :]
    if isinstance(command, click.Group) and rest and not rest[0].startswith("-") and not rest[0].isupper():
        raise AssertionError(f"no such verb: {rest[0]}")
    context = click.Context(command, info_name=" ".join(own), **command.context_settings)
    try:
        parsed, _, _ = command.make_parser(context).parse_args([*rest])
    except click.BadOptionUsage as error:  # an option that is named without a value
        if rest[-1:] != [error.option_name]:
            raise
        parsed, _, _ = command.make_parser(context).parse_args([*rest, _PLACEHOLDER])
    options = {name: value for name, value in parsed.items() if isinstance(value, str | tuple | list | bool)}
    arguments: list[str] = []
    for parameter in command.params:
        value = options.get(str(parameter.name))
        if isinstance(parameter, click.Argument):
            given_words = (value,) if isinstance(value, str) else value or ()
            arguments += [word for word in given_words if isinstance(word, str)]
        elif isinstance(parameter.type, _CHECKED_TYPES) and value is not None and not _is_placeholder(value):
            parameter.type_cast_value(context, value)
    _CHECKS.get(tuple(own), lambda _, __: None)(options, arguments)


def _is_placeholder(value: object) -> bool:
    return isinstance(value, str) and (value.isupper() or any(mark in value for mark in ("…", "...", "$")))


def _check_recipe(options: dict[str, object], arguments: list[str]) -> None:
    overrides = [word for word in arguments if "=" in word]
    expect((word.partition("=")[0] for word in overrides), KEYS, "recipe key")
    named = [str(options["model"])] if options.get("model") else [word for word in arguments if "=" not in word]
    composed = named[0] if named else _PLACEHOLDER
    if _is_placeholder(composed) or (composed.endswith(".yaml") and not composed.startswith(OWN_FOLDERS)):
        composed = _EXAMPLE
    method = options.get("method")
    composed += f"/{method}" if method and not _is_placeholder(method) else ""
    load_recipe(composed, [word for word in overrides if not _is_placeholder(word.partition("=")[2])])


def _check_sweep(_: dict[str, object], arguments: list[str]) -> None:
    if arguments and arguments[0].startswith(OWN_FOLDERS):
        expect((file for file in arguments[:1] if not (ROOT / file).is_file()), (), "file")
    expect((word.partition("=")[0] for word in arguments if re.match(r"[\w.]+\.\w+=", word)), KEYS, "recipe key")


def _check_datasets(options: dict[str, object], arguments: list[str]) -> None:
    texts = ",".join(options.get("datasets") or ())
    names = [name for name in texts.split(",") if name and not name.isupper()]
    expect((name for name in names if not name.endswith(".yaml")), SOURCES, "dataset")
    sources = [SOURCES[name] for name in names if name in SOURCES] or [*SOURCES.values()]
    parse_settings((word for word in arguments if not _is_placeholder(word.rpartition("=")[2])), sources)


def _check_dataset(_: dict[str, object], arguments: list[str]) -> None:
    expect((name for name in arguments[:1] if name.isidentifier() and not name.isupper()), SOURCES, "dataset")


def _check_system(options: dict[str, object], arguments: list[str]) -> None:
    name = options.get("bench", arguments[0] if arguments else None)
    if name in (*SYSTEM_NAMES, ROWS):
        loaded = load_benchmark(str(name))
        model = loaded.options if "bench" in options else loaded.score_options
        given = dict(word.split("=", 1) for word in options.get("given") or ())
        expect(given, model.model_fields, "option of the system")
        model.model_validate({option: value for option, value in given.items() if value != "…"})


_CHECKS = {
    ("train",): _check_recipe,
    ("sweep",): _check_sweep,
    ("data", "build"): _check_datasets,
    ("data", "show"): _check_dataset,
    ("eval",): _check_system,
    ("score",): _check_system,
}
