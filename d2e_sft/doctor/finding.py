"""A finding of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: What was checked.
        status: `warn` if something is missing that some commands need, `fail` if d2e cannot work.
        value: The result.
        remedy: What to do; empty if the status is ok.
        topic: Section of the report; `d2e_sft.doctor.run` fills it in.
    """

    name: str
    status: Status
    value: str
    remedy: str = ""
    topic: str = ""
