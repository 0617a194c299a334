"""Writes docs/llms.txt and skills/d2e-sft/SKILL.md from the docs: `python docs/assistants.py`.

llms.txt lists every page with its purpose, from the navigation of the site. SKILL.md tells an assistant how to use
d2e: the commands, the recipe, and three workflows, whose blocks of code come from the pages.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import yaml

from d2e_sft.cli import GROUPS
from d2e_sft.config.reference import recipe_keys

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
WORKFLOWS = (  # title, page, heading
    ("Your own data", ROOT / "README.md", "Your own data"),
    ("Reproduce PIPER", ROOT / "README.md", "Reproduce PIPER"),
    ("Score files of predictions", DOCS / "how-to/scoring.md", "Scoring predictions"),
)
_RECIPE = DOCS / "reference/recipes.md"
_HEAD = """\
---
name: d2e-sft
description: Fine-tune language models so that they answer from the given context, and measure whether they do, with \
the `d2e` command. Use for training on questions with contexts, conflicts between context and habit, the PIPER \
benchmark, and scoring predictions.
---

# Use d2e-sft

"""
_RULES = """\
## Rules

- Run `d2e doctor` first. It says what this machine has and lacks.
- Add `--dry-run` to `d2e train` and `d2e sweep` before a long run: it shows time, memory and three samples.
- Measure before choosing a method: `d2e data diagnose mine.yaml`. What helped in studies: `docs/how-to/choosing.md`.
- Repeat a killed `d2e eval` or `d2e sweep` as it was typed; add `--resume` to a killed `d2e train`.
- Report the verdict of `d2e compare` with its interval and number of samples. "Not decided" is a result.
- Leave keys and tokens out of the command line; d2e reads them from the environment.
- An error ends with a remedy. Try that before anything else.
"""


def llms() -> str:
    """The list of pages, by part of the navigation."""
    head = (DOCS / "index.md").read_text(encoding="utf-8").split("\n\n")
    text = f"{head[0]}\n\n> {' '.join(head[1].split())}\n"
    for part in yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]:
        [(title, pages)] = part.items()
        if isinstance(pages, list):
            names = Counter(title.partition(": ")[0] for page in pages for title in page)
            text += f"\n## {title}\n\n" + "".join(_line(page, names) for page in pages)
    return text


def _line(page: dict[str, str], names: Counter[str]) -> str:
    """A link to a page; pages that share the name before the colon are called by the whole title."""
    [(title, path)] = page.items()
    name, _, purpose = title.partition(": ")
    if names[name] > 1:
        name, purpose = title, ""
    return f"- [{name}]({path})" + (f": {purpose}" if purpose else "") + "\n"


def skill() -> str:
    """The instructions for an assistant."""
    about = (DOCS / "index.md").read_text(encoding="utf-8").split("\n\n")[1]
    text = f"{_HEAD}{about}\n\n{_RULES}\n## Commands\n\nOptions and examples: `d2e COMMAND --help`.\n"
    for group, verbs in GROUPS.items():
        told = "".join(f"- `d2e {verb}`: {summary}\n" for verb, (_, _, summary) in verbs.items())
        text += f"\n{group}:\n\n{told}"
    text += f"\n## The recipe\n\n{_blocks(_RECIPE, 'Recipes')}\n\n"
    text += "Sections of a recipe; `d2e recipes explain KEY` explains a key:\n\n"
    text += "".join(f"- `{key.name}`: {_first_sentence(key.meaning)}\n" for key in recipe_keys() if key.is_section)
    for title, page, heading in WORKFLOWS:
        text += f"\n## Workflow: {title}\n\nFrom `{page.relative_to(ROOT)}`.\n\n{_blocks(page, heading)}\n"
    return text


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.?!]) (?=[A-Z])", " ".join(text.split()))[0]


def _blocks(page: Path, heading: str) -> str:
    """The blocks of code of a page's section, without those of sections below it."""
    found = "\n\n".join(_fences(page.read_text(encoding="utf-8"), heading))
    assert found, f"{page}: no block of code under {heading!r}"
    return found


def _fences(text: str, heading: str) -> Iterator[str]:
    """The section's blocks; of a console's only the commands."""
    current, fence = "", list[str]()
    for line in text.splitlines():
        if not fence and line.startswith("#"):
            current = line.lstrip("# ")
        if line == "```" and fence:
            lines = _commands(fence[1:]) if fence[0] == "```console" else fence[1:]
            if current == heading and lines:
                yield "\n".join([fence[0], *lines, line])
            fence = []
        elif line.startswith("```") or fence:
            fence.append(line)


def _commands(lines: list[str]) -> list[str]:
    """What is typed in a console, with continued lines, without commands that only show a file."""
    typed, goes_on = list[str](), False
    for line in lines:
        if goes_on or (line.startswith("$ ") and not line.startswith(("$ cat ", "$ head "))):
            typed.append(line)
            goes_on = line.endswith("\\")
    return typed


def files() -> dict[Path, str]:
    """Each file with its text."""
    return {DOCS / "llms.txt": llms(), ROOT / "skills/d2e-sft/SKILL.md": skill()}


if __name__ == "__main__":
    for file, content in files().items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
        print(f"written: {file}")
