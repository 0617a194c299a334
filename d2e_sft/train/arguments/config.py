"""D2EConfig: transformers' TrainingArguments with a recipe's keys as arguments, and what `D2ETrainer` needs too."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Any, Self, get_type_hints

import torch
from pydantic import ValidationError
from transformers import TrainingArguments
from transformers.utils import is_liger_kernel_available

from d2e_sft.config.d2e import D2ESection
from d2e_sft.config.functions import refuse_function
from d2e_sft.config.objectives import OF_THE_OBJECTIVE
from d2e_sft.config.recipe import Recipe, load_recipe
from d2e_sft.config.sections import TrainSection, fitting_micro_batch
from d2e_sft.model.forward import checkpointing_argument
from d2e_sft.train.arguments.names import FROM_OTHER_SECTIONS, check_names, check_values, taken_over
from d2e_sft.train.arguments.words import in_pythons_words
from d2e_sft.train.checks import accumulation_steps, loads_whole_steps, shared_micro_batch
from d2e_sft.train.prepare import automatic_precision
from d2e_sft.util.distributed import asked_for, wait_for_gloo_at_exit, without_launcher_precision
from d2e_sft.util.errors import UserError, describe_validation_error
from d2e_sft.util.signals import end_with_parent

LESS_IS_BETTER = {"loss", "ce", "kl", "refined_ce", "imagined_ce", "preference", "bias_share", "habit_gap"}
_UNSUPPORTED = {
    "neftune_noise_alpha": "its noise differs from view to view, and the subtraction needs equal embeddings",
    "label_smoothing_factor": "the objective defines the loss",
    "torch_compile": "it compiles the whole model and with it the packing; set compile_layers=True",
    "batch_eval_metrics": "compute_metrics gets the answers of all rows at once",
    "include_for_metrics": "compute_metrics gets answers and references in the order of the rows",
}

_OVER_TOKENS = "it divides a row's tokens over processes, and the views of a packed row share prefixes"
_PARALLELISM = {
    "cp": ("context parallelism", _OVER_TOKENS),
    "sp": ("sequence parallelism", _OVER_TOKENS),
    "tp": (
        "tensor parallelism",
        "processes that share a layer need the same rows, and each process gets rows of its own",
    ),
}


def _recipe_keys() -> Iterator[tuple[str, Any, Any]]:
    """The keys of `train`, `d2e` and `FROM_OTHER_SECTIONS` as fields; None: a default that the objective sets."""
    sections: Any = Recipe.model_fields
    keys = {**TrainSection.model_fields, **D2ESection.model_fields}
    keys |= {name: sections[part].annotation.model_fields[key] for name, (part, key) in FROM_OTHER_SECTIONS.items()}
    theirs = get_type_hints(TrainingArguments)
    for name, key in keys.items():
        if not key.is_required() and key.default_factory is None:
            kind: Any = theirs.get(name, list[str] if isinstance(key.default, list) else key.annotation)
            default = None if name in OF_THE_OBJECTIVE or isinstance(key.default, list) else key.default
            meaning = (key.description or "").replace("%", "%%")  # argparse formats it
            yield name, kind | None, field(default=default, metadata={"help": meaning})


# A type checker sees a base class of type Any, since recipe keys are known at run time only.
_Keys: Any = make_dataclass("_Keys", _recipe_keys(), bases=(TrainingArguments,))


@dataclass
class D2EConfig(_Keys):
    """Arguments of a `D2ETrainer`: those of transformers' TrainingArguments, recipe keys, and those below.

    Recipe keys are those of the sections `train` and `d2e`, and `FROM_OTHER_SECTIONS`, with a recipe's defaults;
    `d2e recipes explain KEY` describes each.

    Args:
        batch_size: global batch; `gradient_accumulation_steps` follows from it. An explicit
            `gradient_accumulation_steps` determines the global batch instead.
        per_device_train_batch_size: of the divisors of a process's share, a micro-batch is the largest up to this.
            Given with `batch_size`, it must divide that.
        logging_nan_inf_filter: None filters in float16 only, where the scaler skips a step with a NaN.
        save_strategy, eval_strategy: None derives them from `save_steps` and `eval_steps`. With
            `load_best_model_at_end` and neither `save_strategy` nor `save_steps`, each evaluation saves a checkpoint.
        objective … own_views: the section `d2e`; None is the objective's own default.
        decoding_alpha: the key `eval.alpha`.
        overwrite_output_dir: remove an earlier run in `output_dir` as training begins; otherwise it is refused.
        assistant_only_loss: as in TRL, train on all assistant turns of `messages`; otherwise on the last one.
        completion_only_loss: TRL's; False is refused, since the loss is on the answer only.
        model_init_kwargs: for a model given by name: `dtype`, `attn_implementation`, `quantization_config`.

    Raises:
        UserError: an unsupported argument, with the reason, or a batch that the processes cannot share.
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

    def __new__(cls, *args: Any, **given: Any) -> Self:
        check_names("D2EConfig", given, [one.name for one in fields(cls) if one.init])
        made: Self = super().__new__(cls)
        made.fits_micro_batch = "per_device_train_batch_size" not in given
        return made

    @in_pythons_words
    def __post_init__(self: Any) -> None:
        """Resolve arguments that depend on others, on the device or on the number of processes."""
        check_values(self)
        if self.fits_micro_batch and self.gradient_accumulation_steps is None and self.micro_batch_tokens is None:
            self.per_device_train_batch_size = fitting_micro_batch(self.batch_size, self.per_device_train_batch_size)
        self.given = {one.name: getattr(self, one.name) for one in fields(self) if one.init}
        self._reject_unsupported()
        self._reject_parallelism()
        self.d2e  # noqa: B018  (a wrong objective raises here)
        if self.bf16 is None:
            self.bf16 = not self.fp16 and automatic_precision() == "bfloat16"
        if self.logging_nan_inf_filter is None:  # otherwise a NaN must be seen, not replaced by the running mean
            self.logging_nan_inf_filter = bool(self.fp16)
        checkpointing = checkpointing_argument()
        setattr(self, checkpointing, bool(getattr(self, checkpointing) or self.gradient_checkpointing))
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
                self.greater_is_better = self.metric_for_best_model.removeprefix("eval_") not in LESS_IS_BETTER
            # Otherwise a resumed run would restart the count of evaluations without improvement.
            self.restore_callback_states_from_checkpoint = self.early_stopping_patience is not None
        end_with_parent()  # in a script that `accelerate launch` starts
        self._choose_device()
        with without_launcher_precision():
            super().__post_init__()
        if self.world_size > 1:
            wait_for_gloo_at_exit()
        self._n_gpu = min(self.n_gpu, 1)  # one process drives one device: DataParallel would split across views
        self._share_batch()

    @property
    def d2e(self) -> D2ESection:
        """The objective."""
        given = {name: getattr(self, name) for name in D2ESection.model_fields if getattr(self, name) is not None}
        refuse_function("D2EConfig: objective", self.objective)
        try:
            return D2ESection.model_validate(given)
        except ValidationError as error:
            raise UserError(f"D2EConfig: {describe_validation_error(error)}") from None

    @classmethod
    def from_recipe(cls, recipe: Recipe | str | Path, overrides: Iterable[str] = ()) -> Self:
        """The sections of a recipe, its file, or the name of a bundled one (`qwen3-0.6b/d2e-lora`), as arguments.

        `overrides` are `section.key=value`, as on the command line. Raises UserError as `load_recipe`, or if the
        processes cannot share the batch.
        """
        recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, overrides)
        content = recipe.model_dump()
        others = {name: content[section][key] for name, (section, key) in FROM_OTHER_SECTIONS.items()}
        return cls(**content["train"], **content["d2e"], **others, disable_tqdm=False)

    @classmethod
    def of(cls, args: TrainingArguments, **more: Any) -> Self:
        """Complete transformers' or TRL's arguments with `more` and this class's defaults; `D2EConfig`s are returned.

        Raises UserError for a changed argument of TRL that is not supported.
        """
        if isinstance(args, cls):
            return args
        if not isinstance(args, TrainingArguments):
            raise UserError(f"args: got {args!r:.60}; expected a D2EConfig", 'give D2EConfig("runs/mine", …)')
        return cls(**taken_over(args, [one.name for one in fields(cls) if one.init]) | more)

    @property
    def quiet(self) -> bool:
        """Whether only warnings and errors are printed: without bars, and at a level of logs above warnings."""
        return bool(self.disable_tqdm) and self.log_level in ("error", "critical")

    @property
    def evaluates_by_default(self) -> bool:
        """Whether neither `eval_strategy` nor `eval_steps` was given: held-out rows are evaluated after each epoch."""
        return self.given["eval_strategy"] is None and self.given["eval_steps"] is None

    def _choose_device(self) -> None:
        on_cpu, deepspeed = not torch.accelerator.is_available(), asked_for("DEEPSPEED")
        # TrainingArguments accepts bfloat16 on a CPU only with use_cpu, which DeepSpeed must not see (process_state).
        self.use_cpu = self.use_cpu or (on_cpu and not deepspeed)
        if on_cpu:
            os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed, if imported, guesses it too, with a warning
            self.dataloader_pin_memory = False
            self.ddp_backend = self.ddp_backend or ("gloo" if deepspeed else None)

    def _share_batch(self: Any) -> None:
        """Split the global batch over processes, and set transformers' arguments accordingly."""
        size, processes = self.per_device_train_batch_size, self.world_size
        self.per_device_eval_batch_size = self.per_device_eval_batch_size or size
        if self.gradient_accumulation_steps is not None:
            self.batch_size = size * self.gradient_accumulation_steps * processes
        if self.micro_batch_tokens is not None and (self.gradient_accumulation_steps or 1) > 1:
            raise UserError(
                f"micro_batch_tokens={self.micro_batch_tokens} with gradient_accumulation_steps="
                f"{self.gradient_accumulation_steps}: the number of micro-batches follows from their tokens",
                remedy="leave gradient_accumulation_steps out, and set batch_size to the samples of a step",
            )
        self.gradient_accumulation_steps = accumulation_steps(self, processes)
        self.micro_batch_rows = size = shared_micro_batch(self, processes)
        # The loader yields a process's share of a step at once, or a micro-batch.
        self.per_device_train_batch_size = self.batch_size // processes if loads_whole_steps(self) else size

    def _reject_unsupported(self) -> None:
        for name, reason in _UNSUPPORTED.items():
            if getattr(self, name):
                raise UserError(f"D2EConfig: {name}={getattr(self, name)} is not supported: {reason}")
        if self.completion_only_loss is False:
            raise UserError("D2EConfig: completion_only_loss=False is not supported: the loss is on the answer only")
        if self.use_liger_kernel and not is_liger_kernel_available():
            raise UserError(
                "train.use_liger_kernel: the package liger-kernel is not installed",
                remedy="pip install liger-kernel, or set it to false",
            )

    def _reject_parallelism(self) -> None:
        of_launcher = os.environ if asked_for("PARALLELISM_CONFIG") else {}
        for short, (name, reason) in _PARALLELISM.items():
            given = getattr(self.parallelism_config, f"{short}_size", None) or 1
            size = max(given, int(of_launcher.get(f"PARALLELISM_CONFIG_{short.upper()}_SIZE", "1")))
            if size > 1:
                raise UserError(
                    f"{name} over {size} processes is not supported: {reason}",
                    remedy="use --launch ddp, fsdp2 or zero3; for long contexts train.gradient_checkpointing=true",
                )
