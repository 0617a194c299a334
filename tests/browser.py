"""Pages in headless Chromium, driven through the DevTools protocol over two pipes without a further package."""

import atexit
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")


class Tab:
    """One tab.

    `complaints` are errors and warnings of the console, exceptions, and requests that failed.
    """

    def __init__(self, send: Any, receive: Any) -> None:
        self._send, self._receive = send, receive
        self._number, self._session = 0, ""
        self._unread = b""
        self.complaints: list[str] = []
        self.requested: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, address: str) -> None:
        """Go to an address; complaints and requests of the last page go."""
        self._call("Page.navigate", url="about:blank")
        self.wait_for("location.href == 'about:blank'")
        self.complaints.clear()
        self.requested.clear()
        self._call("Page.navigate", url=address)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, which must be JSON."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 60) -> None:
        """Until an expression is true; one that fails is not true yet."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.evaluate(f"(() => {{ try {{ return !!({expression}) }} catch {{ return false }} }})()"):
                return
            time.sleep(0.1)
        raise AssertionError(f"{expression}: not true in {seconds} s; the page says: {self.text()}")

    def text(self) -> str:
        return str(self.evaluate("document.body.innerText"))

    def type_into(self, selector: str, text: str) -> None:
        """Put a text into a field in the place of what is there, as typing does."""
        self.evaluate(
            f"(() => {{ const f = document.querySelector({json.dumps(selector)}); f.focus(); f.select() }})()"
        )
        if text:
            self._call("Input.insertText", text=text)
        else:
            self.evaluate("document.execCommand('delete')")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._send.write(json.dumps(message).encode() + b"\0")
        self._send.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            more = os.read(self._receive.fileno(), 1 << 16)
            assert more, "the browser has gone"
            self._unread += more
        message, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: str, about: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requested.append(about["request"]["url"])
        elif event == "Network.loadingFailed" and not about.get("canceled"):
            self.complaints.append(f"request failed: {about.get('errorText')}")
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(about["exceptionDetails"])[:500])
        elif event == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(about["args"])[:500])
        elif event == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(about["entry"])[:500])


@contextmanager
def browser_tab(folder: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, whose profile is kept in the folder; skips where there is no browser."""
    browser = next(filter(None, map(shutil.which, _NAMES)), None)
    if browser is None:
        pytest.skip("no Chromium on this machine")
    to_browser, ours_out = os.pipe()
    ours_in, from_browser = os.pipe()
    # It reads from descriptor 3 and writes to 4.
    redirect = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
    command = ["bash", "-c", redirect, "browser", browser, *_FLAGS, f"--user-data-dir={folder}/chrome"]
    process = subprocess.Popen(
        command, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(to_browser)
    os.close(from_browser)
    with os.fdopen(ours_out, "wb") as send, os.fdopen(ours_in, "rb", buffering=0) as receive:
        try:
            yield Tab(send, receive)
        finally:
            process.terminate()
            process.wait(timeout=30)


@cache
def shared_tab() -> Tab:
    """The tab of one browser for all tests of a process; skips where there is no browser."""
    until_exit = ExitStack()
    atexit.register(until_exit.close)
    folder = until_exit.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
    return until_exit.enter_context(browser_tab(Path(folder)))


def after_scripts(page: Path, script: str = "", *, fragment: str = "", until: str = "true") -> str:
    """Return a page's document after its own scripts and one more; skip where there is no browser.

    Assert that no script failed and nothing was written to the console.

    Args:
        fragment: of the page's address, with its `#`.
        until: an expression that is true once the page's own scripts are done.
    """
    tab = shared_tab()
    tab.open(page.as_uri() + fragment)
    tab.wait_for(f"location.href != 'about:blank' && document.readyState == 'complete' && {until}")
    tab.evaluate(f"{script}; undefined")
    document = str(tab.evaluate("document.documentElement.outerHTML"))
    assert not tab.complaints, tab.complaints
    return document
