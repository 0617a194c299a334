"""`d2e compare` as a command."""

from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner

from eval.commands.compare import compare


def output_of(*arguments: object) -> str:
    result = CliRunner().invoke(compare, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_help_ends_with_an_example() -> None:
    assert "Example: d2e compare" in output_of("--help")


def test_the_verbs_load_without_torch_or_matplotlib() -> None:
    code = (
        "import sys, eval.commands.compare, eval.commands.report; "
        "print([name for name in ('torch', 'matplotlib') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
