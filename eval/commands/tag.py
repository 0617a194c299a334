"""`d2e data tag`."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from d2e_sft.config.options import Number
from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from d2e_sft.util.signals import on_sigterm
from d2e_sft.util.table import Table
from eval.commands.eval_options import eval_options
from eval.run.options import EvalOptions

# Options that need no model.
_REFUSING = "unanswerable"  # the subset of rows whose answer is that the context does not say
_OF_QUESTIONS = {"data", "by", "out", "threshold", "overwrite"}


@click.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--model", metavar="NAME", help="Model whose habits these are, named as for `d2e eval`.")
@click.option(
    "--by",
    type=click.Choice(["model", "questions"]),
    default="model",
    show_default=True,
    help="Whose habit: that of --model, or that of DATA itself, by a classifier of the questions.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder, or file, for the tagged rows.")
@click.option(
    "--confidence",
    type=click.Choice(["probability", "agreement"]),
    help="How sure the model is: the probability of its answer (per token, or among the options), or the share of "
    "drawn answers that agree. [default: probability; with --engine openai agreement]",
)
@click.option(
    "--threshold",
    type=Number(0, 1),
    help="Least confidence of a habit; rows below it are unknown.  [default: 0.5; with --by questions 0]",
)
@click.option(
    "--samples",
    type=click.IntRange(min=2),
    help="With agreement: answers drawn for each question, at temperature 1.  [default: 8]",
)
@click.option(
    "--shots",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    help="Questions and answers of other rows that are shown first; they show the form of an answer.",
)
@click.option("--overwrite", is_flag=True, help="Replace OUT, and the subsets and habits that rows of DATA have.")
@eval_options("form", "prompt_set", "max_new_tokens", "engine")
@click.pass_obj
def tag(
    lent: Callable[[str], Any],
    data: Path,
    *,
    model: str | None,
    by: str,
    out: Path,
    overwrite: bool,
    **options: Any,
) -> None:
    """Tag the rows of DATA with the answers that a model, or their own questions, give without the context.

    DATA is a folder of `d2e data build` or a file of rows; OUT gets the same rows with three more fields. `habit` is
    the model's answer. `subset` is aligned (the model is sure of an accepted answer), conflict (sure of another one)
    or unknown (not sure, or the answer is a part of an accepted one). Unanswerable rows stay as they are. `meta.tag`
    has the model and the probability.
    d2e eval, d2e compare and d2e report then show the habit gap, on these rows as on any other.

    Answers of a model are kept by model and question: a killed call resumes, and no question is asked twice.

    With --by questions no model is asked. The habit is what the questions of the training rows predict. Of options
    it is the likeliest by the classifier of `d2e data diagnose`, of free text the most similar questions' answer. No
    row is tagged by itself or by rows with its context. Needs scikit-learn: pip install 'd2e-sft[stats]'.

    \b
    Examples:
      d2e data tag data/mine --model builtin:smollm2-135m-instruct --out data/mine-tagged
      d2e data tag rows.jsonl --model gpt-4o --engine openai --samples 5 --out tagged.jsonl
      d2e data tag data/mine --by questions --out data/mine-tagged
    """
    _check_options(by, model)
    rewriting = lent("open_rewriting")(data, out, overwrite=overwrite)
    rows: dict[str, list[EventSample]] = rewriting.rows
    if not overwrite:
        _refuse_tagged(data, rows)
    samples = [row for split_rows in rows.values() for row in split_rows if row.subset != _REFUSING]
    from eval.run.habits import ClosedBook, TagRule, tagged_by_questions

    if options["threshold"] is None:
        options["threshold"] = 0.0 if model is None else TagRule.threshold
    if model is None:
        guesses = lent("guess_habits")(samples, str(data))
        tagged, tags = tagged_by_questions(samples, guesses, options["threshold"])
    else:
        rule = TagRule(**{name: options.pop(name) for name in ("confidence", "threshold", "samples", "shots")})
        closed_book = ClosedBook(model, EvalOptions(**options), rule)
        with on_sigterm("what is answered is kept, and the same command resumes"):
            tagged, tags = closed_book.tagged(samples), closed_book.describe()
    tagged_row = iter(tagged)
    tagged_rows = {
        name: [row if row.subset == _REFUSING else next(tagged_row) for row in split_rows]
        for name, split_rows in rows.items()
    }
    files = rewriting.write(tagged_rows, tags=tags)
    click.echo(_table(tagged_rows).terminal() + "\n")
    for file in files:
        click.echo(f"wrote {file}")


def _check_options(by: str, model: str | None) -> None:
    """Raise an error if the model to ask is not named, or options of a model are given and none is asked."""
    context = click.get_current_context()
    params = {str(parameter.name): parameter for parameter in context.command.params}
    if by == "model" and model is None:
        hint = "Name a model, or take the habit of the rows themselves: --by questions."
        raise click.MissingParameter(hint, context, params["model"])
    given = [name for name in params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if by == "questions" and (of_model := [params[name].opts[0] for name in given if name not in _OF_QUESTIONS]):
        options = ", ".join(of_model)
        raise UserError(f"--by questions with {options}: no model is asked", f"drop {options}, or --by questions")


def _refuse_tagged(data: Path, rows: Mapping[str, Sequence[EventSample]]) -> None:
    all_rows = [row for split_rows in rows.values() for row in split_rows]
    tagged = [row for row in all_rows if row.subset not in (None, _REFUSING) or row.habit]
    if tagged:
        raise UserError(
            f"{data}: {len(tagged):,} of {len(all_rows):,} rows have a subset or a habit already, such as "
            f"{tagged[0].id!r}; expected rows without",
            remedy="replace them with --overwrite",
        )


def _table(rows: Mapping[str, Sequence[EventSample]]) -> Table:
    groups: dict[tuple[str, str], list[EventSample]] = {}
    for name, split_rows in rows.items():
        for row in split_rows:
            groups.setdefault((row.dataset, name), []).append(row)
    names = ("aligned", "conflict", "unknown", _REFUSING)
    lines = []
    for key, split_rows in groups.items():
        counts = Counter(str(row.subset) for row in split_rows)
        lines.append(
            [*key, len(split_rows), *(counts[name] for name in names), sum(not row.habit for row in split_rows)]
        )
    return Table.of(["dataset", "split", "rows", *names, "no answer"], lines, keys=2)
