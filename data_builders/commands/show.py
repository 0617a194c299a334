"""`d2e data show`: show rows with their three views, in the terminal or as a page."""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import click

from d2e_sft.config.objectives import VIEWS
from d2e_sft.data.chat_template import EndOfTurn
from d2e_sft.data.prompts import PromptSet, load_prompt_set
from d2e_sft.data.sample import EventSample, Split, pick_samples
from d2e_sft.util.answers import WORD, words
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_whole
from d2e_sft.util.html.pages import render_page
from d2e_sft.util.terminal import warn
from data_builders.build.options import BuildOptions
from data_builders.build.reading import read_datasets
from data_builders.commands.shared import FILE, PATH
from data_builders.dataset import SampleSet, read_set
from data_builders.own_data.source import is_own
from data_builders.raw.source import SPLITS
from data_builders.refine.likelihood import refine_by
from data_builders.refine.relevance import labelled_datasets
from data_builders.refine.rules import RefinerOptions
from data_builders.sources import SOURCES

_WIDTH = 100
_INDENT = 10


@click.command()
@click.argument("data", metavar="DATASET")
@click.option("--rows", type=click.IntRange(1), default=10, show_default=True, help="Number of rows, drawn at random.")
@click.option("--id", "ids", metavar="ID", multiple=True, help="Show this row instead; may be repeated.")
@click.option(
    "--split", "splits", multiple=True, type=click.Choice(SPLITS), help="Only rows of this split; may be repeated."
)
@click.option("--raw", type=PATH, envvar="D2E_RAW", show_envvar=True, help="Folder with the raw files.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the draw.")
@click.option("--html", metavar="FILE", type=FILE, help="Write a page instead of printing.")
@click.option("--prompt-set", default="default", show_default=True, help="Wording of the prompts.")
@click.option(
    "--labels", metavar="MODEL", help="Print the tokens that this model gets, and which of them have a loss."
)
@click.option(
    "--end-of-turn",
    "ends",
    type=click.Choice(["token", "template"]),
    help="For --labels: what ends a turn, as data.end_of_turn.  [default: token]",
)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def show(
    *,
    data: str,
    rows: int,
    ids: tuple[str, ...],
    splits: tuple[Split, ...],
    raw: Path | None,
    seed: int,
    html: Path | None,
    prompt_set: str,
    labels: str | None,
    ends: EndOfTurn | None,
    settings: tuple[str, ...],
) -> None:
    """Print rows of a dataset with their three views.

    DATASET is a name of `d2e data list` or a .yaml file that describes own data. It is read and refined as by `d2e
    data build`, with KEY=VALUE as options. DATASET can also be a .parquet or .jsonl file of EventSample rows, or a
    build.

    \b
    Examples:
      d2e data show tracie --rows 10 --raw raw
      d2e data show data/piper-10k --rows 20 --html rows.html
      d2e data show tracie --id tracie-train-145 refine.keep_events=false
      d2e data show data/mine --rows 1 --labels Qwen/Qwen3-0.6B
    """
    if html and labels:
        raise UserError(f"--labels {labels}: is printed; expected no --html", "drop one of them")
    if ends and not labels:
        raise UserError(
            f"--end-of-turn {ends} without --labels; no tokens are shown", "add --labels MODEL, or drop it"
        )
    data_set, refiner = _read(data, splits or SPLITS, raw, seed, settings)
    shown = pick_samples(data_set.samples, ids, rows, seed, option="--id")
    if refiner:
        shown, _ = refine_by(shown, refiner, labelled_datasets(data_set.samples))
    if html:
        write_rows_page(
            f"{len(shown):,} of {len(data_set.samples):,} rows: {data_set.name}",
            shown,
            load_prompt_set(prompt_set),
            html,
        )
        click.echo(f"wrote {html}")
        return
    lines_of = _lines if labels is None else _labels(labels, load_prompt_set(prompt_set), ends or "token")
    for sample in shown:
        click.echo("\n".join(lines_of(sample)) + "\n")
    click.echo(f"{len(shown):,} of {len(data_set.samples):,} rows of {data_set.name}")


def _read(
    data: str, splits: tuple[Split, ...], raw: Path | None, seed: int, settings: tuple[str, ...]
) -> tuple[SampleSet, RefinerOptions | None]:
    """The rows, and what refines them; None for rows of a build."""
    if data not in SOURCES and not is_own(data) and Path(data).exists():
        if settings:
            raise UserError(f"{settings[0]}: {data} is built already; expected no KEY=VALUE")
        data_set = read_set(Path(data), splits)
        return SampleSet(data_set.name, [sample for sample in data_set.samples if sample.split in splits]), None
    reading = read_datasets(BuildOptions([data], raw=raw, seed=seed, settings=settings), splits)
    for error in reading.failures.values():
        warn(str(error))
    splits_read = (rows for dataset in reading.datasets.values() for rows in dataset.splits.values())
    samples = [sample for rows in splits_read for sample in rows.rows]
    if not samples:
        raise UserError(f"{data}: no row in {', '.join(splits)}; expected a split that the dataset has")
    return SampleSet(Path(data).stem, samples), reading.settings.refiner


def _lines(sample: EventSample) -> Iterator[str]:
    facts = [sample.id, sample.split, sample.relation, sample.format, *([sample.subset] if sample.subset else [])]
    yield click.style(" · ".join(facts), bold=True)
    yield from _field("question", sample.question)
    for place, option in enumerate(sample.options):
        yield from _field("" if place else "options", f"- {option}")
    yield from _field("answer", " | ".join(sample.answers))
    if sample.habit:
        yield from _field("habit", " | ".join(sample.habit))
    if sample.rejected:
        yield from _field("rejected", " | ".join(sample.rejected))
    yield from _field("original", sample.context or "(no context)")
    yield from _field("imagined", "(no context)")
    kept, refined = share_kept(sample), sample.refined_context
    if refined is None:
        yield from _field("refined", "(none)")
    elif refined == sample.context:
        yield from _field("refined", "(the whole context)")
    else:
        yield from _field("refined", refined + (f"\n({kept:.0%} of the words)" if kept is not None else ""))


def _labels(model: str, wording: PromptSet, ends: EndOfTurn) -> Callable[[EventSample], Iterator[str]]:
    """Return what describes the tokens of a row as the model's tokenizer and chat template make them."""
    from d2e_sft.data.views import ViewEncoder
    from d2e_sft.model.loading import load_tokenizer

    tokenizer, encoder_decoder = load_tokenizer(model)

    def lines(sample: EventSample) -> Iterator[str]:
        views = [view for view in VIEWS if view != "refined" or sample.refined_context is not None]
        encoder = ViewEncoder(tokenizer, wording, views, encoder_decoder=encoder_decoder, ends=ends)
        encoded = encoder.encode(sample)
        yield click.style(f"{sample.id} · {sample.split}", bold=True)
        for view, prompt in encoded.prompts.items():
            yield from _field(view, f"{len(prompt)} tokens without a loss: {tokenizer.decode(prompt)!r}")
        trained = encoded.trained or [True] * len(encoded.answer)
        for has_loss, run in groupby(zip(trained, encoded.answer, strict=True), key=itemgetter(0)):
            tokens = [token for _, token in run]
            texts = " ".join(repr(tokenizer.decode([token])) for token in tokens)
            yield from _field("loss" if has_loss else "no loss", f"{len(tokens)} tokens: {texts}")

    return lines


def _field(name: str, text: str) -> Iterator[str]:
    """Yield the lines of a name and its wrapped text; line breaks of the text are kept."""
    lines = [part for line in text.split("\n") for part in textwrap.wrap(line, _WIDTH - _INDENT) or [""]]
    for number, line in enumerate(lines):
        yield f"{'' if number else name:<{_INDENT}}{line}".rstrip()


def marked(sample: EventSample) -> list[tuple[str, bool]]:
    """Return the original context in pieces, each with whether the refined context has it, too.

    All pieces are kept if the refined context has text of its own, as some sources write it.
    """
    if sample.refined_context is None:
        return [(sample.context, True)]
    spoken, refined_words = list(WORD.finditer(sample.context)), words(sample.refined_context)
    context_words = [word.group().casefold() for word in spoken]
    blocks = SequenceMatcher(None, context_words, refined_words, autojunk=False).get_matching_blocks()
    places = {place for block in blocks for place in range(block.a, block.a + block.size)}
    if len(places) < len(refined_words):
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
