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
