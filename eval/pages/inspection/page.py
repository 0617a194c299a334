"""The page of `d2e inspect`: one file, with a slider for α."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from d2e_sft.data.sample import EventSample
from d2e_sft.util.files import write_whole
from d2e_sft.util.html.pages import page_environment
from eval.pages.inspection.distributions import Place


@dataclass(frozen=True)
class Inspected:
    """A sample, its answer and the places of it.

    Attributes:
        answer: the text whose tokens are shown.
        prompts: text of the original and of the imagined prompt.
    """

    sample: EventSample
    answer: str
    prompts: tuple[str, str]
    places: Sequence[Place]

    @property
    def telling(self) -> int:
        """The place at which the context matters most to the probability of the answer's token."""

        def difference(index: int) -> float:
            place = self.places[index]
            chosen = place.candidates[place.chosen]
            return abs(math.exp(chosen.original) - math.exp(chosen.imagined))

        return max(range(len(self.places)), key=difference)


def write_page(
    file: Path, *, model: str, alpha: float, ratios: Sequence[float], inspected: Sequence[Inspected], whose: str
) -> None:
    """Write the page.

    Args:
        alpha: where the slider begins; one of `ratios`.
        whose: what the shown answers are, as `decoded with α = 0.5`.
    """
    data: dict[str, Any] = {
        "ratios": [round(ratio, 4) for ratio in ratios],
        "start": list(ratios).index(alpha),
        "samples": [[_compact(place) for place in one.places] for one in inspected],
    }
    template = page_environment(Path(__file__).parent).get_template("inspect.html")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, template.render(model=model, alpha=alpha, inspected=inspected, whose=whose, data=data))


def _compact(place: Place) -> dict[str, Any]:
    """Five digits are more than a page shows, and half of what a float is written with."""
    return {
        "chosen": place.chosen,
        "normalisers": [round(value, 5) for value in place.normalisers],
        "candidates": [
            {**asdict(one), "original": round(one.original, 5), "imagined": round(one.imagined, 5)}
            for one in place.candidates
        ],
    }
