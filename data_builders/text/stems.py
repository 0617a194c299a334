"""The words of a text, and its content words as stems, for comparing texts by the words they share."""

from __future__ import annotations

from functools import lru_cache

from d2e_sft.util.answers import words
from data_builders.text.word_lists import word_text, words_of

# Form of an irregular verb → its first form.
_VERBS = word_text("irregular_verbs").split(",")
_IRREGULAR = {form: forms.split()[0] for forms in _VERBS for form in forms.split()[1:]}
STOP_WORDS = words_of("stop_words", "question_stems")


def stems(text: str) -> set[str]:
    """Return the stems of a text's content words."""
    found = {stem(word) for word in words(text) if word not in STOP_WORDS}
    return {one for one in found if one not in STOP_WORDS}


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """Return a lower-case word without its commonest English endings: `stopped` gives `stop`, `won` `win`."""
    word = _IRREGULAR.get(word, word)
    for ending in ("ing", "ed", "es", "s", "ly"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) >= 3 and not (ending == "s" and rest.endswith(("s", "u", "i"))):
            word = rest
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiouls":
        word = word[:-1]
    if len(word) > 2 and word.endswith("y"):
        word = word[:-1] + "i"
    bare = word.rstrip("e")
    return bare if len(bare) > 1 else word
