"""The recipe that repeats a training from Python, and the arguments that it leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from pydantic import ValidationError
from transformers.trainer_pt_utils import AcceleratorConfig

from d2e_sft.config.d2e import D2ESection
from d2e_sft.config.recipe import Recipe
from d2e_sft.config.sections import LoraSection, TrainSection
from d2e_sft.model.forward import checkpointing_argument
from d2e_sft.train.arguments.config import D2EConfig
from d2e_sft.train.arguments.names import FROM_OTHER_SECTIONS
from d2e_sft.util.errors import UserError, describe_problem

# Arguments that follow from recipe keys, or that do not change what is trained.
_WITHOUT_KEY = {
    *("gradient_accumulation_steps", "save_strategy", "eval_strategy", "run_name", "data_seed"),
    *("activation_checkpointing", "restore_callback_states_from_checkpoint", "dataloader_pin_memory", "ddp_backend"),
    *("disable_tqdm", "do_train", "do_eval", "use_cpu", "local_rank", "hub_token", "model_init_kwargs"),
    *("overwrite_output_dir", "completion_only_loss", "logging_first_step", "logging_nan_inf_filter"),
    "assistant_only_loss",  # kept in the rows
}
_UNSET: tuple[Any, ...] = (None, False, "", [], {}, AcceleratorConfig())  # no value, as it is given or resolved
_OF_ANY_ADAPTER = {
    *("task_type", "peft_type", "base_model_name_or_path", "inference_mode", "revision", "auto_mapping"),
    "peft_version",
}


def to_recipe(
    args: D2EConfig, model: Mapping[str, Any], data: Mapping[str, Any], per_epoch: int | None = None
) -> tuple[Recipe, list[str]]:
    """The recipe of a run with these arguments, and the arguments that no recipe key can express.

    `model` and `data` are further keys of these sections: the model's name and adapter, the files of rows. `per_epoch`
    is the number of steps of an epoch, since a recipe counts in steps; None if it is not known.
    """
    given = {
        **args.given,
        "output_dir": str(args.output_dir),
        "batch_size": args.batch_size,
        "bf16": args.bf16,
        "gradient_checkpointing": bool(getattr(args, checkpointing_argument())),
        "report_to": args.report_to,
        "save_steps": _every(args, "save", per_epoch),
        "eval_steps": _every(args, "eval", per_epoch),
    }
    content: dict[str, dict[str, Any]] = {"model": dict(model), "data": dict(data), "eval": {}}
    for section, keys in (("train", TrainSection.model_fields), ("d2e", D2ESection.model_fields)):
        found = {key: getattr(given[key], "value", given[key]) for key in keys}
        content[section] = {key: value for key, value in found.items() if value is not None}
    for name, (section, key) in FROM_OTHER_SECTIONS.items():
        content[section][key] = given[name]
    known = {*TrainSection.model_fields, *D2ESection.model_fields, *FROM_OTHER_SECTIONS, *_WITHOUT_KEY}
    defaults = {one.name: one.default for one in fields(args) if one.default is not MISSING}
    unsaid = sorted(
        name
        for name, default in defaults.items()
        if name not in known
        and (value := args.given.get(name, default)) != default
        and not (default in _UNSET and value in _UNSET)
    )
    # A recipe refuses keys about evaluations without held-out rows, and about a best model that is not saved.
    without_effect = ["eval_steps", "load_best_model_at_end", "early_stopping_patience"]
    if data.get("dev") or data.get("probe"):
        without_effect = [] if {"eval_steps", "save_steps"} <= content["train"].keys() else ["load_best_model_at_end"]
    unsaid += [key for key in without_effect if content["train"].pop(key, None)]
    try:
        return Recipe.model_validate(content), unsaid
    except ValidationError as error:
        places = {tuple(map(str, item["loc"][:2])) for item in error.errors()}
        if any(len(place) != 2 for place in places):
            raise UserError(f"D2EConfig: {describe_problem({**error.errors()[0], 'loc': ()})}") from None
        for section, key in places:
            del content[section][key]
            unsaid.append(f"{section}.{key}")
        return Recipe.model_validate(content), unsaid


def _every(args: D2EConfig, kind: str, per_epoch: int | None) -> Any:
    """Steps between checkpoints or evaluations as a recipe has them; null evaluates after each epoch there, too."""
    if kind == "eval" and args.evaluates_by_default and not args.load_best_model_at_end:
        return None
    strategy = getattr(args, f"{kind}_strategy")
    return {"epoch": per_epoch, "steps": getattr(args, f"{kind}_steps")}.get(strategy.value)


def lora_section(adapter: Any) -> tuple[LoraSection | None, list[str]]:
    """An adapter's configuration as a recipe has it, and the settings that a recipe has no key for."""
    if adapter is None:
        return None, []
    given, usual = adapter.to_dict(), type(adapter)().to_dict()
    said = {name: given[name] for name in LoraSection.model_fields if given.get(name) is not None}
    said |= {name: sorted(value) for name, value in said.items() if isinstance(value, set)}
    unsaid = [
        f"peft_config.{name}"
        for name, value in given.items()
        if name not in LoraSection.model_fields and name not in _OF_ANY_ADAPTER and value != usual.get(name)
    ]
    try:
        return LoraSection.model_validate(said), unsaid
    except ValidationError as error:
        return LoraSection(), [*unsaid, *(f"peft_config.{item['loc'][0]}" for item in error.errors())]
