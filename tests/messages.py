"""Error messages as a snapshot: a table of calls in Python, and the message of each in a YAML file.

    test_message = messages_of(__file__, {
        "alpha above 10": lambda tmp: DecodingConfig(alpha=11),
        "no such file": lambda tmp: refusal_of("train", tmp / "missing.yaml"),
    })

`D2E_UPDATE=1 python -m pytest FILE` writes the snapshot, whose diff is read like any other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from d2e_sft.util.errors import UserError

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


def messages_of(module: str, calls: Mapping[str, Call]) -> Callable[..., None]:
    """A test for each call: its message is that in `<module>.yaml`. A call takes the test's own folder."""
    snapshot = Path(module).with_suffix(".yaml")
    expected = yaml.safe_load(snapshot.read_text(encoding="utf-8")) if snapshot.is_file() else {}

    @pytest.mark.parametrize("name", calls)
    def test(name: str, tmp_path: Path) -> None:
        found = message_of(calls[name], tmp_path)
        if os.environ.get("D2E_UPDATE"):
            expected[name] = found
            kept = {key: expected[key] for key in calls if key in expected}
            text = yaml.dump(kept, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=110)
            snapshot.write_text(text, encoding="utf-8")
        assert found == expected.get(name)

    return test


def assert_messages(module: str, messages: Mapping[str, str]) -> None:
    """All messages of one test, which needs fixtures, are those in `<module>.yaml`."""
    snapshot = Path(module).with_suffix(".yaml")
    if os.environ.get("D2E_UPDATE"):
        text = yaml.safe_dump(dict(messages), allow_unicode=True, sort_keys=False, width=110)
        snapshot.write_text(text, encoding="utf-8")
    assert messages == yaml.safe_load(snapshot.read_text(encoding="utf-8"))
