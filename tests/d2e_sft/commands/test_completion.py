"""Shell completion: of verbs, options and names of recipes, and the scripts for the shells."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from d2e_sft import cli

ROOT = Path(cli.__file__).parents[1]


def completed(shell: str, line: str) -> str:
    """What d2e answers to a shell for the last word of a line."""
    words = [*shlex.split(line), *([""] if line.endswith(" ") else [])]
    place = str(len(words) - 1) if shell == "bash" else words[-1]
    environment = {"_D2E_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": place}
    return CliRunner().invoke(cli.d2e, prog_name="d2e", env=environment).output


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_verbs_subcommands_options_and_recipes_are_completed(shell: str) -> None:
    assert "train" not in completed(shell, "d2e d")
    for line, expected in {
        "d2e d": "doctor",
        "d2e data d": "download",
        "d2e train --a": "--auto-resume",
        "d2e train qwen3-0.6b/d": "qwen3-0.6b/d2e-lora",
        "d2e train --model qwen": "qwen3-0.6b",
        "d2e train --model qwen3-0.6b --method sft-q": "sft-qlora",
    }.items():
        assert expected in completed(shell, line)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_the_bash_script_completes_in_bash(tmp_path: Path) -> None:
    (tmp_path / "d2e").write_text(
        f'#!/usr/bin/env bash\nexec {sys.executable} -c "from d2e_sft.cli import main; main()" "$@"\n'
    )
    (tmp_path / "d2e").chmod(0o755)
    script = """
        eval "$(d2e completion bash)"
        complete -p d2e
        COMP_WORDS=(d2e data do) COMP_CWORD=2
        _d2e_completion d2e do data
        echo "${COMPREPLY[@]}"
    """
    run = subprocess.run(
        ["bash", "-c", script],
        env={"PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    registered, offered = run.stdout.splitlines()
    assert "_d2e_completion d2e" in registered
    assert offered == "download"
