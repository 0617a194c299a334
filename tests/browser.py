"""Pages in headless Chromium: what stands in them after their scripts have run, and what these complained of."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def headless_chromium(folder: Path) -> list[str]:
    """The command that starts a browser whose profile is kept in the folder; skips where there is no browser."""
    browser = next(filter(None, map(shutil.which, _NAMES)), None)
    if browser is None:
        pytest.skip("no Chromium on this machine")
    return [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/chrome"]


def after_scripts(page: Path, folder: Path, script: str = "", *, fragment: str = "", patience: int = 0) -> str:
    """The document of a page after its own scripts and one more, which can move its controls.

    Args:
        fragment: of the page's address, with its `#`.
        patience: milliseconds of the page's own clock to wait for what its scripts do later.

    Asserts that no script failed and nothing was written to the console; skips where there is no browser.
    """
    command = headless_chromium(folder)
    copy = folder / f"probed-{page.name}"
    text = page.read_text(encoding="utf-8")
    assert text.count("</body>") == 1
    copy.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    flags = ["--enable-logging=stderr", *([f"--virtual-time-budget={patience}"] if patience else [])]
    done = subprocess.run(
        [*command, *flags, "--dump-dom", copy.as_uri() + fragment],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    complaints = re.findall(r"^.*CONSOLE.*$", done.stderr, flags=re.MULTILINE)
    assert not complaints, complaints
    return done.stdout
