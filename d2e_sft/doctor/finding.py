"""What a check finds: a line of the report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line.

    Attributes:
        topic: the section of the report it belongs to.
        name: what was looked at.
        status: `ok`; `warn` where something is missing that some commands need; `fail` where d2e cannot work.
        value: what was found.
        remedy: what to do about it; empty where it is ok.
    """

    topic: str
    name: str
    status: Status
    value: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
