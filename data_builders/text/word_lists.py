"""Word lists of English (`word_lists.yaml`), and the forms of its verbs that follow rules."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from d2e_sft.util.files import load_package_yaml


@cache
def words_of(*names: str) -> frozenset[str]:
    """Return the words of one or more lists; `s_forms` and `past_forms` are made from the base forms of verbs."""
    return frozenset[str]().union(*(_LISTS[name] for name in names))


def word_text(name: str) -> str:
    """Return a list as it is written, for lists whose order or commas matter."""
    return str(_TEXTS[name])


def _words(name: str) -> frozenset[str]:
    words = _TEXTS[name].split()
    included = [_words(word[1:]) for word in words if word.startswith("+")]
    return frozenset(word for word in words if not word.startswith("+")).union(*included)


def _s_form(base: str) -> str:
    if base.endswith("y") and base[-2] not in "aeiou":
        return f"{base[:-1]}ies"
    return f"{base}es" if base.endswith(("s", "sh", "ch", "x", "z", "o")) else f"{base}s"


def _past_form(base: str) -> str:
    if base.endswith("y") and base[-2] not in "aeiou":
        return f"{base[:-1]}ied"
    if base in _LISTS["doubling"]:
        return f"{base}{base[-1]}ed"
    return f"{base}d" if base.endswith("e") else f"{base}ed"


_TEXTS = load_package_yaml(Path(__file__).with_suffix(".yaml"))
_LISTS = {name: _words(name) for name in _TEXTS}
_LISTS["s_forms"] = frozenset(map(_s_form, _LISTS["base_forms"] - {"be", "have", "do"}))
_LISTS["past_forms"] = frozenset(map(_past_form, _LISTS["base_forms"]))

# Of all verbs, for a text of any kind.
_PARTS = [forms.split() for forms in " ".join(str(_TEXTS["irregular_verbs"]).split()).split(",")]
_LISTS["plain_forms"] = _LISTS["base_forms"] | _LISTS["everyday"] | {forms[0] for forms in _PARTS}
_LISTS["third_forms"] = frozenset(map(_s_form, _LISTS["plain_forms"] - {"be", "have", "do"}))
_LISTS["irregular_forms"] = _LISTS["irregular_pasts"] | {forms[1] for forms in _PARTS}
_LISTS["verb_forms"] = frozenset[str]().union(
    *(_LISTS[name] for name in ("plain_forms", "third_forms", "irregular_forms", "past_forms"))
)
