"""Draw docs/images/architecture.svg from the code's imports: `python docs/architecture_picture.py`.

A box is a folder of a package with the first sentence of its docstring. It is one floor above the highest folder that
it imports. An arrow is an import that does not follow from others. A test compares the picture with the code.
"""

import ast
import textwrap
from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
PACKAGES = ("d2e_sft", "data_builders", "eval")
BOX, HEIGHT, GAP, FLOOR, MARGIN = 186, 84, 16, 124, 24
CAPTION = 26  # characters per line
COLOURS = {"d2e_sft": ("#e7f1f8", "#0072B2"), "data_builders": ("#fdf3e0", "#E69F00"), "eval": ("#e5f5f0", "#009E73")}

Arrows = dict[str, set[str]]  # room → rooms that it imports


def rooms_of(package: str) -> dict[str, str]:
    """The folders of a package with the first sentence of their docstrings."""
    folders = sorted(path.parent for path in (ROOT / package).glob("*/__init__.py"))
    texts = {
        folder.name: ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8"))) for folder in folders
    }
    return {name: (text or "").split("\n\n")[0].replace("\n", " ").rstrip(".") for name, text in texts.items()}


def imports_between(package: str, rooms: Iterable[str]) -> Arrows:
    """The rooms of a package that each room imports."""
    arrows: Arrows = {room: set() for room in rooms}
    for room in arrows:
        for file in (ROOT / package / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
                names += [f"{node.module}.{alias.name}" for alias in node.names] if names else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                parts = [name.split(".") for name in names]
                arrows[room] |= {part[1] for part in parts if part[0] == package and len(part) > 1} & arrows.keys()
        arrows[room].discard(room)
    return arrows


def floors_of(arrows: Arrows) -> dict[str, int]:
    """Each room's floor: one above the highest that it imports, 0 at the ground.

    Raises:
        ValueError: rooms import each other in a circle.
    """
    floors: dict[str, int] = {}
    while len(floors) < len(arrows):
        ready = [room for room in arrows if room not in floors and arrows[room] <= floors.keys()]
        if not ready:
            raise ValueError(f"rooms import each other: {sorted(arrows.keys() - floors.keys())}")
        for room in ready:
            floors[room] = 1 + max((floors[other] for other in arrows[room]), default=-1)
    return floors


def without_implied(arrows: Arrows) -> Arrows:
    """The arrows without those that follow from others: A → C where A → B → … → C."""

    def reached(room: str) -> set[str]:
        return arrows[room] | {far for other in arrows[room] for far in reached(other)}

    return {
        room: {to for to in others if not any(to in reached(other) for other in others)}
        for room, others in arrows.items()
    }


def draw() -> str:
    """The picture as SVG: two packages next to each other, above the method that both use."""
    upper = [_panel(package) for package in PACKAGES[1:]]
    gap = 56
    top = max(height for _, _, height in upper)
    whole = sum(width for _, width, _ in upper) + gap
    body, _, bottom = _panel(PACKAGES[0], whole)
    parts, x = [f'<g transform="translate(0 {top + gap:g})">{body}</g>'], 0.0
    for body, width, height in upper:
        parts.append(f'<g transform="translate({x:g} {top - height:g})">{body}</g>')
        parts.append(_line(x + width / 2, top, x + width / 2, top + gap))
        x += width + gap
    size = f"0 0 {whole:g} {top + gap + bottom:g}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" font-family="system-ui, sans-serif" role="img" '
        'aria-label="The folders of the three packages and which imports which">'
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L10 5L0 10z" fill="#666"/></marker></defs>'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>"]) + "\n"


def _panel(package: str, width: float = 0) -> tuple[str, float, float]:
    """A package as SVG, its width (at least `width`) and its height."""
    captions = rooms_of(package)
    arrows = imports_between(package, captions)
    floors = floors_of(arrows)
    fill, stroke = COLOURS[package]
    rows = [[room for room in floors if floors[room] == floor] for floor in range(max(floors.values()) + 1)]
    width = max(width, max(len(row) for row in rows) * (BOX + GAP) - GAP + 2 * MARGIN)
    height = len(rows) * FLOOR - (FLOOR - HEIGHT) + 2 * MARGIN + 20
    place = {}
    for floor, row in enumerate(rows):
        x = (width - len(row) * (BOX + GAP) + GAP) / 2
        for room in row:
            place[room] = (x, MARGIN + 20 + (len(rows) - 1 - floor) * FLOOR)
            x += BOX + GAP
    lines = [
        _line(place[room][0] + BOX / 2, place[room][1] + HEIGHT, place[to][0] + BOX / 2, place[to][1])
        for room, others in without_implied(arrows).items()
        for to in sorted(others)
    ]
    boxes = [_box(room, captions[room], *place[room], stroke) for room in place]
    frame = f'<rect width="{width:g}" height="{height:g}" rx="10" fill="{fill}"/>'
    title = f'<text x="{MARGIN}" y="28" font-size="18" font-weight="700" fill="{stroke}">{package}</text>'
    return "\n".join([frame, title, *lines, *boxes]), width, height


def _box(room: str, caption: str, x: float, y: float, stroke: str) -> str:
    lines = textwrap.wrap(caption, CAPTION, max_lines=3, placeholder=" …")
    texts = "".join(
        f'<text x="{x + 10:g}" y="{y + 40 + 16 * i:g}" font-size="12" fill="#333">{escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{BOX}" height="{HEIGHT}" rx="8" fill="#fff" stroke="{stroke}"/>'
        f'<text x="{x + 10:g}" y="{y + 21:g}" font-size="15" font-weight="600" fill="#111">{room}/</text>{texts}'
    )


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    middle = (y1 + y2) / 2
    path = f"M{x1:g} {y1:g}C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {y2:g}"
    return f'<path d="{path}" fill="none" stroke="#666" stroke-width="1.4" marker-end="url(#tip)"/>'


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(f"written: {PICTURE.relative_to(ROOT)}")
