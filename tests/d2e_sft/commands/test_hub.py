"""`d2e export`, `d2e push`: both hand the same options on."""

from __future__ import annotations

from typing import Any

import click
import pytest

from d2e_sft import cli
from d2e_sft.commands import hub
from d2e_sft.hub import export as exporting
from d2e_sft.hub import push as pushing
from d2e_sft.hub.push import Pushed
from d2e_sft.hub.weights import ExportOptions


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ExportOptions]:
    """The options that the two commands handed on, with nothing written or sent."""
    options: list[ExportOptions] = []

    def send(*_: Any, options: ExportOptions, **__: Any) -> Pushed:
        asked_for.append(options)
        return Pushed(url=None, private=False, sizes={"config.json": 1234})

    asked_for = options
    monkeypatch.setattr(exporting, "export", lambda run, out, chosen: options.append(chosen) or ["config.json"])
    monkeypatch.setattr(pushing, "push", send)
    return options


@pytest.mark.parametrize("words", [["export", "runs/x", "absent/out"], ["push", "runs/x", "me/x", "--dry-run"]])
def test_weights_dtype_and_licence_are_handed_on(words: list[str], asked: list[ExportOptions]) -> None:
    cli.main([*words, "--merge", "--dtype", "bfloat16", "--license", "mit"])
    cli.main(words)
    assert asked == [ExportOptions(merge=True, dtype="bfloat16", licence="mit"), ExportOptions()]


def test_a_dry_run_lists_sizes_and_says_that_nothing_was_sent(
    asked: list[ExportOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["push", "runs/x", "me/x", "--dry-run"])
    assert capsys.readouterr().out == "1,234  config.json\n1 files, 1,234 bytes; nothing was sent (--dry-run)\n"


def test_both_commands_explain_the_options_alike() -> None:
    def shared(command: click.Command) -> dict[str | None, Any]:
        return {option.name: option.to_info_dict() for option in command.params if option.name in names}

    names = {"merge", "dtype", "licence"}
    assert shared(hub.export) == shared(hub.push)
    assert shared(hub.push).keys() == names
