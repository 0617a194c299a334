"""What an attack is: a test that harms something many times, and the table of what was survived.

The fixture `world` of a module prepares once what is attacked. `make test` tries each attack once, `make attack` as
often as its mark says.
"""

import json
import os
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "attack.json"
PAGE = ROOT / "docs" / "explanation" / "attacks.md"
_BEGIN, _END = "<!-- attacks: written by make attack -->", "<!-- end of attacks -->"


@dataclass
class Attempt:
    """One try of an attack.

    Attributes:
        folder: empty.
        random: seeded by the attack's name and the number, so the same in every run.
        things: number of things that were attacked, where one try attacks several.
    """

    world: Any
    folder: Path
    number: int
    random: random.Random
    things: int = 1


def flip_a_bit(content: bytes, numbers: random.Random) -> bytes:
    changed, place = bytearray(content), numbers.randrange(8 * len(content))
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def attack(name: str, on: str, holds: str, *, tries: int = 30, quick: int = 1) -> pytest.MarkDecorator:
    """Mark a test as an attack.

    Args:
        name: its row in the table, such as `flip a bit of the answers so far`.
        on: what is attacked, such as `evaluation`.
        holds: what has to be true afterwards.
        quick: tries of `make test`; 0 leaves it out.
    """
    return pytest.mark.attack(name=name, on=on, holds=holds, tries=tries, quick=quick)


def tries_asked() -> str:
    """Return D2E_TRIES: a number, `all` for each attack's own, or nothing for the quick form."""
    return os.environ.get("D2E_TRIES", "")


@dataclass
class Outcome:
    """The results of an attack; `skipped` is the reason if it could not be tried."""

    name: str
    group: str
    holds: str
    tried: int = 0
    survived: int = 0
    failed: int = 0
    seconds: float = 0.0
    skipped: str | None = None
    failures: list[str] = field(default_factory=list)


def save(outcomes: Sequence[Outcome]) -> None:
    """Replace the rows of these attacks in the results, and write the table of all attacks into the page.

    Each row has its date and machine, since a run may include only some attacks.
    """
    kept: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {"attacks": []}
    rows = {row["name"]: row for row in kept["attacks"]}
    command = "make attack" + ("" if tries_asked() == "all" else f" TRIES={tries_asked()}")
    measured = {"date": datetime.now(UTC).date().isoformat(), "machine": _machine(), "command": command}
    rows |= {outcome.name: {**asdict(outcome), **measured} for outcome in outcomes}
    ordered = sorted(rows.values(), key=lambda row: (row["group"], row["name"]))
    RESULTS.write_text(json.dumps({"attacks": ordered}, indent=1, ensure_ascii=False) + "\n", "utf-8")
    before, _, rest = PAGE.read_text("utf-8").partition(_BEGIN)
    _, found, after = rest.partition(_END)
    assert found, f"{PAGE}: the marks of the table are missing"
    PAGE.write_text(f"{before}{_BEGIN}\n\n{table(ordered)}\n\n{_END}{after}", "utf-8")


def _machine() -> str:
    """Return the cores of the processor, as the table names them."""
    from d2e_sft.model.device import cpu_has_bfloat16  # imports torch

    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{os.cpu_count()} cores of {name}{', bfloat16 in hardware' if cpu_has_bfloat16() else ''}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the outcomes as Markdown."""
    lines = ["| attack | on | what has to hold | tried | survived | failed |", "|---|---|---|---|---|---|"]
    for row in rows:
        counts = [f"{row[name]:,}" for name in ("tried", "survived", "failed")]
        cells = counts if row["skipped"] is None else [f"not tried: {row['skipped']}", "", ""]
        lines.append(f"| {' | '.join([row['name'], row['group'], row['holds'], *cells])} |")
    dates, machines = ({row[name] for row in rows} for name in ("date", "machine"))
    when = min(dates) if len(dates) == 1 else f"{min(dates)} to {max(dates)}"
    lines += ["", f"Measured on {' and '.join(sorted(machines))}; {when} ([each row](../results/attack.json))."]
    return "\n".join(lines)
