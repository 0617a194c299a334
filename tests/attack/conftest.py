"""Repeats each attack as often as asked, and counts what was survived."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attack.frame import Attempt, Outcome, save, tries_asked

_OUTCOMES = pytest.StashKey[dict[str, Outcome]]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("attack")
    if mark is not None:
        asked = tries_asked()
        tries = mark.kwargs["tries"] if asked == "all" else int(asked) if asked else mark.kwargs["quick"]
        left_out = pytest.param(0, marks=pytest.mark.skip("only in make attack"))
        metafunc.parametrize("attempt", range(tries) if tries else [left_out])


@pytest.fixture(scope="module")
def world() -> Any:
    """What is attacked; modules define their own."""
    return None


@pytest.fixture
def given(world: Any, tmp_path: Path, attempt: int, request: pytest.FixtureRequest) -> Attempt:
    name = request.node.get_closest_marker("attack").kwargs["name"]
    return Attempt(world, tmp_path, attempt, random.Random(f"{name} {attempt}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield
    mark = item.get_closest_marker("attack")
    if mark is not None and tries_asked():
        name = mark.kwargs["name"]
        outcomes = item.config.stash.setdefault(_OUTCOMES, {})
        outcome = outcomes.setdefault(name, Outcome(name, mark.kwargs["on"], mark.kwargs["holds"]))
        outcome.seconds = round(outcome.seconds + report.duration, 1)
        if report.skipped:
            outcome.skipped = str(call.excinfo.value) if call.excinfo else "skipped"
        elif report.failed:
            outcome.tried, outcome.failed = outcome.tried + 1, outcome.failed + 1
            outcome.failures.append(f"{item.name}: {str(report.longrepr).splitlines()[-1]}"[:1200])
        elif report.when == "call":
            things = item.funcargs["given"].things or 1  # a process may finish before the first kill
            outcome.tried, outcome.survived = outcome.tried + things, outcome.survived + things
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    outcomes = session.config.stash.get(_OUTCOMES, {})
    if outcomes:
        save(list(outcomes.values()))
