"""Writes the table of docs/reference/dependencies.md from what is installed: `make licences`.

A package's licence is what its own metadata say: the expression, else the classifiers, else the free text. A test
compares the table with the packages that are installed, so that a new dependency is listed before it lands.
"""

import re
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "dependencies.md"
BEGIN, END = "<!-- licences: written by make licences -->", "<!-- end of licences -->"
_LEFT_OUT = ("dev", "vllm", "serve", "train-gpu", "trackers")  # not installed here, or the sum of others
_SAME = {
    "MIT License": "MIT", "The MIT License (MIT)": "MIT", "Apache Software License": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0", "Apache Software License 2.0": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause", "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "ISC License (ISCL)": "ISC", "Python Software Foundation License": "PSF-2.0", "BSD License": "BSD",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.1-or-later",
}  # fmt: skip


def closure(requirements: Iterable[str]) -> set[str]:
    """The installed distributions that these and what they ask for are, by canonical name."""
    found: set[tuple[str, str]] = set()
    todo = [Requirement(line) for line in requirements]
    while todo:
        asked = todo.pop()
        if asked.marker is not None and not asked.marker.evaluate({"extra": ""}):
            continue
        for extra in ("", *asked.extras):
            if (key := (canonicalize_name(asked.name), extra)) in found:
                continue
            found.add(key)
            for line in metadata.requires(asked.name) or []:
                more = Requirement(line)
                if more.marker is None or more.marker.evaluate({"extra": extra}):
                    more.marker = None
                    todo.append(more)
    return {name for name, _ in found}


def licence_of(name: str) -> str:
    """What a distribution says of itself, in SPDX's names where it is clear which."""
    about = metadata.metadata(name)
    if expression := about.get("License-Expression"):
        return str(expression)
    told = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or [] if line.startswith("License ::")]
    told = [_SAME.get(one, one) for one in told if one not in ("OSI Approved", "DFSG approved")]
    if told:
        return " / ".join(told)
    first = (about.get("License") or "").strip().splitlines()
    text = re.sub(r" \(http.*", "", first[0]) if first else "not stated"
    return _SAME.get(text, text)


def packages() -> dict[str, list[str]]:
    """Each package's name → the parts of the project that bring it: `core`, or extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    parts = {"core": project["dependencies"], **project["optional-dependencies"]}
    found: dict[str, list[str]] = {}
    core = closure(parts["core"])
    for part, lines in parts.items():
        if part not in _LEFT_OUT:
            for name in closure(lines) - (core if part != "core" else set()):
                found.setdefault(name, []).append(part)
    return dict(sorted(found.items()))


def table() -> str:
    """The licences as Markdown: a row a licence, with its packages."""
    rows: dict[str, dict[str, list[str]]] = {}
    for name, parts in packages().items():
        rows.setdefault(licence_of(name), {}).setdefault(", ".join(parts), []).append(name)
    lines = ["| licence | brought by | packages |", "|---|---|---|"]
    for licence in sorted(rows, key=lambda one: (-sum(map(len, rows[one].values())), one)):
        for part, names in sorted(rows[licence].items(), key=lambda item: (item[0] != "core", item[0])):
            lines.append(f"| {licence} | {part} | {', '.join(names)} |")
    return "\n".join(lines)


def main() -> None:
    """Put the table into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, found, after = rest.partition(END)
    assert found, f"{PAGE}: the marks of the table are missing"
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
