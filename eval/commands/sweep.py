"""`d2e sweep`: train and score a grid of recipes, the named runs of a plan, or the combinations of a study."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from d2e_sft.config.lookup import require_recipe
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_whole
from d2e_sft.util.table import Table
from d2e_sft.util.terminal import folded
from eval.study.study import Study, combinations, read_study
from eval.sweep.grid import describe_point, grid, parse_axes
from eval.sweep.plan import Plan, plan_points, read_plan
from eval.sweep.record import Sweep, check_inputs, refuse_other_sweep


@click.command()
@click.argument("recipe", metavar="RECIPE|PLAN|STUDY")
@click.argument("words", nargs=-1, metavar="[SECTION.KEY=VALUE,VALUE | RUN | AXIS=VALUE]...")
@click.option("--bench", metavar="PATH", help="What to score on, as for d2e eval.")
@click.option("--suite", metavar="NAME", help="A suite to score on, as for d2e eval.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the sweep. [default: runs/sweep-RECIPE]")
@click.option("--train-args", default="", metavar="TEXT", help='More for each d2e train, such as "--launch zero3".')
@click.option("--eval-args", default="", metavar="TEXT", help='More for each d2e eval, such as "--setting few_shot".')
@click.option(
    "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Of a study: trainings at a time."
)
@click.option(
    "--rows",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Of a study: the file of measured rows. [default: the study's]",
)
@click.option("--dry-run", is_flag=True, help="List the points and what is left to do; train and write nothing.")
def sweep(*, recipe: str, dry_run: bool, jobs: int, rows: Path | None, **given: Any) -> None:
    """Train and score RECIPE with every combination of the given values, the runs of a PLAN, or a STUDY.

    Each point has a run folder in the sweep's folder, beside one table (results.md, results.json) and one plot
    (results.png, results.html); on PIPER also the paper's tables 5 and 6. The same call goes on where a sweep was
    killed (a training from its last checkpoint, which needs train.save_steps), and tries again what failed. Points
    that the method makes equal, such as any alpha without debiasing, are trained once.

    A PLAN is a YAML file: a recipe, `runs` with a name, overrides and evaluations each (plain, debiased, without the
    contexts), and the tables to make of them. RUN does only those runs, SECTION.KEY=VALUE holds for all of them.

    A STUDY is a YAML file with axes of named values, seeds among them: each combination is trained on data of its own
    and probed while it trains; the page (study.html, study.md) shows curves with bands over seeds and what is decided.
    AXIS=VALUE,VALUE keeps those values alone; SECTION.KEY=VALUE changes all trainings, whose rows need a file of
    their own (--rows).

    \b
    Examples:
      d2e sweep smollm2-135m-mini/d2e d2e.alpha=0.1,0.5,1.0 d2e.debias=true,false --bench data/mini
      d2e sweep launch/evidence.yaml base sft d2e
      d2e sweep launch/habit.yaml objective=sft,product strength=0.95 --jobs 2
    """
    study = read_study(recipe)
    if study is not None:
        _study(study, recipe, dry_run=dry_run, jobs=jobs, rows=rows or Path(study.rows), **given)
        return
    if rows is not None:
        raise UserError(f"--rows {rows}: for a study; a sweep keeps its results in its own folder", "drop it")
    if jobs != 1:
        raise UserError(f"--jobs {jobs}: for a study; points of a sweep are trained one after another", "drop it")
    planned = _sweep_of(recipe, read_plan(recipe), **given)
    check_inputs(planned)
    _check_passed_on(planned)
    refuse_other_sweep(planned)
    click.echo(
        f"{len(planned.points)} points: {len(planned.to_train)} trainings and {len(planned.to_score)} evaluations "
        f"in {planned.out}"
    )
    if dry_run:
        _list_points(planned)
        return
    for line in _equal_points(planned):
        click.echo(line)
    if any(point.recipe.train.save_steps is None for point in planned.to_train):
        click.echo("train.save_steps is not set: a training that is killed begins again")
    _run(planned)


def _study(
    study: Study,
    file: str,
    words: Sequence[str],
    *,
    dry_run: bool,
    jobs: int,
    rows: Path,
    out: Path | None,
    **given: Any,
) -> None:
    for option, value in given.items():
        if value:
            raise UserError(
                f"--{option.replace('_', '-')} {value}: not for a study, which is scored by its probe",
                remedy="write overrides of all trainings as section.key=value",
            )
    from eval.pages.report.study_page import write_study_page
    from eval.study.rows import read_rows, refuse_other_overrides
    from eval.study.run import missing, run_study
    from eval.study.tables import settings, study_tables

    folder = out or Path(study.out)
    chosen = combinations(study, folder, words)
    refuse_other_overrides(read_rows(rows), chosen[0].asked, rows)
    left = missing(chosen, rows)
    done = len(chosen) - len(left)
    click.echo(f"{len(chosen)} combinations: {done} in {rows}, {len(left)} to be trained in {folder}")
    if dry_run:
        click.echo("\n".join(combination.name for combination in left))
        return
    failed = run_study(chosen, folder, rows, jobs=jobs, keep_models=study.keep_models, say=click.echo)
    found = settings(study, read_rows(rows))
    write_whole(folder / "study.md", study_tables(found, Table.markdown) + "\n")
    click.echo(f"\n{folded(study_tables(found, Table.terminal))}\n\nwrote {folder / 'study.md'}")
    click.echo(f"wrote {write_study_page(f'Study: {Path(file).stem}', found, folder / 'study.html')}")
    if failed:
        listed = "\n  ".join(one.combination.name for one in failed)
        raise UserError(
            f"{len(failed)} of {len(left)} combinations failed\n  {listed}",
            remedy="mend the cause and give the same command again: it repeats only what failed",
        )


def _run(planned: Sweep) -> None:
    from eval.sweep.results import collect, results_table, write_results
    from eval.sweep.run import run_sweep

    failures = run_sweep(planned, click.echo)
    results = collect(planned, failures)
    click.echo(f"\n{results_table(planned.axes, results).terminal()}\n")
    from eval.pages.report.sweep_page import write_sweep_page

    for file in [*write_results(planned, results), *write_sweep_page(planned, results)]:
        click.echo(f"wrote {file}")
    if failures:
        listed = "\n  ".join(failure.describe() for failure in failures)
        raise UserError(
            f"{len(failures)} of {len(planned.to_score)} points failed\n  {listed}",
            remedy="mend the cause and give the same command again: it repeats only what failed",
        )


def _sweep_of(
    recipe: str,
    plan: Plan | None,
    words: Sequence[str],
    *,
    bench: str | None,
    suite: str | None,
    out: Path | None,
    train_args: str,
    eval_args: str,
) -> Sweep:
    if plan is not None and bench is None and suite is None:
        bench, suite = plan.bench, plan.suite
    if (bench is None) == (suite is None):
        raise UserError(
            "a sweep is scored on one benchmark; expected either --bench or --suite",
            remedy="add --bench FOLDER or --suite piper",
        )
    place = ("--bench", bench) if bench is not None else ("--suite", str(suite))
    for_eval, for_train = _words("--eval-args", eval_args), _words("--train-args", train_args)
    if plan is None:
        axes = parse_axes(words)
        # In full, so that a bundled recipe's name and its files are the same recipe to a later call.
        name = require_recipe(recipe).name
        stem = Path(recipe).stem if recipe.endswith(".yaml") else name.replace("/", "-")
        folder = out or Path("runs") / f"sweep-{stem}"
        return Sweep(name, axes, grid(name, axes, folder), folder, place, for_eval, for_train)
    overrides = [word for word in words if "=" in word]
    for axis in parse_axes(overrides) if overrides else []:
        if len(axis.values) > 1:
            raise UserError(
                f"{axis.key}={','.join(axis.values)}: holds for all runs of a plan; expected one value",
                remedy=f"name a run for each value in {recipe}",
            )
    chosen = plan.choose([word for word in words if "=" not in word])
    name = require_recipe(plan.recipe).name
    folder = out or Path(plan.out or f"runs/sweep-{Path(recipe).stem}")
    runs, points = plan_points(plan, name, folder, overrides)
    # What the call says stands last, and takes the place of what the file says.
    for_eval = _words("eval_args", plan.eval_args) + for_eval
    for_train = _words("train_args", plan.train_args) + for_train
    return Sweep(name, [runs], points, folder, place, for_eval, for_train, plan, chosen)


def _words(option: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{option} {text!r}: {error}; expected arguments as a shell reads them") from None


def _check_passed_on(planned: Sweep) -> None:
    """Let the two commands read what is passed on to them, without running them: a typing error answers at once."""
    from d2e_sft.commands.train import train
    from eval.commands.evaluate import evaluate

    for option, command, arguments in (
        ("--train-args", train, [planned.recipe, *planned.train_arguments]),
        ("--eval-args", evaluate, ["MODEL", *planned.bench, *planned.eval_arguments]),
    ):
        try:
            command.make_context(f"d2e {command.name}", arguments)
        except click.UsageError as error:
            raise UserError(f"{option}: {error.format_message()}", remedy=f"see d2e {command.name} --help") from None


def _equal_points(planned: Sweep) -> list[str]:
    lines = []
    for point in planned.points:
        if point.scored_in != point.name:
            lines.append(f"{point.name}: the same as {point.scored_in}, trained and scored once")
        elif point.trained_in != point.name and planned.plan is None:
            lines.append(f"{point.name}: trains the same as {point.trained_in}, trained once")
    return lines


def _list_points(planned: Sweep) -> None:
    from eval.sweep.run import commands, is_trained, point_scores

    to_score = {point.name for point in planned.to_score}
    listed: list[list[str]] = []
    for point in planned.points:
        if point.scored_in != point.name:
            state = f"the same as {point.scored_in}"
        elif point.name not in to_score:
            continue
        elif point_scores(planned, point) is not None:
            state = "scored"
        elif not point.train:
            state = "to be scored as it is"
        elif is_trained(planned.out / point.trained_in):
            state = "trained, to be scored"
        elif point.trained_in != point.name:
            state = f"to be scored with the model of {point.trained_in}"
        else:
            state = "to be trained and scored"
        click.echo(f"{describe_point(point, planned.axes)}: {state}")
        if planned.plan is not None and point.name in to_score:
            left = [command for command in commands(planned, point) if command not in listed]
            listed += left
            click.echo("".join(f"  d2e {shlex.join(command)}\n" for command in left), nl=False)
