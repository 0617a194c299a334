"""Rows in the published format, written here."""

from typing import Any

START = "Box 0 contains the cup, Box 1 contains the hat and the pen, Box 2 contains nothing."
MOVED = f"{START} Move the hat from Box 1 to Box 2. Remove the cup from Box 0."


def row(description: str, box: int, answer: str, numops: int, *, scenario: int = 0) -> dict[str, Any]:
    """A question in the format for prompting."""
    return {
        "sentence": f"{description} Box {box} contains {answer}.",
        "sentence_masked": f"{description} Box {box} contains <extra_id_0> .",
        "masked_content": f"<extra_id_0> {answer}",
        "sample_id": scenario,
        "numops": numops,
    }


ROWS = [
    row(START, 0, "the cup", 0),
    row(START, 1, "the hat and the pen", 0),
    row(START, 2, "nothing", 0),
    row(MOVED, 0, "nothing", 1),
    row(MOVED, 1, "the pen", 1),
    row(MOVED, 2, "the hat", 1),
]
