"""Options and answers of a row of own data: which option a text, letter or number means, which label a value."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

from d2e_sft.data.chat_rows import read_turns
from d2e_sft.data.sample import NLI_LABELS
from d2e_sft.util.errors import did_you_mean
from data_builders.own_data.spec import OwnSpec
from data_builders.raw.row import BadRowError, Row, clean, shown


def as_text(name: str, value: object) -> str:
    """Return a text or number as text, booleans as in JSON, and "" for null; BadRowError for anything else."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise BadRowError.at(name, value, "text or a number")
    return clean(str(value))


def parsed(value: object) -> object:
    """Return the list that a CSV cell has as JSON, or with one turn (LLaMA-Factory's `chosen`); else the value."""
    if isinstance(value, dict):
        return [value]
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def last_turn(name: str, value: object) -> object:
    """Return the text of the last of several turns; other values as they are. BadRowError if it is no assistant's."""
    turns = parsed(value)
    if not (isinstance(turns, list) and turns and isinstance(turns[0], dict)):
        return value
    try:
        last = read_turns(turns, name)[-1]
    except ValueError as error:
        raise BadRowError(str(error)) from None
    if last.role != "assistant":
        raise BadRowError.at(name, last.role, "turns that end with the assistant's")
    return last.content


def read_choice(row: Row, name: str, known: Sequence[str]) -> str:
    """Return the known word in a column; "" without one; BadRowError for another word."""
    text = as_text(name, row.fields.get(name))
    if text in known or not text:
        return text
    raise BadRowError.at(name, row.get(name), f"one of {', '.join(known)}, or nothing.{did_you_mean(text, known)}")


def read_options(spec: OwnSpec, spec_name: str, row: Mapping[str, Any]) -> list[str]:
    """Return the options of a row; with one column per option, an option may be empty.

    BadRowError for fewer than two options or two equal ones; `spec_name` is the description's file, for messages.
    """
    names = spec.columns.options
    if spec.format not in ("scq", "mcq"):
        return []
    if len(names) > 1:
        place, options, how = ", ".join(names), [as_text(name, row[name]) for name in names], ""
    else:
        place, options = names[0], _several(spec, names[0], row[names[0]])
        how = f", as a list or with {_separator(spec)!r} between them (`separator:` in {spec_name} sets another)"
    given = [option for option in options if option]
    if len(given) < 2:
        raise BadRowError.at(place, given, f"two options or more{how}")
    if len(set(given)) < len(given):
        twice = next(option for option in given if given.count(option) > 1)
        raise BadRowError(f"{place}: {twice!r} is there twice; expected different options, got {shown(given)}")
    return options


def read_choices(spec: OwnSpec, row: Mapping[str, Any]) -> list[str]:
    """Return the wrong answers of a row that are not asked as options; cells may be empty."""
    found = [text for name in spec.columns.choices or () for text in _several(spec, name, row[name])]
    return list(dict.fromkeys(filter(None, found)))


def read_answers(spec: OwnSpec, spec_name: str, name: str, value: object, options: Sequence[str]) -> list[str]:
    """Return a column's answers: a label, options, or accepted answers; BadRowError for an empty or unknown one."""
    if spec.format == "nli":
        text = as_text(name, value)
        if (label := spec.labels.get(text, text)) in NLI_LABELS:
            return [label]
        known = ", ".join(dict.fromkeys([*NLI_LABELS, *spec.labels]))
        example = f"`labels: {{{text or 'entailment'}: positive}}`"
        raise BadRowError.at(name, value, f"one of {known}. {spec_name} can map other labels, as {example}")
    # A `|` in a free answer is more likely part of it than a separator, unless the description names one.
    is_free = spec.format in ("qa", "chat") and spec.separator is None and not isinstance(value, list)
    texts = [as_text(name, value)] if spec.format == "scq" or is_free else _several(spec, name, value)
    if not texts or not all(texts):
        raise BadRowError.at(name, value, "text that is not empty")
    chosen = [_option(spec, spec_name, name, text, options) for text in texts] if options else texts
    return list(dict.fromkeys(chosen))


def _separator(spec: OwnSpec) -> str:
    return spec.separator or "|"


def _several(spec: OwnSpec, name: str, value: object) -> list[str]:
    if isinstance(value, list):
        return [as_text(f"{name}.{number}", item) for number, item in enumerate(value)]
    return [clean(part) for part in as_text(name, value).split(_separator(spec))]


def _option(spec: OwnSpec, spec_name: str, name: str, text: str, options: Sequence[str]) -> str:
    """Return the option that the text names, by itself, its letter or its number."""
    if spec.answer_as == "text":
        if text in options:
            return text
        hint = did_you_mean(text, options)
        if text.isdecimal() or (len(text) == 1 and text in string.ascii_letters):
            likely = "from-0 (or from-1)" if text.isdecimal() else "letter"
            hint += f" If it names the option's place, add `answer_as: {likely}` to {spec_name}"
        raise BadRowError.at(name, text, f"one of the options {shown([o for o in options if o])}.{hint}")
    if spec.answer_as == "letter":
        names, text = list(string.ascii_uppercase[: len(options)]), text.strip("().").upper()
    else:
        first = int(spec.answer_as == "from-1")
        names, text = [str(first + place) for place in range(len(options))], text.lstrip("0") or "0"
    if text not in names or not options[names.index(text)]:
        raise BadRowError.at(name, text, f"one of {', '.join(names)} for {shown(list(options))}")
    return options[names.index(text)]
