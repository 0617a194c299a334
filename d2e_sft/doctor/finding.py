"""What a check finds: a line of the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line.

    Attributes:
        name: what was looked at.
        status: `ok`; `warn` where something is missing that some commands need; `fail` where d2e cannot work.
        value: what was found.
        remedy: what to do about it; empty where it is ok.
        topic: the section of the report it belongs to; a check leaves that to `d2e_sft.doctor.run`.
    """

    name: str
    status: Status
    value: str
    remedy: str = ""
    topic: str = ""
