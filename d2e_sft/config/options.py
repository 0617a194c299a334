"""Option types that click lacks, and options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

from d2e_sft.config.decoding import DECODERS


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


def decoder_option(
    what: str, *names: str, custom: str = ", or a custom module:function", **settings: Any
) -> Callable[[Any], Any]:
    """Return the click option `--decoder`, whose help lists the decoders after `what`."""
    text = f"{what}: {', '.join(DECODERS)}{custom}. [default: d2e]"
    return click.option("--decoder", *names, metavar="NAME[:KEY=VALUE,…]", help=text, **settings)
