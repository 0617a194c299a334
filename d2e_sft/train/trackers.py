"""Experiment trackers beyond transformers' callbacks: the recipe and tables, for wandb, trackio and tensorboard."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback

from d2e_sft.config.recipe import Recipe
from d2e_sft.util.errors import UserError
from d2e_sft.util.tables import markdown_cell, markdown_table

# Trackers whose module has another name, or that another package may stand in for.
_MODULES = {"tensorboard": ("tensorboard", "tensorboardX")}
# What a run of this process has set, and the next may set anew; transformers asks the environment for it.
_named: dict[str, str] = {}


def prepare_trackers(names: Sequence[str], project: str) -> None:
    """See that the trackers of `train.report_to` are there, before anything is loaded for a run that they would stop.

    Args:
        project: where runs are filed; an environment variable of the tracker's own (WANDB_PROJECT) wins.

    Raises:
        UserError: the package of a tracker is not installed.
    """
    for name in names:
        if not any(find_spec(module) for module in _MODULES.get(name, (name,))):
            raise UserError(
                f"train.report_to={name}: the package {name} is not installed",
                remedy=f"pip install {name}, or take {name} out of train.report_to",
            )
    if "wandb" in names and os.environ.get("WANDB_PROJECT") in (None, _named.get("WANDB_PROJECT")):
        os.environ["WANDB_PROJECT"] = _named["WANDB_PROJECT"] = project


class RecordRecipe(TrainerCallback):
    """Files the whole recipe with the run, since a tracker is told transformers' arguments and not what α was."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Runs after the trackers' own callbacks, which were added before it."""
        if not state.is_world_process_zero:
            return
        content = {"recipe": self.recipe.model_dump()}
        if "wandb" in args.report_to:
            import wandb

            wandb.config.update(content, allow_val_change=True)
        if "trackio" in args.report_to:
            import trackio

            trackio.config.update(content, allow_val_change=True)


def log_table(trainer: Any, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Send a table to the trackers that show one; to be called on the main process of a training under way.

    wandb and trackio take it as their own kind of table, tensorboard as text in Markdown. The other trackers of
    `train.report_to` have no place for it.
    """
    step, report_to = trainer.state.global_step, trainer.args.report_to
    values = [list(row) for row in rows]
    if "wandb" in report_to:
        import wandb

        wandb.log({name: wandb.Table(columns=list(columns), data=values), "train/global_step": step})
    if "trackio" in report_to:
        import trackio

        trackio.log({name: trackio.Table(columns=list(columns), data=values), "train/global_step": step})
    if "tensorboard" in report_to:
        callbacks = trainer.callback_handler.callbacks
        writer = next((c.tb_writer for c in callbacks if isinstance(c, TensorBoardCallback)), None)
        if writer is not None:
            writer.add_text(
                name, markdown_table(columns, [[markdown_cell(value) for value in row] for row in values]), step
            )
