"""D2EConfig: transformers' TrainingArguments, with the keys of a recipe as further arguments.

A key is defined once, in `d2e_sft/config`: its name, type, default, limits and meaning. `D2EConfig.recipe` holds the
keys' values as a recipe; the trainer reads them there, and writes it into the run folder.
"""

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, get_type_hints

import torch
from pydantic import ValidationError
from transformers import TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig
from transformers.utils import is_liger_kernel_available

from d2e_sft.config.d2e import D2ESection
from d2e_sft.config.functions import refuse_function
from d2e_sft.config.objectives import OF_THE_OBJECTIVE
from d2e_sft.config.recipe import Recipe, load_recipe
from d2e_sft.config.sections import fit_micro_batch
from d2e_sft.model.forward import checkpointing_argument
from d2e_sft.train.checks import accumulation_steps, loads_whole_steps, shared_micro_batch
from d2e_sft.train.prepare import precision_for
from d2e_sft.util.distributed import (
    asked_for,
    process_state,
    refuse_without_deepspeed,
    wait_for_gloo_at_exit,
    without_launcher_precision,
)
from d2e_sft.util.errors import UserError, describe_problem, did_you_mean, shortened
from d2e_sft.util.files import load_json
from d2e_sft.util.signals import end_with_parent
from d2e_sft.util.terminal import say

# Arguments from sections that have keys of the model and its files, too; one has another name than its key.
_FROM_OTHER_SECTIONS = {
    "attention": ("model", "attention"),
    **{key: ("data", key) for key in ("prompt_set", "form", "max_length", "overlong", "end_of_turn", "balance")},
    "decoding_alpha": ("eval", "alpha"),
    "max_new_tokens": ("eval", "max_new_tokens"),
}
_SECTIONS: Any = {name: key.annotation for name, key in Recipe.model_fields.items()}
# Argument → the section and name of its key.
KEYS = {key: (section, key) for section in ("train", "d2e") for key in _SECTIONS[section].model_fields}
KEYS |= _FROM_OTHER_SECTIONS
LESS_IS_BETTER = {"loss", "ce", "kl", "refined_ce", "imagined_ce", "preference", "bias_share", "habit_gap"}
FROM_TRL = "see docs/how-to/from-trl.md for what replaces an argument of TRL"
_UNSUPPORTED = {
    "neftune_noise_alpha": "its noise differs from view to view, and the subtraction needs equal embeddings",
    "label_smoothing_factor": "the objective defines the loss",
    "torch_compile": "it compiles the whole model and with it the packing; set compile_layers=True",
    "batch_eval_metrics": "compute_metrics gets the answers of all rows at once",
    "include_for_metrics": "compute_metrics gets answers and references in the order of the rows",
    "auto_find_batch_size": "it would change the samples of a step; lower per_device_train_batch_size, which does not",
}
_BY_LENGTH = ("group_by_length", "batch_rebalance")
_DRAWS = ("balance", "micro_batch_tokens", "rows_per_context")  # our own loader draws the rows
# Arguments that follow from recipe keys, or that do not change what is trained.
_NOT_RECORDED = {
    *("gradient_accumulation_steps", "save_strategy", "eval_strategy", "run_name", "activation_checkpointing"),
    *("restore_callback_states_from_checkpoint", "dataloader_pin_memory", "ddp_backend", "disable_tqdm", "do_train"),
    *("do_eval", "use_cpu", "local_rank", "hub_token", "model_init_kwargs", "overwrite_output_dir"),
    *("completion_only_loss", "logging_first_step", "logging_nan_inf_filter"),
    "assistant_only_loss",  # kept in the rows
}
_OF_BATCH = ("gradient_accumulation_steps", "per_device_train_batch_size")
# TRL's, for what the trainer does with all rows; so its truth value of `packing` says nothing either.
_DONE_ANYWAY = ("padding_free", "shuffle_dataset", "dataset_num_proc")
_UNSET: tuple[Any, ...] = (None, False, "", [], {}, AcceleratorConfig())  # no value, as it is given or resolved
_NO_LIMIT = 2**20  # tokens, for max_length=None, which means no limit in TRL
_GATHER = "stage3_gather_16bit_weights_on_model_save"
_OVER_TOKENS = "it divides a row's tokens over processes, and the views of a packed row share prefixes"
_OVER_ROWS = "processes that share a layer need the same rows, and each process gets rows of its own"
_PARALLELISM = {
    "cp": ("context parallelism", _OVER_TOKENS),
    "sp": ("sequence parallelism", _OVER_TOKENS),
    "tp": ("tensor parallelism", _OVER_ROWS),
}


def check_names(owner: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise UserError for the arguments that `owner` does not have."""
    if strangers := [name for name in names if name not in known]:
        hints = "".join(did_you_mean(name, known) for name in strangers)
        plural = "s" * (len(strangers) > 1)
        raise UserError(f"{owner}: has no argument{plural} {', '.join(strangers)}.{hints}", FROM_TRL)


def _hand_to_accelerate(deepspeed: str | dict[str, Any]) -> None:
    """Configure DeepSpeed by a JSON file, its text or a dict, as `accelerate launch` would have done.

    transformers fills in the values `auto` from its arguments before it knows the number of processes, by which a
    global batch is divided. In accelerate's way it does so later.
    """
    config: Any = deepspeed
    try:
        if isinstance(deepspeed, str):
            config = load_json(deepspeed if deepspeed.startswith("{") else Path(deepspeed).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"D2EConfig: deepspeed={deepspeed!r}: {error}", "give DeepSpeed's JSON file, or its content as a dict"
        ) from None
    content = json.dumps({"gradient_accumulation_steps": "auto", **config})
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    os.environ["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = base64.urlsafe_b64encode(content.encode()).decode()


def _key_fields() -> Iterator[tuple[str, Any, Any]]:
    """The keys as fields of a dataclass; None is a default that the objective sets."""
    theirs = get_type_hints(TrainingArguments)
    for name, (section, key) in KEYS.items():
        info = _SECTIONS[section].model_fields[key]
        if not info.is_required() and info.default_factory is None:
            kind: Any = theirs.get(name, list[str] if isinstance(info.default, list) else info.annotation)
            default = None if name in OF_THE_OBJECTIVE or isinstance(info.default, list) else info.default
            meaning = (info.description or "").replace("%", "%%")  # argparse formats it
            yield name, kind | None, field(default=default, metadata={"help": meaning})


# A type checker sees a base class of type Any, since recipe keys are known at run time only.
_Keys: Any = make_dataclass("_Keys", _key_fields(), bases=(TrainingArguments,))


@dataclass
class D2EConfig(_Keys):
    """Arguments of a `D2ETrainer`: those of transformers' TrainingArguments, recipe keys, and those below.

    Recipe keys are those of the sections `train` and `d2e`, and keys of other sections, with a recipe's defaults;
    `d2e recipes explain KEY` describes each.

    Args:
        batch_size: Global batch; `gradient_accumulation_steps` follows from it. An explicit
            `gradient_accumulation_steps` determines the global batch instead; given with another `batch_size`, it is
            refused.
        max_length: None means no limit, as in TRL.
        per_device_train_batch_size: A micro-batch is the largest divisor of a process's share up to this.
            Given with `batch_size`, it must divide that.
        logging_nan_inf_filter: None filters in float16 only, where the scaler skips a step with a NaN.
        save_strategy, eval_strategy: None derives them from `save_steps` and `eval_steps`. With
            `load_best_model_at_end` and neither `save_strategy` nor `save_steps`, each evaluation saves a checkpoint.
        objective … own_views: The section `d2e`; None is the objective's own default.
        decoding_alpha: The key `eval.alpha`.
        overwrite_output_dir: Remove an earlier run in `output_dir` as training begins; otherwise it is refused.
        assistant_only_loss: As in TRL, train on all assistant turns of `messages`; otherwise on the last one.
        completion_only_loss: TRL's; False is refused, since the loss is on the answer only.
        model_init_kwargs: For a model given by name: `dtype`, `attn_implementation`, `quantization_config`.

    Attributes:
        recipe: The values of all keys; the trainer adds the model and the files of rows.
        left_out: Arguments with a value that no recipe can have.
        evaluates_by_default: held-out rows are evaluated after each epoch: no argument says when.

    Raises:
        UserError: An unsupported argument, with the reason, or a batch that the processes cannot share. It names
            the argument and its key in a recipe (`section.key`).
    """

    gradient_accumulation_steps: int | None = None
    logging_first_step: bool = True
    logging_nan_inf_filter: bool | None = None
    save_strategy: str | None = None
    eval_strategy: str | None = None
    run_name: str | None = None
    data_seed: int | None = None
    use_cpu: bool = False
    ddp_backend: str | None = None
    model_init_kwargs: dict[str, Any] | None = None
    assistant_only_loss: bool = False
    completion_only_loss: bool | None = None
    overwrite_output_dir: bool = False

    def __new__(cls, *args: Any, **arguments: Any) -> Self:
        names = [argument.name for argument in fields(cls) if argument.init]
        check_names("D2EConfig", arguments, names)
        config: Self = super().__new__(cls)
        # A parser of command lines gives all arguments, also those that the user left out.
        config.has_own_batch = "batch_size" in arguments and len(arguments) < len(names)
        config.fits_micro_batch = "per_device_train_batch_size" not in arguments
        return config

    def __post_init__(self: Any) -> None:
        """Resolve arguments that depend on others, on the device or on the number of processes."""
        self._reject_unsupported()
        if self.deepspeed:
            _hand_to_accelerate(self.deepspeed)
        self.evaluates_by_default = self.eval_strategy is None and self.eval_steps is None
        if not hasattr(self, "recipe"):  # `from_recipe` has one
            self.recipe = self._as_recipe()
        self.batch_size = self.recipe.train.batch_size
        self.per_device_train_batch_size = self.recipe.train.per_device_train_batch_size
        self.bf16 = self.recipe.train.bf16 = precision_for(self.recipe) == "bfloat16"
        if self.logging_nan_inf_filter is None:  # otherwise a NaN must be seen, not replaced by the running mean
            self.logging_nan_inf_filter = bool(self.fp16)
        setattr(self, checkpointing_argument(), self.recipe.train.gradient_checkpointing)
        self.eval_strategy = self.eval_strategy or ("steps" if self.eval_steps else "no")
        saves_best = self.load_best_model_at_end and self.save_strategy is None and not self.save_steps
        usual = self.eval_strategy if saves_best else "steps" if self.save_steps else "no"
        self.save_strategy = self.save_strategy or usual
        self.save_steps = self.save_steps or ((self.eval_steps or self.logging_steps) if saves_best else 500)
        self.run_name = self.run_name or Path(self.output_dir or "").name
        self.remove_unused_columns = False  # the batch holds views and answers, not the model's own columns
        self.data_seed = self.seed if self.data_seed is None else self.data_seed
        if self.early_stopping_patience is not None or self.load_best_model_at_end:
            self.metric_for_best_model = self.metric_for_best_model or "loss"
            if self.greater_is_better is None:
                name = f"_{self.metric_for_best_model.removeprefix('eval_')}"  # of one of several sets: `SET_loss`
                self.greater_is_better = not name.endswith(tuple(f"_{less}" for less in LESS_IS_BETTER))
            # Otherwise a resumed run would restart the count of evaluations without improvement.
            self.restore_callback_states_from_checkpoint = self.early_stopping_patience is not None
        end_with_parent()  # in a script that `accelerate launch` starts
        self._choose_device()
        of_deepspeed, self.deepspeed = self.deepspeed, None
        with without_launcher_precision():
            super().__post_init__()
        self.deepspeed = of_deepspeed
        refuse_without_deepspeed(self.distributed_state)
        if getattr(self.deepspeed_plugin, "zero_stage", 0) == 3:  # a run folder holds a whole model
            self.deepspeed_plugin.deepspeed_config["zero_optimization"][_GATHER] = True
        if self.world_size > 1:
            wait_for_gloo_at_exit()
        self._n_gpu = min(self.n_gpu, 1)  # one process drives one device: DataParallel would split across views
        self._share_batch()

    @property
    def d2e(self) -> D2ESection:
        section: D2ESection = self.recipe.d2e
        return section

    @classmethod
    def from_recipe(cls, recipe: Recipe | str | Path, overrides: Iterable[str] = ()) -> Self:
        """Take the arguments from a recipe, its file, or the name of a bundled one (`qwen3-0.6b/d2e-lora`).

        `overrides` are `section.key=value`, as on the command line. Raises UserError as `load_recipe`, or if the
        processes cannot share the batch.
        """
        recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, overrides)
        config: Any = cls.__new__(cls)
        config.recipe, config.left_out = recipe, []
        values = {name: getattr(getattr(recipe, section), key) for name, (section, key) in KEYS.items()}
        config.__init__(**values, disable_tqdm=False)
        return config

    @classmethod
    def of(cls, args: TrainingArguments, **more: Any) -> Self:
        """Complete transformers' or TRL's arguments with `more` and this class's defaults; `D2EConfig`s are returned.

        The objective of TRL's SFTConfig is `sft`, unless `more` has one. Raises UserError for a changed argument of
        TRL that is not supported.
        """
        if isinstance(args, cls):
            return args
        if not isinstance(args, TrainingArguments):
            raise UserError(f"args: got {args!r:.60}; expected a D2EConfig", 'give D2EConfig("runs/mine", …)')
        known = {argument.name for argument in fields(cls) if argument.init}
        of_sft = "SFTConfig" in (base.__name__ for base in type(args).__mro__)
        values: dict[str, Any] = {"objective": "sft"} if of_sft else {}
        refused = []
        for argument in fields(args):
            value = getattr(args, argument.name) if argument.init else None
            default = argument.default_factory() if argument.default_factory is not MISSING else argument.default
            if (
                not argument.init
                or argument.name in _DONE_ANYWAY
                or (argument.name == "packing" and value in (True, False))
            ):
                continue
            if argument.name in _OF_BATCH and value == default and more.get("batch_size"):
                continue  # it follows from batch_size
            if argument.name in known:
                values[argument.name] = value
            elif value not in (None, default):
                refused.append(f"{argument.name}={shortened(value, 40)}")
        if refused:
            verb = "is" if len(refused) == 1 else "are"
            raise UserError(f"{type(args).__name__}: {', '.join(refused)} {verb} not supported", FROM_TRL)
        if of_sft and "end_of_turn" not in more:
            say(
                f"{type(args).__name__}: end_of_turn is token; for TRL's tokens give "
                f'D2EConfig.of(args, end_of_turn="template")',
                err=True,
            )
        return cls(**values | more)

    @property
    def quiet(self) -> bool:
        """Whether only warnings and errors are printed: without bars, and at a level of logs above warnings."""
        return bool(self.disable_tqdm) and self.log_level in ("error", "critical")

    def _as_recipe(self) -> Recipe:
        """The values of all keys, checked one by one; what depends on rows is checked once they are known."""
        self.left_out: list[str] = [
            argument.name
            for argument in fields(self)
            if argument.init and argument.default is not MISSING and argument.name not in {*KEYS, *_NOT_RECORDED}
            and (value := getattr(self, argument.name)) != argument.default
            and not (argument.default in _UNSET and value in _UNSET)
        ]  # fmt: skip
        content: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
        content["data"]["train"] = "rows"
        for name, (section, key) in KEYS.items():
            value = getattr(self, name)
            if value is not None:
                content[section][key] = getattr(value, "value", value)
        content["data"].setdefault("max_length", _NO_LIMIT)
        train = content["train"] | {"output_dir": str(self.output_dir or "trainer_output")}
        train["gradient_checkpointing"] = bool(getattr(self, checkpointing_argument()) or self.gradient_checkpointing)
        if self.gradient_accumulation_steps is not None:
            processes = int(os.environ.get("WORLD_SIZE", "1"))
            size = self.per_device_train_batch_size
            batch = size * self.gradient_accumulation_steps * processes if size else size
            given, usual = train.get("batch_size", batch), type(self).__dataclass_fields__["batch_size"].default
            if given != batch and (self.has_own_batch or given != usual):
                raise UserError(
                    f"batch_size={given} with gradient_accumulation_steps="
                    f"{self.gradient_accumulation_steps} and per_device_train_batch_size={size} on {processes} "
                    f"process{'es' * (processes > 1)}, which make {batch}",
                    "leave out one of batch_size and gradient_accumulation_steps",
                )
            train["batch_size"] = batch
        elif self.fits_micro_batch:
            train = fit_micro_batch(train, [{"batch_size"}])
        content["train"] = train
        return Recipe.model_construct(**{name: self._section(name, keys) for name, keys in content.items()})

    def _section(self, name: str, values: dict[str, Any]) -> Any:
        """Leave out a value that only transformers accepts; any other wrong one raises UserError."""
        kind, theirs = _SECTIONS[name], TrainingArguments.__dataclass_fields__
        ours = ("per_device_train_batch_size", "save_total_limit", "bf16", "fp16", "gradient_checkpointing")
        try:
            return kind.model_validate(values)
        except ValidationError as error:
            problems = {str((*item["loc"], "")[0]): item for item in error.errors()}
            refused = {key: item for key, item in problems.items() if key not in theirs or key in ours}
            if refused:
                arguments = {key: argument for argument, (section, key) in KEYS.items() if section == name}
                places = {key: f"{arguments.get(key, key)} (in a recipe {name}.{key})" for key in refused}
                texts = [describe_problem({**item, "loc": (places[key], *item["loc"][1:]) if key else ()})
                         for key, item in refused.items()]  # fmt: skip
                raise UserError(f"D2EConfig: {'; '.join(texts)}", FROM_TRL if "packing" in refused else None) from None
            self.left_out += [f"{name}.{key}" for key in problems]
            return kind.model_validate({key: value for key, value in values.items() if key not in problems})

    def _choose_device(self) -> None:
        on_cpu, deepspeed = not torch.accelerator.is_available(), asked_for("DEEPSPEED")
        # TrainingArguments accepts bfloat16 on a CPU only with use_cpu, which DeepSpeed must not see (process_state).
        self.use_cpu = self.use_cpu or (on_cpu and not deepspeed)
        if on_cpu:
            os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed, if imported, guesses it too, with a warning
            self.dataloader_pin_memory = False
            self.ddp_backend = self.ddp_backend or ("gloo" if deepspeed else None)
        if deepspeed:  # `d2e train` has done so; transformers would compile collectives for CPUs
            process_state(patience=timedelta(seconds=self.ddp_timeout))

    def _share_batch(self: Any) -> None:
        """Split the global batch over processes, and set transformers' arguments accordingly."""
        train, processes = self.recipe.train, self.world_size
        self.per_device_eval_batch_size = self.per_device_eval_batch_size or train.per_device_train_batch_size
        self.gradient_accumulation_steps = accumulation_steps(self.recipe, processes)
        self.micro_batch_rows = size = shared_micro_batch(train, processes)
        # The loader yields a process's share of a step at once, or a micro-batch.
        self.per_device_train_batch_size = train.batch_size // processes if loads_whole_steps(self.recipe) else size

    def _reject_unsupported(self: Any) -> None:
        refuse_function("D2EConfig: objective", self.objective)
        for argument in fields(self):
            value, kinds = getattr(self, argument.name, None), set(re.findall(r"\w+", str(argument.type)))
            if isinstance(value, str) and kinds & {"int", "float"} and not kinds & {"str", "dict", "Literal"}:
                raise UserError(f"D2EConfig: {argument.name}: got {value!r}, which is text; expected a number")
        for name, reason in _UNSUPPORTED.items():
            if getattr(self, name):
                raise UserError(f"D2EConfig: {name}={getattr(self, name)} is not supported: {reason}", FROM_TRL)
        order, drawing = self.train_sampling_strategy, [name for name in _DRAWS if (getattr(self, name) or 1) != 1]
        if order in _BY_LENGTH or (order == "sequential" and drawing):
            reason = "views are packed without padding" if order in _BY_LENGTH else f"{drawing[0]} draws the rows"
            raise UserError(f"D2EConfig: train_sampling_strategy={order} is not supported: {reason}", FROM_TRL)
        if self.completion_only_loss is False:
            refused = "D2EConfig: completion_only_loss=False is not supported: the loss is on the answer only"
            raise UserError(refused, FROM_TRL)
        if self.micro_batch_tokens is not None and (self.gradient_accumulation_steps or 1) > 1:
            raise UserError(
                f"D2EConfig: micro_batch_tokens={self.micro_batch_tokens} with gradient_accumulation_steps="
                f"{self.gradient_accumulation_steps}: the number of micro-batches follows from their tokens",
                remedy="leave gradient_accumulation_steps out, and set batch_size to the samples of a step",
            )
        if self.use_liger_kernel and not is_liger_kernel_available():
            raise UserError(
                "train.use_liger_kernel: the package liger-kernel is not installed",
                remedy="pip install liger-kernel, or set it to false",
            )
        of_launcher = os.environ if asked_for("PARALLELISM_CONFIG") else {}
        for short, (name, reason) in _PARALLELISM.items():
            size = getattr(self.parallelism_config, f"{short}_size", None) or 1
            size = max(size, int(of_launcher.get(f"PARALLELISM_CONFIG_{short.upper()}_SIZE", "1")))
            if size > 1:
                raise UserError(
                    f"{name} over {size} processes is not supported: {reason}",
                    remedy="use --launch ddp, fsdp2 or zero3; for long contexts train.gradient_checkpointing=true",
                )
