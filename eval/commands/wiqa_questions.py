"""`d2e data wiqa-questions`: questions from WIQA's influence graphs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_whole


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
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the questions without effect."
)
@click.option(
    "--alignments",
    type=click.Path(path_type=Path),
    help="JSON of the sentences of X and Y by graph; adds explanations.",
)
def wiqa_questions(graphs: Path, out: Path, no_effect: int, seed: int, alignments: Path | None) -> None:
    """Write the questions and answers of all paths with 1 to 3 hops through influence graphs.

    Example: d2e data wiqa-questions --graphs wiqa_influence_graphs.jsonl --out data/raw/wiqa/all.jsonl
    """
    from eval.systems.files import json_lines
    from eval.systems.wiqa.graphs import questions_of, read_alignments, read_graphs

    found = read_graphs(graphs)
    aligned = read_alignments(alignments, found) if alignments is not None else None
    rows = list(questions_of(found, no_effect=no_effect, seed=seed, alignments=aligned))
    if not rows:
        raise UserError(
            f"{graphs}: its {len(found)} graphs have no edge between nodes with texts; nothing was written"
        )
    write_whole(out, json_lines(rows))
    answers = Counter(row["question"]["answer_label"] for row in rows)
    counts = ", ".join(f"{label} {answers[label]:,}" for label in ("more", "less", "no_effect"))
    explained = sum("explanation" in row for row in rows)
    click.echo(f"{len(rows):,} questions of {len(found):,} graphs ({counts}; {explained:,} explained): {out}")
