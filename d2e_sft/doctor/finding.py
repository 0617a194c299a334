"""A finding of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# `warn` if something is missing that some commands need, `fail` if d2e cannot work.
Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was checked, the result, and what to do if it is not ok."""

    name: str
    status: Status
    value: str
    remedy: str = ""
    topic: str = ""  # section of the report; `d2e_sft.doctor.run` fills it in
