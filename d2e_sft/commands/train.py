"""`d2e train`."""

import os
import sys
from typing import Any

import click

from d2e_sft.commands.recipes import complete_recipe, completing
from d2e_sft.config.lookup import (
    DEFAULT_METHOD,
    RecipeSource,
    bundled_methods,
    bundled_models,
    compose,
    require_recipe,
)
from d2e_sft.train import launch
from d2e_sft.train.dry_run.cards import CARDS, Where
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.startup import preload
from d2e_sft.util.terminal import say

_COUNT = click.IntRange(min=1)
_PLACE = ("processes", "machines", "machine_rank", "main_address")


def _shapes() -> list[str]:
    from d2e_sft.model.shapes import SHAPES

    return list(SHAPES)


@click.command()
@click.argument("recipe", required=False, shell_complete=complete_recipe)
@click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")
@click.option(
    "--model",
    metavar="NAME",
    shell_complete=completing(bundled_models),
    help="A bundled model, instead of RECIPE; `d2e recipes list` shows them.",
)
@click.option(
    "--method",
    metavar="NAME",
    shell_complete=completing(bundled_methods),
    help=f"How --model is trained: {', '.join(bundled_methods())}.  [default: {DEFAULT_METHOD}]",
)
@click.option("--resume", is_flag=True, help="Continue from the run folder's last whole checkpoint.")
@click.option(
    "--auto-resume",
    is_flag=True,
    help="--resume if the run was started before, otherwise start it; for jobs that are restarted.",
)
@click.option("--overwrite", is_flag=True, help="Remove the run in the folder, and start over.")
@click.option(
    "--dry-run", is_flag=True, help="Show recipe, samples, lengths, steps, memory and time; train and write nothing."
)
@click.option(
    "--without-weights",
    is_flag=True,
    help="With --dry-run: read only configuration and tokenizer, estimate the memory, and measure no time.",
)
@click.option(
    "--gpu",
    metavar="CARD",
    shell_complete=completing(lambda: list(CARDS)),
    help=f"With --dry-run: memory, fit and time on --processes cards (1): {', '.join(CARDS)}. Without --launch "
    "under ddp, fsdp2, zero2 and zero3.",
)
@click.option(
    "--like",
    metavar="SHAPE",
    shell_complete=completing(_shapes),
    help="With --dry-run: the shape of a published model, such as qwen3-4b, instead of the recipe's; no network.",
)
@click.option(
    "--tokenizer",
    metavar="NAME",
    help="With --like: the model whose tokenizer counts the tokens; without it they are estimated by word lengths.",
)
@click.option(
    "--utilisation",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="SHARE",
    help="With --gpu: share of the card's operations per second that training reaches; by default 0.3, and "
    "less for models under 2,048 wide.",
)
@click.option(
    "--launch",
    "launcher",
    metavar="NAME",
    help=f"Train on several processes: {', '.join(launch.launchers())}.",
)
@click.option("--processes", type=_COUNT, metavar="N", help="Processes on this machine; default: one per accelerator.")
@click.option("--machines", type=_COUNT, metavar="N", help="Machines that train together; each runs this command.")
@click.option("--machine-rank", type=int, metavar="R", help="Which of the machines this one is, from 0.")
@click.option("--main-address", metavar="HOST:PORT", help="Where the machines meet: a free port of machine 0.")
def train(
    *,
    recipe: str | None,
    overrides: tuple[str, ...],
    model: str | None,
    method: str | None,
    resume: bool,
    auto_resume: bool,
    overwrite: bool,
    dry_run: bool,
    without_weights: bool,
    launcher: str | None,
    **options: Any,
) -> None:
    """Train a model from RECIPE, a YAML file or the name of a bundled recipe, or from --model and --method.

    The recipe's train.output_dir gets the model, its tokenizer, the resolved recipe and the loss history.
    SECTION.KEY=VALUE overrides a value of the recipe.

    Example: d2e train --model qwen3-0.6b --method d2e-lora d2e.alpha=0.7 train.output_dir=runs/alpha-0.7

    Example: d2e train --model qwen3-0.6b --launch zero3 --processes 8

    Example: d2e train mine.yaml --dry-run

    Example: d2e train mine.yaml --dry-run --like qwen3-4b --gpu a100-40 --processes 4
    """
    from d2e_sft.config.recipe import is_begun, load_recipe
    from d2e_sft.train.run import check_run, train_recipe
    from d2e_sft.train.run_folder import is_complete

    source, overrides = _source(recipe, overrides, model, method)
    loaded = load_recipe(source, overrides)
    place = {name: options.pop(name) for name in _PLACE}
    _check_launch_options(launcher or options["gpu"], place)
    # Decided before the processes start, so that all see the same folder.
    resume = resume or (auto_resume and is_begun(loaded))
    if dry_run:
        where = _where(launcher, place, {**options, "weights": not without_weights})
        _show(loaded, where, resume=resume, overwrite=overwrite)
        return
    for name, value in {"without-weights": without_weights, **options}.items():
        if value:
            reason = "training needs the weights" if name == "without-weights" else "nothing is trained with it"
            raise UserError(f"--{name}: {reason}", remedy="add --dry-run, or leave it out")
    if resume and not overwrite and is_complete(loaded):
        say(f"{loaded.train.output_dir}: is finished; nothing is left to train")
        return
    if launcher is not None:
        launch.check_launcher(launcher)
        if not place["machine_rank"]:  # other machines may not have the run folder yet
            check_run(loaded, (place["processes"] or 1) * (place["machines"] or 1), resume=resume, overwrite=overwrite)
        flags = [flag for flag, is_set in (("--resume", resume), ("--overwrite", overwrite)) if is_set]
        sys.exit(launch.launch(launch.launch_command(launcher, [source.name, *overrides, *flags], **place)))
    run = train_recipe(loaded, resume=resume, overwrite=overwrite)
    if os.environ.get("RANK", "0") == "0":
        click.echo(f"trained: {run}")


def _source(
    recipe: str | None, overrides: tuple[str, ...], model: str | None, method: str | None
) -> tuple[RecipeSource, tuple[str, ...]]:
    """The recipe and the overrides; with --model the first word is an override, too."""
    if model is None:
        if method is not None:
            raise UserError(
                f"--method {method}: needs --model NAME",
                remedy=f"for a recipe of your own, write a file: `extends: [RECIPE, recipes/methods/{method}.yaml]`",
            )
        if recipe is None:
            raise click.UsageError("Missing argument 'RECIPE', or --model NAME.")
        return require_recipe(recipe), overrides
    words = (*(() if recipe is None else (recipe,)), *overrides)
    for word in words:
        if "=" not in word:
            raise UserError(f"{word}: expected SECTION.KEY=VALUE, since --model {model} is the recipe")
    return compose(model, method or DEFAULT_METHOD), words


def _where(launcher: str | None, place: dict[str, Any], options: dict[str, Any]) -> Any:
    """The `Where` of a dry run; UserError for a card, a shape or a combination that does not exist."""
    gpu, like, shapes = options["gpu"], options["like"], _shapes()
    if like is not None and like not in shapes:
        raise UserError(
            f"--like {like}: no such shape.{did_you_mean(like, shapes)}", f"choose one of {', '.join(shapes)}"
        )
    for name, needed in (("tokenizer", "like"), ("utilisation", "gpu")):
        if options[name] is not None and options[needed] is None:
            raise UserError(f"--{name} {options[name]}: needs --{needed}", f"add --{needed}, or leave it out")
    if gpu is not None:
        if launcher is not None:
            launch.check_launcher(launcher)
        everywhere = (place["processes"] or 1) * (place["machines"] or 1)
    else:
        everywhere = (
            1 if launcher is None else launch.planned_processes(launcher, place["processes"], place["machines"])
        )
    options_set = {name: value for name, value in options.items() if value is not None}
    return Where(launcher, everywhere, **options_set)


def _show(recipe: Any, where: Any, *, resume: bool, overwrite: bool) -> None:
    from d2e_sft.train.checks import check_recipe

    check_recipe(recipe, where.processes)
    say(f"loading {recipe.model.name} …", err=True)
    preload("transformers.modeling_utils")
    from d2e_sft.train.dry_run.report import dry_run

    dry_run(recipe, click.echo, where, resume=resume, overwrite=overwrite)


def _check_launch_options(launcher: str | None, place: dict[str, Any]) -> None:
    for name in _PLACE:
        if place[name] is None:
            continue
        option = f"--{name.replace('_', '-')} {place[name]}"
        if launcher is None:
            raise UserError(f"{option}: needs --launch", remedy="add --launch NAME, for example ddp")
        if name != "processes" and place["machines"] is None:
            # Without it each machine would train by itself, all of them into the same folder.
            raise UserError(f"{option}: needs --machines", remedy="add --machines N, the number of machines")
