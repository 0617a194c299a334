"""`d2e compare` as a command."""

from __future__ import annotations

import subprocess
import sys


def test_the_verbs_load_without_torch_or_matplotlib() -> None:
    code = (
        "import sys, eval.commands.compare, eval.commands.report; "
        "print([name for name in ('torch', 'matplotlib') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
