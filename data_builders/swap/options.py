"""Options of swaps: where the other answers come from."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

CHOICES = "choices"  # of `meta`: wrong answers that are not asked as options


class Pool(StrEnum):
    """Where the other entity comes from."""

    OPTIONS = "options"
    LISTS = "lists"
    DATASET = "dataset"
    MODEL = "model"


class SwapOptions(BaseModel):
    """Options of swaps; on the command line `swap.NAME=VALUE`.

    Attributes:
        pools: Where other answers come from, in the order in which they are asked: `options` (the row's own options or
            choices), `lists` (numbers, dates and word lists by type), `dataset` (answers of other rows) and, always
            last, `model`. None: all of them, `model` if one is named.
        model: Proposes answers: a folder, a Hub name or `builtin:…`.
        dtype: Data type of the model's weights.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    pools: Annotated[
        tuple[Pool, ...] | None,
        BeforeValidator(lambda value: [one.strip() for one in value.split(",")] if isinstance(value, str) else value),
        Field(min_length=1),
    ] = None
    model: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"

    def describe(self) -> dict[str, Any]:
        """Return the options for the manifest, each in the form of a setting."""
        return {**self.model_dump(), "pools": ",".join(self.pools) if self.pools else None}

    @property
    def order(self) -> tuple[Pool, ...]:
        """The pools in the order in which they are asked."""
        chosen = tuple(Pool) if self.pools is None else self.pools
        return tuple(pool for pool in dict.fromkeys(chosen) if pool is not Pool.MODEL or self.model)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        pools = self.pools or ()
        if Pool.MODEL in pools and self.model is None:
            raise ValueError("swap.pools has model without one; name it, for example --swap-model OWNER/NAME")
        if self.pools and self.model and Pool.MODEL not in pools:
            raise ValueError(f"swap.model with the pools {', '.join(pools)}; expected model among them")
        if self.model is None and "dtype" in self.model_fields_set:
            raise ValueError("swap.dtype without --swap-model")
        return self
