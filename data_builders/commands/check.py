"""`d2e data check`: find benchmark rows in a training set."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import click

from d2e_sft.config.options import Number
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_json
from d2e_sft.util.terminal import say
from data_builders.commands.shared import PATH, print_table
from data_builders.dataset import read_set, repeated_rows
from data_builders.quality.overlap import KEYS, THRESHOLD, Match, Overlap, find_overlap

_SHOWN = 10


@click.command()
@click.argument("train", type=PATH)
@click.option(
    "--against",
    metavar="TEST",
    multiple=True,
    type=PATH,
    help="Benchmark set; may be repeated. Default: the test split of the folder TRAIN.",
)
@click.option(
    "--threshold",
    type=Number(0.3, 1),
    default=THRESHOLD,
    show_default=True,
    help="Lowest Jaccard similarity of the word n-grams of near-duplicates.",
)
@click.option("--fail-on-near", is_flag=True, help="Fail on near-duplicates too.")
@click.option("--json", "json_file", type=PATH, help="Write all counts and pairs to FILE.")
def check(
    train: Path, against: tuple[Path, ...], threshold: float, fail_on_near: bool, json_file: Path | None
) -> None:
    """Look for benchmark rows in TRAIN, by raw row, context and question; fail if one is found.

    TRAIN and TEST are .parquet or .jsonl files of EventSample rows, or folders of `d2e data build`
    (train.parquet and test.parquet are read). Texts of fewer than 5 words, and questions about three or more contexts,
    are equal by accident and counted as set aside. So are questions that two splits of one build ask about different
    contexts; with --against, such a question counts. Training rows that repeat another one are counted.

    Example: d2e data check data/piper-10k --against data/piper --against data/ood
    """
    if not against and not train.is_dir():
        raise UserError(
            f"{train}: nothing to compare with; expected a benchmark set",
            remedy="build one (d2e data build --suite piper --out data/piper) and pass --against data/piper",
        )
    samples = read_set(train, ["train"]).samples
    overlap = find_overlap(samples, [read_set(path, ["test"]) for path in against or [train]], threshold)
    if not against:
        overlap.set_questions_aside(samples)
    repeats = repeated_rows(samples)
    if json_file:
        write_json(json_file, {**overlap.to_json(), "repeated_training_rows": repeats})
    header = ("train", "test set", "test", "key", "exact", "of the test", "near", "set aside")
    print_table(header, overlap.cells)
    if overlap.near:
        click.echo("most similar near-duplicates:")
        click.echo("\n".join([*_lines(overlap.near), ""]))
    click.echo(
        f"{overlap.train_rows:,} training rows: {overlap.rows(overlap.exact):,} overlap exactly, "
        f"{overlap.rows(overlap.near):,} have a near-duplicate (similarity {overlap.threshold} or more)"
    )
    if overlap.set_aside:
        say("set aside: texts of fewer than 5 words, and questions about three or more contexts; equal by accident")
    if repeats:
        pairs = ", ".join(f"{row} repeats {first}" for row, first in repeats[:3])
        more = " …" if len(repeats) > 3 else ""
        click.echo(
            f"{len(repeats):,} training rows repeat another one in context, question and answers: {pairs}{more}"
        )
    if overlap.repeated:
        click.echo(
            f"{overlap.rows(overlap.repeated):,} ask a question of the test about another context: no leak, since the "
            "answer depends on the context"
        )
    _fail(overlap, fail_on_near)


def _lines(matches: Sequence[Match]) -> list[str]:
    lines = []
    for match in matches[:_SHOWN]:
        similarity = f" {match.similarity:.2f}" if match.similarity < 1 else ""
        text = textwrap.shorten(match.text, 60, placeholder=" …")
        lines.append(f"  {match.key}{similarity}: {match.train_id} = {match.test_id}: {text}")
    if len(matches) > _SHOWN:
        lines.append(f"  and {len(matches) - _SHOWN:,} more (--json FILE lists all)")
    return lines


def _fail(overlap: Overlap, fail_on_near: bool) -> None:
    if overlap.exact:
        pairs = [line for key in KEYS for line in _lines([match for match in overlap.exact if match.key == key])]
        count = f"{overlap.rows(overlap.exact):,} of {overlap.train_rows:,} training rows"
        raise UserError(
            "\n".join([f"{count} overlap with the benchmark; expected none:", *pairs]),
            remedy="remove these rows by their ids (--json FILE lists all), or build the training set again with "
            "--against TEST, which also leaves out rows with a near-duplicate or with the same question",
        )
    if fail_on_near and overlap.near:
        raise UserError(
            f"{overlap.rows(overlap.near):,} of {overlap.train_rows:,} training rows have a near-duplicate in the "
            "benchmark (see above); expected none, as --fail-on-near is given",
            "remove them by their ids (--json FILE lists all), or raise --threshold",
        )
