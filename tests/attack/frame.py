"""What an attack is, and the run that tries each many times and counts what was survived.

An attack prepares a world once (models, data, the result of a run that was left alone) and attempts one thing to it
many times, each time in an empty folder and with random numbers of its own. An attempt that raises anything has
failed: it asserts what has to hold after the attack.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import platform
import random
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "attack.json"
PAGE = ROOT / "docs" / "reliability.md"
_BEGIN, _END = "<!-- attacks: written by make attack -->", "<!-- end of attacks -->"
_KEPT_FAILURES = 5


class NotPossibleHereError(Exception):
    """This machine cannot be attacked so; says why."""


@dataclass(frozen=True)
class Attempt:
    """What one attempt is given.

    Attributes:
        world: what `prepare` returned.
        folder: an empty folder of its own.
        random: its own random numbers, the same in every run.
    """

    world: Any
    folder: Path
    random: random.Random


@dataclass(frozen=True)
class Attack:
    """One way to harm, tried many times.

    Attributes:
        name: of the row in the table, such as `flip a bit of the answers so far`.
        group: what is attacked: `evaluation`, `training`, `data`, `server`, …
        attempt: raises where the attack did harm. It returns None, or how many things it tried where that is not one.
        prepare: makes the world in a folder that lasts as long as the attack.
        tries: how often `make attack` attempts it.
        quick: how often the tests do; 0 leaves it out of them.
        holds: what has to be true afterwards, in a few words for the table.
    """

    name: str
    group: str
    holds: str
    attempt: Callable[[Attempt], int | None]
    prepare: Callable[[Path], Any] = lambda _: None
    tries: int = 30
    quick: int = 2


@dataclass
class Outcome:
    """What came of an attack; `skipped` says why where it could not be tried at all."""

    name: str
    group: str
    holds: str
    tried: int = 0
    survived: int = 0
    failed: int = 0
    seconds: float = 0.0
    skipped: str | None = None
    failures: list[str] = field(default_factory=list)


def attacks() -> list[Attack]:
    """Every attack of the modules beside this one, by group."""
    package = importlib.import_module("tests.attack")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    modules = [
        importlib.import_module(f"tests.attack.{name}") for name in names if not name.startswith(("test_", "_"))
    ]
    found = [attack for module in modules for attack in getattr(module, "ATTACKS", ())]
    assert len({attack.name for attack in found}) == len(found), "an attack's name is its place in the table"
    return sorted(found, key=lambda attack: attack.group)


def run_attack(attack: Attack, tries: int, *, say: Callable[[str], None] = lambda _: None) -> Outcome:
    """Attempt an attack `tries` times; nothing that an attempt raises goes further."""
    outcome, started = Outcome(attack.name, attack.group, attack.holds), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="d2e-attack-") as place:
        world_folder = Path(place) / "world"
        world_folder.mkdir()
        try:
            with _silence():
                world = attack.prepare(world_folder)
            for number in range(tries):
                folder = Path(place) / f"attempt-{number}"
                folder.mkdir()
                _attempt(attack, Attempt(world, folder, random.Random(f"{attack.name} {number}")), number, outcome)
                say(f"{attack.name}: {number + 1} of {tries}, {outcome.failed} failed")
        except NotPossibleHereError as reason:
            outcome.skipped = str(reason)
    outcome.seconds = round(time.monotonic() - started, 1)
    return outcome


@contextmanager
def _silence() -> Iterator[None]:
    """What the attacked commands print in this process is no part of the table."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


def _attempt(attack: Attack, given: Attempt, number: int, outcome: Outcome) -> None:
    try:
        with _silence():
            count = attack.attempt(given) or 1
    except NotPossibleHereError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit is as wrong as any other end
        outcome.tried += 1
        outcome.failed += 1
        if len(outcome.failures) < _KEPT_FAILURES:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            outcome.failures.append(f"attempt {number} ({where}): {type(error).__name__}: {_short(str(error))}")
    else:
        outcome.tried += count
        outcome.survived += count


def _short(text: str) -> str:
    return text if len(text) < 1200 else f"{text[:200]} … {text[-1000:]}"


def save(outcomes: Iterable[Outcome], command: str, results: Path = RESULTS, page: Path = PAGE) -> None:
    """Put the outcomes in place of those of the same attacks, and the table of all into the page.

    A row says when and on what it was measured, as a run may be of some attacks only.
    """
    kept: dict[str, Any] = json.loads(results.read_text("utf-8")) if results.is_file() else {"attacks": []}
    rows = {row["name"]: row for row in kept["attacks"]}
    measured = {"date": datetime.now(UTC).date().isoformat(), "machine": machine(), "command": command}
    rows |= {outcome.name: {**asdict(outcome), **measured} for outcome in outcomes}
    ordered = sorted(rows.values(), key=lambda row: (row["group"], row["name"]))
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps({"attacks": ordered}, indent=1, ensure_ascii=False) + "\n", "utf-8")
    text = page.read_text("utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, found, after = rest.partition(_END)
    assert found, f"{page}: the marks of the table are missing"
    page.write_text(f"{before}{_BEGIN}\n\n{table(ordered)}\n\n{_END}{after}", "utf-8")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The outcomes as Markdown."""
    lines = ["| attack | on | what has to hold | tried | survived | failed |", "|---|---|---|---|---|---|"]
    for row in rows:
        counts = [f"{row[name]:,}" for name in ("tried", "survived", "failed")]
        told = counts if row["skipped"] is None else [f"not tried: {row['skipped']}", "", ""]
        lines.append(f"| {' | '.join([row['name'], row['group'], row['holds'], *told])} |")
    return "\n".join(lines)


def machine() -> str:
    """The processor and its cores, as a figure in docs names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores of {name}"
