"""Show rows of a data set with their three views, as a page or in a terminal."""

from __future__ import annotations

import random
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path

from d2e_sft.config.objectives import VIEWS
from d2e_sft.data.prompts import PromptSet
from d2e_sft.data.sample import EventSample
from d2e_sft.util.answers import WORD, words
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import write_whole
from d2e_sft.util.html.pages import render_page


def draw(samples: Sequence[EventSample], rows: int, seed: int) -> list[EventSample]:
    """Return at most `rows` rows, drawn with the seed, in the data's order."""
    return [samples[i] for i in sorted(random.Random(seed).sample(range(len(samples)), min(rows, len(samples))))]


def pick(samples: Sequence[EventSample], ids: Sequence[str]) -> list[EventSample]:
    """Return the rows with these ids, in the order of the ids; UserError for an unknown id."""
    by_id = {sample.id: sample for sample in samples}
    for name in ids:
        if name not in by_id:
            raise UserError(f"--id: got {name!r}; none of {len(by_id):,} rows has it.{did_you_mean(name, by_id)}")
    return [by_id[name] for name in ids]


def marked(sample: EventSample) -> list[tuple[str, bool]]:
    """Return the original context in pieces, each with whether the refined context has it, too.

    All pieces are kept if the refined context has text of its own, as some sources write it.
    """
    if sample.refined_context is None:
        return [(sample.context, True)]
    spoken, wanted = list(WORD.finditer(sample.context)), words(sample.refined_context)
    said = [word.group().casefold() for word in spoken]
    blocks = SequenceMatcher(None, said, wanted, autojunk=False).get_matching_blocks()
    places = {place for block in blocks for place in range(block.a, block.a + block.size)}
    if len(places) < len(wanted):
        return [(sample.context, True)]
    ends = [word.start() for word in spoken[1:]] + [len(sample.context)]
    pieces: list[tuple[str, bool]] = [(sample.context[: spoken[0].start()], True)] if spoken else []
    for kept, run in groupby(range(len(spoken)), key=places.__contains__):
        numbers = list(run)
        text = sample.context[spoken[numbers[0]].start() : ends[numbers[-1]]]
        pieces += [(text.rstrip(), kept), (text[len(text.rstrip()) :], True)]
    return [piece for piece in pieces if piece[0]]


def share_kept(sample: EventSample) -> float | None:
    """Return the words of the refined context divided by those of the context; None without either."""
    words = len(sample.context.split())
    return None if sample.refined_context is None or not words else len(sample.refined_context.split()) / words


def write_rows_page(title: str, samples: Sequence[EventSample], wording: PromptSet, out: Path) -> None:
    """Write a self-contained page: each row's contexts and prompts; UserError if the prompt set lacks its format."""
    shown = []
    for sample in samples:
        refined, pieces = sample.refined_context, marked(sample)
        is_apart = refined != sample.context and all(kept for _, kept in pieces)  # its text is not the context's
        views = [view for view in VIEWS if view != "refined" or refined is not None]
        shown.append(
            {
                "sample": sample,
                "pieces": pieces,
                "kept": share_kept(sample),
                "apart": refined if is_apart else None,
                "prompts": [(view, wording.messages(sample, view)[-1]["content"]) for view in views],
                "response": wording.response(sample),
            }
        )
    write_whole(out, render_page(Path(__file__).with_name("rows_page.html"), title=title, rows=shown))
