"""`d2e data wiqa-questions`: questions from WIQA's influence graphs."""

from __future__ import annotations

from pathlib import Path

import click

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_whole
from d2e_sft.util.table import Table


@click.command("wiqa-questions")
@click.option(
    "--graphs", type=click.Path(path_type=Path), required=True, help="Influence graphs: wiqa_influence_graphs.jsonl."
)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="File to write the questions to, one per line."
)
@click.option(
    "--no-effect",
    type=click.IntRange(min=0),
    default=6,
    show_default=True,
    help="Questions without effect for each graph, on changes of other paragraphs.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the draws.")
@click.option(
    "--alignments",
    type=click.Path(path_type=Path),
    help="JSON of the sentences of X and Y by graph; adds explanations.",
)
@click.option(
    "--balanced", "balance", is_flag=True, help="Draw as many of each type and of each answer, as the paper does."
)
def wiqa_questions(graphs: Path, out: Path, no_effect: int, seed: int, alignments: Path | None, balance: bool) -> None:
    """Write the questions and answers of all paths with 1 to 3 hops through influence graphs.

    --balanced keeps a random part, so that types and answers are equally frequent.

    Example: d2e data wiqa-questions --graphs wiqa_influence_graphs.jsonl --out data/raw/wiqa/all.jsonl
    """
    from eval.systems.files import json_lines
    from eval.systems.wiqa.graphs import balanced, grouped, questions_of, read_alignments, read_graphs
    from eval.systems.wiqa.questions import LABELS, TYPES

    found = read_graphs(graphs)
    aligned = read_alignments(alignments, found) if alignments is not None else None
    rows = list(questions_of(found, no_effect=no_effect, seed=seed, alignments=aligned))
    if not rows:
        raise UserError(
            f"{graphs}: its {len(found)} graphs have no edge between nodes with texts; nothing was written"
        )
    if balance and not (rows := balanced(rows, seed)):
        raise UserError(
            f"{graphs}: --balanced: some type or answer has no question, so nothing can be balanced",
            "drop it, or raise --no-effect",
        )
    write_whole(out, json_lines(rows))
    groups, explained = grouped(rows), sum("explanation" in row for row in rows)
    counts = [[name, *(len(groups.get((kind, label), ())) for label in LABELS)] for kind, name in TYPES.items()]
    click.echo(Table.of(["type", *LABELS], [[name, *map(str, own)] for name, *own in counts]).terminal() + "\n")
    click.echo(f"{len(rows):,} questions of {len(found):,} graphs ({explained:,} explained): {out}")
