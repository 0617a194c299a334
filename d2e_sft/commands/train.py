"""`d2e train`."""

from __future__ import annotations

import click


@click.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")
@click.option("--resume", is_flag=True, help="Continue from the run folder's last whole checkpoint.")
@click.option("--overwrite", is_flag=True, help="Train anew into a folder that already holds a run.")
def train(recipe: str, overrides: tuple[str, ...], resume: bool, overwrite: bool) -> None:
    """Train a model from RECIPE, a YAML file or the name of a bundled recipe.

    The model, its tokenizer, the resolved recipe and the loss history are left in the recipe's train.output_dir.
    Values of the recipe can be overridden as SECTION.KEY=VALUE. For several processes:
    accelerate launch --config_file launch/accelerate/ddp.yaml -m d2e_sft.train RECIPE [SECTION.KEY=VALUE]...

    Example: d2e train recipes/smollm2-135m/d2e-mini.yaml d2e.alpha=0.7 train.output_dir=runs/alpha-0.7
    """
    from d2e_sft.recipe import load_recipe

    loaded = load_recipe(recipe, overrides)  # checked before torch is imported: a typing error answers at once
    from d2e_sft.train import train_recipe

    run = train_recipe(loaded, resume=resume, overwrite=overwrite)
    click.echo(f"trained: {run}")
