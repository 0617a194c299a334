"""`d2e predict`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from d2e_sft.config.options import decoder_option
from d2e_sft.data.sample import RELATIONS, WORDED, BadRow, EventSample
from eval.commands.eval_options import eval_options, launch_if_asked, launch_options
from eval.run.options import EvalOptions

# Options of `d2e eval` that mean the same here.
_OF_EVAL = (
    "alpha",
    "plausibility",
    "answer",
    "normalise",
    "form",
    "prompt_set",
    "max_new_tokens",
    "overlong",
    "skip_bad",
    "overwrite",
    "engine",
)


@click.command()
@click.argument("model")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Answers: a .jsonl, .csv or .parquet file."
)
@click.option(
    "--mapping",
    type=click.Path(path_type=Path),
    metavar="YAML",
    help="A description of own data, with the columns of FILE.",
)
@click.option(
    "--format", "fmt", type=click.Choice(WORDED), help="For rows without one. [default: scq with options, else qa]"
)
@click.option(
    "--relation",
    type=click.Choice(RELATIONS),
    help="For rows without one; prompts ask about events unless it is `none`. [default: as in training, else none]",
)
@click.option(
    "--setting",
    type=click.Choice(["zero_shot", "cot"]),
    default="zero_shot",
    show_default=True,
    help="Prompt setting.",
)
@decoder_option("How both views give the next token")
@eval_options(*_OF_EVAL)
@launch_options
@click.pass_obj
def predict(
    lent: Callable[[str], Any],
    model: str,
    file: Path,
    *,
    out: Path,
    mapping: Path | None,
    fmt: str | None,
    relation: str | None,
    launcher: str | None,
    processes: int | None,
    **options: Any,
) -> None:
    """Answer the rows of FILE with MODEL; gold answers are not needed.

    FILE is CSV, TSV, JSONL, JSON or Parquet with the columns context and question, and optionally options, format,
    relation and id; or rows of a build (test.parquet); or a description of own data (YAML). Rows with the column
    messages are chats: the last user turn is answered. If a chat ends with the assistant's turn, that turn is the
    reference answer, as in d2e eval, and the model does not see it. For other column names see --mapping. OUT has the
    same rows in the same order. Its columns are id (by default the line), question, answer, output (of the model), and
    read: how the answer was extracted (strict, lenient or none). Every answer is kept at once in OUT.decoding: after a
    kill the same command resumes.

    \b
    Examples:
      d2e predict runs/d2e questions.csv --out answers.csv
      d2e predict runs/d2e chats.jsonl --out answers.jsonl
      d2e predict runs/d2e new.jsonl --mapping mine.yaml --out answers.parquet --dtype auto
    """
    from eval.run.predict import check_ending, trained_relation
    from eval.run.predict import predict as answer

    check_ending(out)
    samples: list[EventSample]
    bad: list[BadRow]
    samples, bad = lent("read_questions")(
        file, mapping=mapping, fmt=fmt, relation=relation or trained_relation(model), skip_bad=options["skip_bad"]
    )
    launch_if_asked(launcher, processes, options["engine"])
    answered = answer(model, file, samples, bad, out, EvalOptions(**options))
    if os.environ.get("RANK", "0") != "0":
        return
    click.echo(f"{out}: {answered.rows:,} answers")
    counts = {
        f"bad rows skipped, kept in {answered.bad_file}": answered.bad,
        "outputs without a recognised answer (their answer is empty)": answered.unread,
        "contexts cut to fit the model": answered.truncated,
    }
    for label, count in counts.items():
        if count:
            click.echo(f"{label}: {count:,}")
