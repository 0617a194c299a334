"""A chat template is a program of the model's author: one that never ends or fills the memory is rejected at load.

Before a template is used for the first time, a forked child renders short conversations with it, within limits of CPU
time and memory. The cache marks those that pass. Systems without fork or such limits do without.
"""

import hashlib
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress

from d2e_sft.util.errors import UserError
from d2e_sft.util.paths import cache_dir

_SECONDS, _MEGABYTES = 2, 256
_TOO_LARGE, _WORDS = 3, "Rain fell on the hills. " * 40
_TURNS = [{"role": role, "content": _WORDS} for role in ("system", *("user", "assistant") * 3, "user")]
# With and without a system message, up to an answer and with it.
_CONVERSATIONS = (_TURNS, _TURNS[1:], _TURNS[:-1], _TURNS[1:3])
_PARALLEL = "TOKENIZERS_PARALLELISM"
_passed: set[str] = set()


def try_template(template: str, render: Callable[..., str], owner: str) -> None:
    """Render short conversations in a child process, unless this template has passed before.

    `render` gets a conversation, and `add_generation_prompt` if an answer is to follow. Its exceptions are ignored
    here, since they arise again in use. Raises UserError, with the `owner`, if it takes too much time or memory.
    """
    if template in _passed:
        return
    mark = cache_dir() / "templates" / hashlib.sha256(template.encode(errors="surrogatepass")).hexdigest()
    if not os.access(mark, os.F_OK):  # False, too, in a folder that cannot be read
        if status := _status_of_trial(render):
            time, memory = f"more than {_SECONDS} s of CPU time", f"more than {_MEGABYTES} MB of memory"
            took = {-signal.SIGXCPU: f"takes {time}", _TOO_LARGE: f"takes {memory}"}.get(status, f"ends with {status}")
            raise UserError(
                f"tokenizer of {owner!r}: its chat template {took} for a short conversation; expected milliseconds",
                remedy="use a model whose author you trust, or replace the template in chat_template.jinja",
            )
        with suppress(OSError):  # a cache that cannot be written only costs time
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
    _passed.add(template)


def _status_of_trial(render: Callable[..., str]) -> int:
    """Return the exit status of a limited child process that renders, or minus the signal that ended it."""
    parallel = os.environ.get(_PARALLEL)
    os.environ[_PARALLEL] = parallel or "true"  # keeps tokenizers from warning of the fork; the child uses none
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, whose locks the child does not use
            child = os.fork()
    except (AttributeError, OSError):  # Windows, or no memory for another process
        return 0
    finally:
        if parallel is None:
            del os.environ[_PARALLEL]
    if child == 0:
        status = 0  # also if there are no limits here
        try:
            _limit()
            status = _render_all(render)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _render_all(render: Callable[..., str]) -> int:
    for turns in _CONVERSATIONS:
        try:
            if len(render(turns, add_generation_prompt=turns[-1]["role"] == "user")) > _MEGABYTES * 2**20:
                return _TOO_LARGE
        except MemoryError:
            return _TOO_LARGE
        except Exception:  # reported when it happens in use
            continue
    return 0


def _limit() -> None:
    """Bound this child's CPU time and further memory; it dies quietly, also at Ctrl-C."""
    import resource

    def lower(kind: int, value: int) -> None:
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    lower(resource.RLIMIT_CORE, 0)
    lower(resource.RLIMIT_CPU, _SECONDS)
    if sys.platform == "linux":
        with open("/proc/self/statm") as sizes:
            pages = int(sizes.read().split()[0])
        lower(resource.RLIMIT_AS, pages * resource.getpagesize() + _MEGABYTES * 2**20)
