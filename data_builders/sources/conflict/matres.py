"""MATRES (Ning et al., ACL 2018): does one event of a news text start before or after another?

The rows are those of the knowledge-conflict study of Fang et al. (Findings of NAACL 2024). The event that the text
names first is always the first of a pair, so without reading one would answer "before": the narrative habit. Rows with
that answer are tagged `aligned`, all others `conflict`, including pairs that annotators could not order.

The published texts do not mark the events, and in a third of the rows a word occurs more than once. The publishers'
features have the places of both events in tokens of a model, which as shares of the text tell the occurrence.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal, get_args

from pydantic import Field

from d2e_sft.data.sample import Split, Subset
from d2e_sft.util.errors import UserError
from data_builders.raw.source import SPLITS, Job, Samples, SourceOptions, SplitRows, SplitSamples, source
from data_builders.sources.reading import apply_filters, keep_if, to_samples
from data_builders.sources.rows import BadRowError, Draft, Form, RawInput, RawRow, Row, Text, derived_table

# A prior other than the order of the text: the tenses of the two words, or RoBERTa-large's answer without the text.
Prior = Literal["tense", "roberta_erp"]
PRIORS: tuple[Prior, ...] = get_args(Prior)

OPTIONS = ("before", "after", "at the same time", "unknown")
_EXCHANGED = {"before": "after", "after": "before"}
_HABIT = "before"
_LONGEST_EVENT = 1_000  # characters; it is a word or a few


class MatresOptions(SourceOptions):
    """Options of MATRES.

    Attributes:
        bias: Conflict rows contradict the order of the text, or a prior, which is published for dev only.
        vague: Keep or drop pairs whose order annotators could not tell; their answer is "unknown".
        exchanged_share: Share of the training pairs, drawn with the seed, that are asked the other way round.
    """

    bias: Literal["narrative"] | Prior = "narrative"
    vague: Literal["keep", "drop"] = "keep"
    exchanged_share: float = Field(0, ge=0, le=1)


class _Row(RawRow):
    text: Text
    e1: Text
    e2: Text
    labels: list[Annotated[int, Field(ge=0, le=3)]] = Field(min_length=1, max_length=1)


class _Features(RawRow):
    input_ids: list[int] = Field(min_length=1)
    event_pos: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(min_length=2, max_length=2)


_Span = tuple[int, int]  # first character, and the one after the last
# The places of a row's events in characters, and 0; or in tokens, and the number of tokens of the text.
_Places = tuple[int, int, int]

ORDERED = keep_if(
    "pairs with an order",
    "annotators could not tell the order of the others (vague=drop)",
    lambda row: "unknown" not in row.answers,
)


def read(job: Job) -> SplitSamples:
    """Read train (6,336 rows), dev (6,404) and test (818: 412 aligned and 406 conflict)."""
    return {split: _read_split(job, split) for split in SPLITS if job.wants(split)}


def _read_split(job: Job, split: Split) -> Samples:
    options: MatresOptions = job.options
    raw, places = job.input(split), _places(job, split)
    published = list(raw.json_items())
    conflicts = {prior: _conflicts(job, prior, published) for prior in PRIORS} if split == "dev" else {}
    draw = job.random("exchanged")
    exchanged = {row.number for row in published if split == "train" and draw.random() < options.exchanged_share}

    def draft(row: _Row) -> Draft:
        if row.number not in places:
            raise BadRowError(f"no place of its events in the file of the {split} positions, item {row.number:,}")
        draft = _draft(row, places[row.number], exchanged=row.number in exchanged)
        return _tag(draft, options.bias, conflicts)

    rows = SplitRows(Form(_Row, draft, lambda _: published).read(raw))
    return to_samples(raw, apply_filters(rows, [ORDERED] if options.vague == "drop" else [], split))


def _places(job: Job, split: Split) -> dict[int, _Places]:
    """The places of the events by number of the row, from 1."""
    raw = job.input(f"{split}_positions", split)
    if job.file(f"{split}_positions").substitute:
        offsets = derived_table(raw, "valid" if split == "dev" else split)
        return {number: (*pair, 0) for number, pair in enumerate(offsets, start=1)}
    rows = Form(_Features, rows=RawInput.json_items).read(raw)
    return {row.number: (row.event_pos[0], row.event_pos[1], len(row.input_ids)) for row in rows}


def _draft(row: _Row, places: _Places, *, exchanged: bool) -> Draft:
    answer, text = OPTIONS[row.labels[0]], row.text
    scale = len(text) / places[2] if places[2] else 1
    spans = find_events(text, (row.e1, row.e2), (places[0] * scale, places[1] * scale))
    if spans is None:
        raise BadRowError.at("e1", row.e1, f"a word of the text before {row.e2!r}, which is e2")
    (a, b), (c, d) = spans
    first, second = text[a:b], text[c:d]
    marked = f"{text[:a]}<e1>{first}</e1>{text[b:c]}<e2>{second}</e2>{text[d:]}".removeprefix("[CLS]")
    if exchanged:
        marked = re.sub(r"(</?e)([12])>", lambda tag: f"{tag[1]}{3 - int(tag[2])}>", marked)
        answer, first, second = _EXCHANGED.get(answer, answer), second, first
    sentences = [sentence.strip() for sentence in marked.split("[SEP]") if sentence.strip()]
    return row.draft(
        relation="temporal",
        context=" ".join(sentences),
        refined_context=" ".join(sentence for sentence in sentences if "<e1>" in sentence or "<e2>" in sentence),
        question=f"Does the event <e1>{first}</e1> start before or after the event <e2>{second}</e2>?",
        options=OPTIONS,
        answers=[answer],
        meta={"exchanged": True} if exchanged else {},
    )


def find_events(text: str, events: tuple[str, str], expected: tuple[float, float]) -> tuple[_Span, _Span] | None:
    """Return the events' spans: the occurrences nearest to `expected` (characters), the first before the second.

    An event may be the beginning of a word; its span is the whole word. None if no occurrences are in this order.
    """
    firsts, seconds = (_occurrences(text, event) for event in events)
    nearest = list(seconds)  # for each place, the nearest to the expected one among it and all later places
    for index in reversed(range(len(seconds) - 1)):
        if abs(nearest[index + 1] - expected[1]) < abs(seconds[index] - expected[1]):
            nearest[index] = nearest[index + 1]
    # Of two equally near, the first counts. A long text has too many pairs to look at each.
    pairs = [(start, nearest[behind]) for start in firsts if (behind := bisect_right(seconds, start)) < len(seconds)]
    if not pairs:
        return None
    best = min(pairs, key=lambda pair: abs(pair[0] - expected[0]) + abs(pair[1] - expected[1]))
    first, second = ((start, _word_end(text, start + len(event))) for start, event in zip(best, events, strict=True))
    return first, second


def _occurrences(text: str, event: str) -> list[int]:
    """The places of the event at the start of a word, otherwise inside one."""
    if len(event) > _LONGEST_EVENT:
        return []
    for pattern in (rf"(?<![^\W\d_]){re.escape(event)}", re.escape(event)):
        if starts := [match.start() for match in re.finditer(pattern, text)]:
            return starts
    return []


def _word_end(text: str, end: int) -> int:
    while text[end : end + 1].isalpha():
        end += 1
    return end


def _tag(draft: Draft, bias: Literal["narrative"] | Prior, conflicts: Mapping[Prior, set[int]]) -> Draft:
    """The row with its subset; `conflicts` has the rows that conflict with each prior, and is empty if unknown."""
    follows_text = list(draft.answers) == [_HABIT]
    against = [prior for prior, numbers in conflicts.items() if draft.number in numbers]
    if conflicts:
        meta = {**draft.meta, "conflicts_with": [*([] if follows_text else ["narrative"]), *against]}
        draft = replace(draft, meta=meta)
    if bias == "narrative":
        return replace(draft, subset="aligned" if follows_text else "conflict", habit=[_HABIT])
    # With tenses, a row without a conflict may also be one whose tenses have no prior.
    default: Subset | None = "aligned" if bias == "roberta_erp" and conflicts else None
    return replace(draft, subset="conflict" if bias in against else default)


def _conflicts(job: Job, prior: Prior, rows: Sequence[Row]) -> set[int]:
    """The numbers of the rows that conflict with a prior; these are published as a file of their own."""
    raw = job.input(prior, "dev")
    if job.file(prior).substitute:
        return {place + 1 for place in derived_table(raw, "conflict_rows", prior)}
    following, names, numbers = iter(rows), ("text", "e1", "e2", "labels"), set()
    for row in raw.json_items():  # in the order of the rows
        match = next((later for later in following if all(later.get(name) == row.get(name) for name in names)), None)
        if match is None:
            raise UserError(
                f"{raw.path}, item {row.number}: equals none of the following rows of {job.files['dev'].path}",
                remedy="take both files from the same release",
            )
        numbers.add(match.number)
    return numbers


MATRES = source(__file__, read, options=MatresOptions)
