"""`d2e sweep`: train one recipe in many ways, and score the models, probe them while they train, or both."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import filled, say
from eval.sweep.cells import (
    builds_suites,
    check_inputs,
    is_done,
    read_rows,
    refuse_other_overrides,
    refuse_other_trainings,
    steps,
)
from eval.sweep.plan import Sweep, plan_sweep
from eval.sweep.run import refuse_other_sweep, run_sweep
from eval.sweep.spec import read_spec, split_words


@click.command()
@click.argument("recipe", metavar="RECIPE|FILE")
@click.argument("words", nargs=-1, metavar="[SECTION.KEY=VALUE,VALUE | RUN | AXIS=VALUE]...")
@click.option("--bench", metavar="PATH", help="Benchmark to score on, like d2e eval; {build}: own test rows.")
@click.option("--suite", metavar="NAME", help="Suite to score on, like d2e eval.")
@click.option("--scale", metavar="NAME", help="A scale of FILE: the same plan with another model and fewer rows.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the sweep. [default: runs/sweep-RECIPE]")
@click.option("--train-args", default="", metavar="TEXT", help='Options for each d2e train, such as "--launch zero3".')
@click.option(
    "--eval-args", default="", metavar="TEXT", help='Options for each d2e eval, such as "--setting few_shot".'
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Trainings at a time.")
@click.option("--results", metavar="FILE", help="File of all results. [default: OUT/results.json]")
@click.option("--strict", is_flag=True, help="Refuse results of points that were decoded differently.")
@click.option(
    "--dry-run", is_flag=True, help="List the points and the commands left to run, with what they cost; write nothing."
)
@click.pass_obj
def sweep(
    lent: Callable[[str], Any],
    *,
    recipe: str,
    words: tuple[str, ...],
    scale: str | None,
    out: Path | None,
    jobs: int,
    strict: bool,
    dry_run: bool,
    **options: str | None,
) -> None:
    """Train and score RECIPE with all combinations of the given values, or the runs and axes of a FILE.

    Each point has a run folder in the sweep's folder, next to results.md, .json, .html and .png. The same call resumes
    a sweep that was killed (a training from its last checkpoint, which needs train.save_steps) and repeats what
    failed. Points that the method makes equal, such as any alpha without debiasing, are trained once.

    FILE is a YAML file with a recipe, named runs, axes (seeds among them), ways of decoding, and the tables to make.
    With `probe`, accuracy is measured during training and compared over seeds. RUN and AXIS=VALUE,VALUE choose points;
    SECTION.KEY=VALUE overrides all recipes.

    \b
    Examples:
      d2e sweep smollm2-135m-mini/d2e d2e.alpha=0.1,0.5,1.0 d2e.debias=true,false --bench data/mini
      d2e sweep launch/evidence.yaml base sft d2e
      d2e sweep launch/paper.yaml --dry-run                      # the PIPER paper's tables
      d2e sweep launch/paper.yaml --scale smollm2-135m           # the same plan on a CPU
      d2e sweep launch/habit.yaml objective=sft,teacher strength=0.95 --jobs 2
    """
    stem = Path(recipe).stem if recipe.endswith((".yaml", ".yml")) else recipe.replace("/", "-")
    stem = stem if scale is None else f"{stem}-{scale}"
    spec = read_spec(recipe, scale)
    changes: dict[str, Any] = {key: value for key, value in options.items() if value}
    if {"bench", "suite"} & changes.keys():  # the call's benchmark replaces the file's, arguments are added
        changes = {"bench": None, "suite": None, **changes}
    for key in ("train_args", "eval_args"):
        changes[key] = f"{getattr(spec, key)} {options[key]}".strip()
    planned = plan_sweep(spec.model_copy(update=changes), words, out, stem)
    check_inputs(planned)
    _check_passed_on(planned, lent)
    rows = read_rows(planned.results)
    refuse_other_overrides(rows, planned.asked, planned.results)
    refuse_other_trainings(rows, planned)
    refuse_other_sweep(planned)
    left = [point for point in planned.work if not is_done(planned, point, rows)]
    trainings = {point.trained_in for point in left if point.train}
    evaluations = 0 if planned.bench is None else len(left)
    chosen = f"{len(planned.chosen):,} of " if len(planned.chosen) < len(planned.points) else ""
    click.echo(
        f"{chosen}{len(planned.points):,} points in {planned.out}, {len(planned.work) - len(left)} done; "
        f"left: {len(trainings)} trainings and {evaluations} evaluations"
    )
    if dry_run:
        _list(planned)
    else:
        _run(planned, jobs, strict=strict)


def _check_passed_on(planned: Sweep, lent: Callable[[str], Any]) -> None:
    """Let the commands check their words without running them, so that a mistake is reported before any training."""
    from d2e_sft.commands.train import train
    from eval.commands.errors import errors
    from eval.commands.evaluate import evaluate, refuse_together

    spec, calls = planned.spec, list[tuple[str, click.Command, tuple[str, ...]]]()
    calls.append(("--train-args", train, (spec.recipe, *split_words("--train-args", spec.train_args))))
    built = {point.build: "build" for point in planned.work if point.build}
    for point in planned.work if planned.bench is not None else ():
        bench = planned.bench_of(point) or ()
        words = ("MODEL", *bench, *split_words("--eval-args", spec.eval_args))
        calls += [("--eval-args", evaluate, words), (f"eval_args of {point.name}", evaluate, words + point.eval_args)]
        calls += [(f"errors of {point.name}", errors, ("RUN", *point.errors))]
        if "--suite" in bench and builds_suites(planned):
            built.setdefault(bench, f"suite of {point.name}")
    for words, key in built.items():
        calls.append((key, lent("build"), (*words, "--out", str(planned.out), "--check")))
    for option, command, arguments in {call[1:]: call for call in reversed(calls)}.values():
        try:
            context = command.make_context(str(command.name), list(arguments))
            if command is evaluate:
                refuse_together(context.params)
            elif arguments[-1] == "--check":
                with context:
                    command.invoke(context)
        except click.UsageError as error:
            verb = f"{'data ' * (arguments[-1] == '--check')}{command.name}"
            raise UserError(f"{option}: {error.format_message()}", remedy=f"see d2e {verb} --help") from None
        except UserError as error:
            raise UserError(f"{option}: {error.message}", error.remedy) from None


def _list(planned: Sweep) -> None:
    from eval.sweep.costs import CommandCost, cost_of, paid_judge, sum_of

    rows, printed, costs = read_rows(planned.results), list[list[str]](), list[CommandCost]()
    work, asked = {point.name for point in planned.work}, False
    for point in planned.points:
        if point.scored_in != point.name:
            click.echo(f"{point.name}: the same as {point.scored_in}")
        elif point.name in work:
            done = is_done(planned, point, rows)
            left = [] if done else [words for _, words in steps(planned, point) if words not in printed]
            printed += left
            click.echo(f"{point.name}: done" if done else point.name)
            for command in left:
                click.echo(f"  d2e {shlex.join(command)}")
                if (paid := paid_judge(planned, command, again=asked)) is not None:
                    click.echo(f"      {paid}")
                    asked = True
                cost = cost_of(planned, point, command)
                if cost is not None:
                    costs.append(cost)
                    click.echo(f"      {cost.describe()}")
            click.echo()
    if costs:
        click.echo(f"in all {sum_of(costs).describe()}, without starting and loading")


def _run(planned: Sweep, jobs: int, *, strict: bool) -> None:
    from eval.compare.reading import onset_table, plateau_table, settings, verdicts
    from eval.compare.verdicts import verdicts as verdicts_of
    from eval.sweep.results import collect, decoding_of, over_seeds, results_table, write_results

    spec = planned.spec
    for point in planned.points:
        if point.scored_in != point.name:
            click.echo(f"{point.name}: the same as {point.scored_in}, trained and scored once")
    if spec.probe is None and any(point.recipe.train.save_steps is None for point in planned.trainings):
        click.echo("train.save_steps is not set: a training that is killed begins again")
    failed = run_sweep(planned, say, jobs=jobs)
    results = [] if planned.bench is None else collect(planned, failed)
    if strict:
        decoding_of(planned, results).refuse()
    rows = read_rows(planned.results)
    probed = [] if spec.probe is None else settings(list(spec.axes), spec.probe.reference, rows)
    for setting in probed:
        tables = (table(setting).terminal() for table in (onset_table, plateau_table))
        click.echo("\n" + "\n\n".join(["\n".join(filter(None, [setting.name, *verdicts(setting)])), *tables]))
    seeds = over_seeds(planned, results)
    if results:
        click.echo(f"\n{results_table(planned, results).terminal()}")
    for line in (line for comparison in seeds for line in verdicts_of(comparison)):
        click.echo(f"\n{filled(line)}")
    from eval.pages.sweep import write_sweep_page

    click.echo()
    for file in [*write_results(planned, results), *write_sweep_page(planned, results, probed, seeds)]:
        click.echo(f"wrote {file}")
    if failed:
        failures = "\n  ".join(f"{name}: {reason}" for name, reason in failed.items())
        number = len(failed.keys() & {point.name for point in planned.work})
        raise UserError(
            f"{number} of {len(planned.work)} points failed\n  {failures}",
            remedy="fix the cause and repeat the command; it repeats only what failed",
        )
