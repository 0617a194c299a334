"""What a question asks for, SQuAD's answer metrics of normalised text, and texts that look alike."""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache

WORD = re.compile(r"[^\W_]+")
_ASKING = "who whom whose where when which what how why"
_VERBS = "is are was were be been do does did has have had will would can could shall should may might must"
QUESTION_WORDS = frozenset(_ASKING.split())
CLAUSE_VERBS = frozenset(_VERBS.split())  # one of these makes a phrase a clause
_MAY = re.compile(r"\bMay\b")  # the month
_COUNTED = ("many", "much", "long", "old", "far")
_PASTS = ("led", "made", "kept", "gave", "took", "came", "drove", "brought")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_APOSTROPHES = str.maketrans("’‘ʼ", "'''")
_PARTING = re.compile(r"'(?!t\b)", re.IGNORECASE)  # can't is not can
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_DECIMAL_POINT = re.compile(r"(?<=\d)\.(?=\d)")
_CURRENCY = re.compile("[€£¥]")
_SIGN = re.compile(r"(?<![\w.])[-−](?=\d)")
_UNSEEN = re.compile("[\u034f\u115f\u1160\u2800\u3164\ufe00-\ufe0f\uffa0]")  # invisible, though no format characters
_TELLS = "say|tell|state|mention|contain|specify|give|know|answer|provide|include|determine"
_REFUSAL = (  # in normalised text, which has no apostrophes and articles
    rf"(?:unknown|unanswerable"
    rf"|(?:not|never|isnt) (?:be )?(?:known|given|stated|mentioned|said|specified|provided|clear)"
    rf"|(?:do|does|did) not (?:{_TELLS})|(?:dont|doesnt|didnt|cannot|cant|can not|unable to) (?:{_TELLS})"
    rf"|(?:cannot|cant|can not) be (?:known|said|told|answered|determined)"
    rf"|no (?:answer|information|mention)|(?:not enough|insufficient) (?:information|context))"
)
_WITH_REFUSAL = re.compile(rf"\b{_REFUSAL}\b")
_WHOLE_REFUSAL = re.compile(rf"(?:i |it )?{_REFUSAL}|na|unclear|not (?:applicable|available|found)")
# Thai to Burmese, Khmer, kana, Han and Hangul, whose words are not parted by blanks or have particles.
UNSPACED = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]"
_MARK = re.compile(r"’s\b|[^\w\s\x00-\x7f]")
_SIGNS = re.compile(r"[-+−]?\d(?:[\d.,:/]*\d)?|[+#%$€£<>=*/]")  # numbers as they are written, and signs with a meaning


def normalise(text: str) -> str:
    """Lower-case the text (in NFC), drop ASCII punctuation and English articles, collapse spaces, as in SQuAD 1.1."""
    plain = unicodedata.normalize("NFC", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def on_one_line(text: str) -> str:
    """Return a text of several lines with blanks for its line breaks; another one as it is."""
    return " ".join(text.split()) if len(text.splitlines()) > 1 else text


def without_apostrophes(text: str) -> str:
    """Return the text as normalised, without typographic apostrophes, too: SQuAD's script keeps them."""
    return normalise(text.translate(_APOSTROPHES))


@lru_cache(maxsize=4096)
def option_key(option: str) -> str:
    """Return normalised text that a free text and an option share if nothing stricter tells options apart.

    Decimal points count, because SQuAD's rule turns 12.5 into 125. If normalising leaves nothing (`A`, `?`), the text
    itself counts.
    """
    return normalise(_DECIMAL_POINT.sub(" point ", option)) or option.strip().casefold()


def visible_text(text: str) -> str:
    """Return the text in one Unicode form (NFKC, `-` for minus), without invisible characters and repeated spaces."""
    plain = _UNSEEN.sub("", unicodedata.normalize("NFKC", text).replace("\N{MINUS SIGN}", "-"))
    return " ".join("".join(char for char in plain if unicodedata.category(char) != "Cf").split())


def look_alikes(texts: Iterable[str], key: Callable[[str], str]) -> list[list[str]]:
    """Return the groups of different texts that have the same key, in order of appearance."""
    groups: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts):
        groups.setdefault(key(text), []).append(text)
    return [group for group in groups.values() if len(group) > 1]


def answer_key(text: str) -> str:
    """Return text that is equal for free answers that say the same: as normalised, but with numbers and signs."""
    return " ".join([without_apostrophes(text), *_signs(text)])


def is_same_answer(first: str, second: str) -> bool:
    """Whether two answers are equal up to letter case, punctuation and articles; `-5` is not `5`, nor `C++` `C#`."""
    return answer_key(first) == answer_key(second)


def parted(text: str) -> str:
    """Return the text with blanks for typographic marks and ’s, and around characters of scripts without blanks."""
    return text if text.isascii() else re.sub(UNSPACED, r" \g<0> ", _MARK.sub(_blank_for_punctuation, text))


def _blank_for_punctuation(mark: re.Match[str]) -> str:
    return " " if unicodedata.category(mark[0][0]).startswith("P") else mark[0]


def contains(text: str, words: str, *, signs: bool = False, form: Callable[[str], str] = normalise) -> bool:
    """Whether the text has the words one after another, both parted and in a form; `signs`: also numbers and signs.

    An apostrophe joins, as in SQuAD's words, or parts: `London's` has the word `London`.
    """
    pairs = zip(_joined_and_parted(words, form), _joined_and_parted(text, form), strict=True)
    has_words = any(key and f" {key} " in f" {found} " for key, found in pairs)
    return has_words and (not signs or Counter(_signs(words)) <= Counter(_signs(text)))


@lru_cache(maxsize=4096)  # a passage is asked for the answers of many rows
def _joined_and_parted(text: str, form: Callable[[str], str]) -> tuple[str, str]:
    text = unicodedata.normalize("NFC", text).translate(_APOSTROPHES)
    joined = form(parted(text))
    return joined, form(parted(_PARTING.sub("’", text))) if "'" in text else joined


def has_refusal(text: str, *, whole: bool = False) -> bool:
    """Return whether a usual phrase says that the context does not answer; `whole`: whether the text is only that."""
    plain = without_apostrophes(text)
    return bool(_WHOLE_REFUSAL.fullmatch(plain) if whole else _WITH_REFUSAL.search(plain))


def _signs(text: str) -> list[str]:
    return _SIGNS.findall(_THOUSANDS.sub("", text))


@lru_cache(maxsize=4096)
def scored_text(text: str) -> str:
    """Return the text as free answers are scored: normalised, with the decimal points and signs of numbers.

    SQuAD's script drops them, and so takes `€ 99.99` for `€ 9,999` and `-5` for `5`. Currency signs are words.
    """
    marked = _SIGN.sub("\N{MINUS SIGN}", _DECIMAL_POINT.sub("\N{MIDDLE DOT}", text))
    return normalise(_CURRENCY.sub(r" \g<0> ", marked))


def exact_match(prediction: str, golds: Iterable[str]) -> float:
    """1.0 when the prediction equals any gold answer, both as `scored_text`, else 0.0."""
    return float(scored_text(prediction) in {scored_text(gold) for gold in golds})


def token_f1(prediction: str, golds: Iterable[str]) -> float:
    """Return the best F1, in [0, 1], between the prediction's bag of tokens and that of any gold answer.

    If one side normalises to nothing, the score is 1 if both do, otherwise 0 (SQuAD 2.0's script).
    """
    tokens, best = scored_text(prediction).split(), 0.0
    for gold in (scored_text(gold).split() for gold in golds):
        shared = (Counter(tokens) & Counter(gold)).total()
        # 2PR/(P+R) with P = shared/|tokens| and R = shared/|gold|
        best = max(best, 2 * shared / (len(tokens) + len(gold)) if tokens and gold else float(tokens == gold))
    return best


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return WORD.findall(text.casefold())


def asked_for(question: str) -> str:
    """Return what a question asks for: `who`, `where`, `when`, `how long`, or the noun of `which club`.

    A question without a kind (`What will happen if …?`) is a kind of its own: only the same question with other names
    and numbers asks for the same.
    """
    tokens = words(_MAY.sub("", _asking_part(question)))
    place = next((number for number, word in enumerate(tokens) if word in QUESTION_WORDS), None)
    word = "" if place is None else tokens[place]
    if word in ("who", "whom", "whose", "where", "when"):
        return "who" if word == "whom" else word
    rest = tokens[place + 1 : place + 7] if place is not None else []
    noun = next((rest[i - 1] for i in range(1, len(rest)) if rest[i] in CLAUSE_VERBS), None)
    if word == "how" and rest and rest[0] in _COUNTED:
        return " ".join(dict.fromkeys(["how", rest[0], noun or rest[-1]]))
    if word in ("what", "which") and rest and rest[0] not in CLAUSE_VERBS:
        # Without an auxiliary, the next word may be the verb: `What caused …?`
        like_verb = rest[0].endswith(("s", "ed")) or rest[0] in _PASTS
        if noun or not like_verb:
            return noun or rest[0]
    masked = ["_" if is_capitalised(part) else part.casefold() for part in question.split()]
    return re.sub(r"\d+", "9", " ".join(masked))


def is_capitalised(part: str) -> bool:
    """Return whether the first letter or digit is a capital or a digit."""
    first = next((letter for letter in part if letter.isalnum()), "")
    return first.isupper() or first.isdigit()


def _asking_part(question: str) -> str:
    """Return the part of `If …, who would …?` after the comma: the condition may have a `who` of its own."""
    parts = question.split(",")
    asking = [part for part in parts if not QUESTION_WORDS.isdisjoint(words(part))]
    return question if words(question)[:1] != ["if"] or not asking else asking[-1]
