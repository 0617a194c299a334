"""The base of a recipe's sections."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A section of a recipe; unknown keys, NaN and infinity are errors."""

    model_config = ConfigDict(
        extra="forbid",
        validate_default=True,
        protected_namespaces=(),
        allow_inf_nan=False,
        use_attribute_docstrings=True,  # the text below a key documents it, see `d2e_sft.config.reference`
    )

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Python's True equals 1, so `alpha: true` would be taken for a number."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and bool not in (kind, *get_args(kind)):
            raise PydanticCustomError("truth_value", "expected no truth value")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _text_has_no_nul(cls, value: Any) -> Any:
        """No path may contain it, and no other text needs it."""
        if isinstance(value, str) and "\0" in value:
            raise PydanticCustomError("nul", "expected text without the character NUL")
        return value
