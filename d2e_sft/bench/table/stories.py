"""Rows for the table: stories of who carried what where, with a question whose answer is the last place.

They are generated, so the table needs no download. Their length is that of a PIPER passage.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

_PEOPLE = ("Ana", "Bo", "Carla", "Deniz", "Emre", "Fay", "Goran", "Hana")
_THINGS = ("the map", "the lamp", "the red coat", "the ladder", "the radio", "the old clock")
_PLACES = ("the attic", "the kitchen", "the garden shed", "the car", "the cellar", "the hall", "the workshop")
_DAYS = ("On Monday", "The next morning", "Before lunch", "Late at night", "A week later", "When the rain stopped")
_DESCRIPTION = """\
{split}: {file}
format: {format}
relation: temporal
columns: {{context: story, question: ask, {options}answer: place}}
"""


def write_suite(folder: Path, stories: int, sentences: int, split: str = "test") -> list[Path]:
    """Write stories for each of two datasets, one with options and one without; returns their descriptions."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptions = []
    for seed, (name, fmt) in enumerate({"choices": "scq", "questions": "qa"}.items()):
        rows = folder / f"{name}.jsonl"
        with rows.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in _rows(stories, sentences, seed))
        options = "options: places, " if fmt == "scq" else ""
        text = _DESCRIPTION.format(split=split, file=rows.name, format=fmt, options=options)
        descriptions.append(rows.with_suffix(".yaml"))
        descriptions[-1].write_text(text, encoding="utf-8")
    return descriptions


def _rows(stories: int, sentences: int, seed: int) -> Iterator[dict[str, object]]:
    source = random.Random(seed)
    for number in range(stories):
        where: dict[str, str] = {}
        lines = []
        for _ in range(sentences):
            thing, place = source.choice(_THINGS), source.choice(_PLACES)
            where[thing] = place
            lines.append(f"{source.choice(_DAYS)}, {source.choice(_PEOPLE)} carried {thing} into {place}.")
        thing = source.choice(list(where))
        places = [*source.sample([place for place in _PLACES if place != where[thing]], 3), where[thing]]
        yield {
            "id": str(number),
            "story": " ".join(lines),
            "ask": f"Where is {thing} at the end of the story?",
            "places": sorted(places),
            "place": where[thing],
        }
