"""Error messages as a snapshot: a table of calls in Python, and the message of each in a YAML file.

    test_message = messages_of(__file__, {
        "alpha above 10": lambda tmp: DecodingConfig(alpha=11),
        "no such file": lambda tmp: refusal_of("train", tmp / "missing.yaml"),
    })

Where the calls are command lines, the table is the YAML file alone: `refused_lines(__file__)` tries each of its keys.
`D2E_UPDATE=1 python -m pytest FILE` writes the messages, whose diff is read like any other.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from d2e_sft.util.errors import UserError
from tests.command import refusal_of

Call = Callable[[Path], Any]


def message_of(call: Call, tmp: Path) -> str:
    """The message of the UserError that a call raises, or the text that it returns; `tmp` reads as TMP."""
    try:
        text = call(tmp)
    except UserError as error:
        text = str(error)
    assert isinstance(text, str), f"expected a UserError or a text, not {text!r}"
    return "\n".join(line.rstrip() for line in text.replace(str(tmp), "TMP").strip().splitlines())


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


class Snapshot:
    """The messages in a test module's YAML file, by name; with D2E_UPDATE they are those found."""

    def __init__(self, module: str) -> None:
        self.file = Path(module).with_suffix(".yaml")
        self.expected = yaml.safe_load(self.file.read_text(encoding="utf-8")) if self.file.is_file() else {}

    def check(self, name: str, found: str, names: Iterable[str]) -> None:
        """Assert that a message is the expected one; `names` are all that the file has."""
        if os.environ.get("D2E_UPDATE"):
            self.expected[name] = found
            kept = {key: self.expected[key] for key in names if key in self.expected}
            text = yaml.dump(kept, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=110)
            self.file.write_text(text, encoding="utf-8")
        assert found == self.expected.get(name)


def messages_of(module: str, calls: Mapping[str, Call]) -> Callable[..., None]:
    """A test for each call: its message is that in `<module>.yaml`. A call takes the test's own folder."""
    snapshot = Snapshot(module)

    @pytest.mark.parametrize("name", calls)
    def test(name: str, tmp_path: Path) -> None:
        snapshot.check(name, message_of(calls[name], tmp_path), calls)

    return test


def words_of(line: str, places: Mapping[str, Path]) -> list[str]:
    """The words of a command line; a name in capitals is the path of that place."""
    return shlex.split(re.sub(r"[A-Z][A-Z0-9_]+", lambda found: str(places.get(found[0], found[0])), line))


def refused_lines(module: str) -> Callable[..., None]:
    """A test for each command line that is a key of `<module>.yaml`: it has that message, and writes nothing.

    The fixture `places` maps the names in capitals to paths.
    """
    snapshot = Snapshot(module)
    lines = list(snapshot.expected)

    @pytest.mark.parametrize("line", lines)
    def test(line: str, places: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        _, *errors = re.split(r"^(?=d2e: error: |Error: )", refusal_of(*words_of(line, places)), flags=re.MULTILINE)
        [message] = errors
        assert not list(tmp_path.iterdir()), "a refused command leaves no folder behind"
        for name, path in sorted(places.items(), key=lambda place: -len(str(place[1]))):
            message = message.replace(str(path), name)
        snapshot.check(line, "\n".join(part.rstrip() for part in message.strip().splitlines()), lines)

    return test


def assert_messages(module: str, messages: Mapping[str, str]) -> None:
    """All messages of one test, which needs fixtures, are those in `<module>.yaml`."""
    snapshot = Path(module).with_suffix(".yaml")
    if os.environ.get("D2E_UPDATE"):
        text = yaml.safe_dump(dict(messages), allow_unicode=True, sort_keys=False, width=110)
        snapshot.write_text(text, encoding="utf-8")
    assert messages == yaml.safe_load(snapshot.read_text(encoding="utf-8"))
