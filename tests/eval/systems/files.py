"""Files of the systems, small and in their official forms, written for the tests."""

import csv
import json
from pathlib import Path
from typing import Any

import yaml

OFFICIAL: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("gold.yaml").read_text(encoding="utf-8"))


def save(path: Path, content: Any) -> Path:
    """Write text as it is, rows as CSV or JSON lines by the file's ending, and other content as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as target:
            writer = csv.DictWriter(target, list(content[0]))
            writer.writeheader()
            writer.writerows(content)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    else:
        path.write_text(json.dumps(content), encoding="utf-8")
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a CSV file or of JSON lines."""
    with path.open(encoding="utf-8", newline="") as source:
        return list(csv.DictReader(source)) if path.suffix == ".csv" else [json.loads(line) for line in source]


# Questions of Boxes in the published format.
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
