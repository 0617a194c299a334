"""Draws docs/images/packed-row.svg: two samples as one packed row, with the attention mask that `pack` gives it.

`python docs/packed_row_picture.py`; a test compares the picture with what `pack` gives now.
"""

from pathlib import Path

from d2e_sft.model.packing import PackedRow, pack

PICTURE = Path(__file__).resolve().parent / "images" / "packed-row.svg"
CELL, LEFT, TOP = 17, 180, 118
COLOURS = {"system": "#d9d9d9", "user": "#bdbdbd", "o": "#0072B2", "im": "#E69F00", "cr": "#009E73"}
NAMES = {
    "system": "system prompt, shared by all",
    "user": "user header, shared by a sample's views",
    "o": "original",
    "im": "imagined",
    "cr": "refined",
}
# Tokens of each part, system prompt and user header included; the last token of a branch stands for the answer.
SAMPLES = ({"o": 6, "im": 3, "cr": 4}, {"o": 7, "im": 3, "cr": 5})
SYSTEM, USER = 3, 2


def example() -> tuple[PackedRow, list[str]]:
    """The packed row of the two samples, and what each of its tokens belongs to."""
    part: dict[int, str] = dict.fromkeys(range(SYSTEM), "system")
    sequences, token = [], SYSTEM
    for sample in SAMPLES:
        header = list(range(token, token + USER))
        part |= dict.fromkeys(header, "user")
        token += USER
        for view, length in sample.items():
            branch = list(range(token, token + length))
            part |= dict.fromkeys(branch, view)
            token += length
            sequences.append([*range(SYSTEM), *header, *branch])
    row = pack([sequences], min_shared=1)
    return row, [part[token] for token in row.tokens]


def draw() -> str:
    """The picture as SVG: above the tokens with their positions, below them which token (row) sees which (column)."""
    row, parts = example()
    length = row.forest.length
    mask = row.forest.plan(0, length).mask().tolist()
    positions = row.forest.position_ids.tolist()
    width, height = LEFT + length * CELL + 20, TOP + length * CELL + 20
    shapes = [f'<text x="{LEFT - 10}" y="{TOP - 42}" text-anchor="end">packed row</text>']
    shapes.append(f'<text x="{LEFT - 10}" y="{TOP - 22}" text-anchor="end">position</text>')
    shapes += [_legend(i, part) for i, part in enumerate(COLOURS)]
    for i, part in enumerate(parts):
        x = LEFT + i * CELL
        shapes.append(_square(x, TOP - 54, COLOURS[part]))
        shapes.append(f'<text x="{x + 8}" y="{TOP - 22}" text-anchor="middle" font-size="10">{positions[i]}</text>')
        shapes.append(_square(LEFT - CELL - 6, TOP + i * CELL, COLOURS[part]))
        for j in range(length):
            shapes.append(_square(LEFT + j * CELL, TOP + i * CELL, COLOURS[part] if mask[i][j] else "#f5f5f5"))
    middle = TOP + length * CELL / 2
    shapes.append(f'<text x="{LEFT - CELL - 16}" y="{middle:g}" text-anchor="end">each token sees</text>')
    shapes.append(f'<text x="{LEFT - CELL - 16}" y="{middle + 18:g}" text-anchor="end">the coloured ones</text>')
    about = "Two samples with three views each as a packed row, and its mask: a branch sees its prefixes and itself"
    opening = f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="13" role="img"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {opening} aria-label="{about}">'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#fff"/>', *shapes, "</svg>\n"])


def _square(x: float, y: float, colour: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{CELL - 1}" height="{CELL - 1}" fill="{colour}"/>'


def _legend(place: int, part: str) -> str:
    x, y = LEFT + 262 * (place % 2) if place < 2 else LEFT + 131 * (place - 2), 12 if place < 2 else 34
    return f'{_square(x, y, COLOURS[part])}<text x="{x + CELL + 4:g}" y="{y + 13:g}">{NAMES[part]}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(f"written: {PICTURE}")
