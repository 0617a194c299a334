"""The content words of a text as stems, for comparing texts by the words they share."""

from __future__ import annotations

import re
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+")
_STOP_WORDS_TEXT = """
a about after again all also am an and any are as at be because been before being but by can could did do does
doing during each for from few fewer had has have having he her here hers him his how i if in into is it its just less
me more most my no nor not now of off on once only or other our out over own s same she should so some such t than that
the their them then there these they this those through to too under until up very was we were what when where
which while who whom why will with would you your ll ve re d m
"""
# The words of the questions themselves, not of what they ask about; stems.
_QUESTION_WORDS_TEXT = "start end begin happen cause effect event context desire time subevent prerequisite"
# The first form of each stands for the others, which no ending tells.
_IRREGULAR_TEXT = """
arise arose arisen, bear bore borne, beat beaten, become became, bite bit bitten, blow blew blown, break broke
broken, bring brought, build built, burn burnt, buy bought, catch caught, choose chose chosen, come came, creep
crept, deal dealt, dig dug, draw drew drawn, dream dreamt, drink drank drunk, drive drove driven, eat ate eaten,
fall fell fallen, feed fed, feel felt, fight fought, find found, flee fled, fly flew flown, forget forgot
forgotten, forgive forgave forgiven, freeze froze frozen, get got gotten, give gave given, go went gone goes, grow
grew grown, hang hung, hear heard, hide hid hidden, hold held, keep kept, kneel knelt, know knew known, lay laid,
lead led, leave left, lend lent, light lit, lose lost, make made making, mean meant, meet met, pay paid, ride rode
ridden, ring rang rung, rise rose risen, run ran running, say said, see saw seen, seek sought, sell sold, send
sent, shake shook shaken, shine shone, shoot shot, show shown, shrink shrank shrunk, sing sang sung, sink sank
sunk, sit sat, sleep slept, slide slid, speak spoke spoken, spend spent, stand stood, steal stole stolen, stick
stuck, strike struck, swear swore sworn, sweep swept, swim swam swum, swing swung, take took taken, teach taught,
tear tore torn, tell told, think thought, throw threw thrown, understand understood, wake woke woken, wear wore
worn, weep wept, win won, withdraw withdrew withdrawn, write wrote written
"""
_IRREGULAR = {form: forms.split()[0] for forms in _IRREGULAR_TEXT.split(",") for form in forms.split()[1:]}
STOP_WORDS = frozenset(f"{_STOP_WORDS_TEXT} {_QUESTION_WORDS_TEXT}".split())


def words(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return _WORD.findall(text.casefold())


def stems(text: str) -> set[str]:
    """The stems of a text's content words."""
    found = {stem(word) for word in words(text) if word not in STOP_WORDS}
    return {one for one in found if one not in STOP_WORDS}


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """A lower-case word without its commonest English endings: `stopped` and `stops` give `stop`, `won` `win`."""
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
