"""Option types that click lacks."""

from __future__ import annotations

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A number in a range; unlike click's own, it rejects NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert to a number; a usage error for anything else, for NaN, and outside the range."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            bounds = [
                f"{word} {bound:g}" for word, bound in (("from", self.min), ("to", self.max)) if bound is not None
            ]
            self.fail(f"{value} is not a number in the range {' '.join(bounds)}.", param, ctx)
        return number
