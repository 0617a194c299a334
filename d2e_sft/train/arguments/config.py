"""D2EConfig: transformers' TrainingArguments with the objective, the wording and the layout; what a recipe says.

A recipe's run is made of one (`D2EConfig.from_recipe`), so that both give the same run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import BaseModel, ValidationError
from transformers import TrainingArguments

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.config.objectives import D2ESection
from d2e_sft.config.recipe import Recipe, load_recipe
from d2e_sft.config.sections import DataSection, EvalSection, LoraSection, ModelSection, TrainSection
from d2e_sft.data.sample import describe_validation_error
from d2e_sft.model.micro_batch import checkpointing_argument
from d2e_sft.train.prepare import accumulation_steps, automatic_precision
from d2e_sft.util.distributed import asked_for
from d2e_sft.util.errors import UserError

_PRECISION_OF_LAUNCHER = "ACCELERATE_MIXED_PRECISION"
_SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelSection,
    "data": DataSection,
    "d2e": D2ESection,
    "train": TrainSection,
    "eval": EvalSection,
}
# Argument → the key of a recipe that says the same in the same values.
SAME_IN_RECIPE = {
    "output_dir": "train.output_dir",
    "seed": "train.seed",
    "num_train_epochs": "train.epochs",
    "micro_batch_tokens": "train.micro_batch_tokens",
    "learning_rate": "train.learning_rate",
    "lr_scheduler_type": "train.lr_scheduler",
    "warmup_steps": "train.warmup_ratio",
    "weight_decay": "train.weight_decay",
    "optim": "train.optim",
    "max_grad_norm": "train.max_grad_norm",
    checkpointing_argument(): "train.gradient_checkpointing",
    "compile_layers": "train.compile",
    "logging_steps": "train.logging_steps",
    "save_total_limit": "train.save_total_limit",
    "project": "train.project",
    "packing": "train.packing",
    "sample_predictions": "train.sample_predictions",
    "load_best_model_at_end": "train.load_best_model_at_end",
    "metric_for_best_model": "train.metric_for_best_model",
    "greater_is_better": "train.greater_is_better",
    "early_stopping_patience": "train.early_stopping_patience",
    "early_stopping_threshold": "train.early_stopping_threshold",
    "use_liger_kernel": "train.liger_kernel",
    "attention": "model.attention",
    "prompt_set": "data.prompt_set",
    "max_length": "data.max_length",
    "overlong": "data.overlong",
    "decoding_alpha": "eval.alpha",
    "max_new_tokens": "eval.max_new_tokens",
    **{name: f"d2e.{name}" for name in D2ESection.model_fields},
}
# Said in other words there, or by what is done with the run.
_OTHERWISE_IN_RECIPE = {
    "per_device_train_batch_size",
    *("gradient_accumulation_steps", "max_steps", "bf16", "fp16", "save_strategy", "save_steps", "eval_strategy"),
    *("eval_steps", "report_to", "run_name", "data_seed", "gradient_checkpointing", "per_device_eval_batch_size"),
    *("restore_callback_states_from_checkpoint", "dataloader_pin_memory", "ddp_backend"),
    *("disable_tqdm", "do_train", "do_eval", "use_cpu", "local_rank", "hub_token", "model_init_kwargs"),
}
LESS_IS_BETTER = {"loss", "ce", "kl", "refined_ce", "imagined_ce", "bias_share", "habit_gap"}
_LOADING = {
    "dtype": "dtype",
    "torch_dtype": "dtype",
    "attn_implementation": "attention",
    "quantization_config": "quantization",
}


def _default(name: str) -> Any:
    """A recipe's default, so that both have the same."""
    section, _, key = SAME_IN_RECIPE[name].partition(".")
    return _SECTIONS[section].model_fields[key].default


@dataclass
class D2EConfig(TrainingArguments):
    """What a `D2ETrainer` trains by: every argument of transformers' TrainingArguments, and those below.

    Defaults are a recipe's, so some differ from transformers': learning rate 1e-5, cosine after a warm-up over a tenth
    of the steps (`warmup_steps` below 1 is a share), 64 samples a step (8 × 8), no checkpoints, seed 0. The page
    docs/python.md has the key of a recipe for each argument; `d2e recipes explain KEY` says what it means.

    Args:
        bf16: None chooses bfloat16 where the device is fast in it.
        logging_nan_inf_filter: None filters in float16 alone, where the scaler leaves a step with a NaN out.
        objective, alpha, debias, distill, kl_weight, kl_direction, view_gradients, product_weight, imagined_weight,
            alpha_weight, own_views: the section `d2e`; None is the objective's own default.
        prompt_set, max_length, overlong: the wording, and the tokens of the longest view.
        packing, attention: how a micro-batch is laid out, see `choose_layout`.
        micro_batch_tokens: micro-batches by tokens, see `D2ETrainer`.
        compile_layers: torch.compile of each layer (in place of `torch_compile`, which would compile the whole model
            and with it the packing).
        sample_predictions: held-out rows that are decoded at each evaluation, for `eval_em` and `eval_f1`.
        metric_for_best_model: any value of an evaluation, with or without `eval_`.
        early_stopping_patience, early_stopping_threshold: stop after so many evaluations without a better value.
        use_liger_kernel: Liger's kernels but those of the loss.
        decoding_alpha, max_new_tokens: how they, and the run by `d2e eval`, are decoded.
        model_init_kwargs: for a model that is given by name: `dtype`, `attn_implementation`, `quantization_config`.

    Raises:
        UserError: an argument that cannot be had here, with the reason.
    """

    seed: int = _default("seed")
    learning_rate: float = _default("learning_rate")
    num_train_epochs: float = _default("num_train_epochs")
    gradient_accumulation_steps: int = 8
    lr_scheduler_type: str = _default("lr_scheduler_type")
    warmup_steps: float = _default("warmup_steps")
    optim: str = _default("optim")
    logging_steps: float = _default("logging_steps")
    logging_first_step: bool = True
    logging_nan_inf_filter: bool | None = None
    save_strategy: str = "no"
    save_total_limit: int | None = _default("save_total_limit")
    bf16: bool | None = None
    remove_unused_columns: bool | None = False  # the batch holds views and answers, not the model's own columns
    project: str = _default("project")
    objective: str = _default("objective")
    alpha: float = _default("alpha")
    debias: bool | None = None
    distill: bool | None = None
    kl_weight: float = _default("kl_weight")
    kl_direction: str = _default("kl_direction")
    view_gradients: str | None = None
    product_weight: float = _default("product_weight")
    imagined_weight: float | None = None
    alpha_weight: str = _default("alpha_weight")
    own_views: list[str] | None = None
    prompt_set: str = _default("prompt_set")
    max_length: int = _default("max_length")
    overlong: str = _default("overlong")
    packing: str = _default("packing")
    attention: str | None = None
    micro_batch_tokens: int | None = None
    compile_layers: bool = False
    sample_predictions: int = _default("sample_predictions")
    early_stopping_patience: int | None = None
    early_stopping_threshold: float = _default("early_stopping_threshold")
    decoding_alpha: float | None = None
    max_new_tokens: int = _default("max_new_tokens")
    model_init_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Settle precision and device as training from a recipe does, then as transformers does."""
        self._given = {
            one.name for one in fields(self) if one.default is not MISSING and getattr(self, one.name) != one.default
        }
        self._refuse()
        self.d2e  # noqa: B018  (a wrong objective is said now)
        if self.bf16 is None:
            self.bf16 = not self.fp16 and automatic_precision() == "bfloat16"
        if self.logging_nan_inf_filter is None:  # else a NaN must be seen, not replaced by the running mean
            self.logging_nan_inf_filter = bool(self.fp16)
        on_cpu, deepspeed = not torch.accelerator.is_available(), asked_for("DEEPSPEED")
        # TrainingArguments takes bfloat16 without an accelerator only when told that the CPU is meant; under DeepSpeed
        # that is not to be said (see process_state).
        self.use_cpu = getattr(self, "use_cpu", False) or (on_cpu and not deepspeed)
        if on_cpu:
            self.dataloader_pin_memory = False
            self.ddp_backend = getattr(self, "ddp_backend", None) or ("gloo" if deepspeed else None)
        if self.early_stopping_patience is not None or self.load_best_model_at_end:
            self._choose_the_best()
        data_seed = getattr(self, "data_seed", None)
        self.data_seed = self.seed if data_seed is None else data_seed
        with _not_the_launchers_precision():
            super().__post_init__()
        # One process drives one device: DataParallel would cut a batch across its views.
        self._n_gpu = min(self.n_gpu, 1)

    @property
    def d2e(self) -> D2ESection:
        """The objective."""
        given = {name: getattr(self, name) for name in D2ESection.model_fields if getattr(self, name) is not None}
        try:
            return D2ESection.model_validate(given)
        except ValidationError as error:
            raise UserError(f"D2EConfig: {describe_validation_error(error)}") from None

    @property
    def decoding(self) -> DecodingConfig:
        """How the model is decoded at evaluations."""
        alpha = self.d2e.decoding_alpha if self.decoding_alpha is None else self.decoding_alpha
        return DecodingConfig(alpha=alpha, max_new_tokens=self.max_new_tokens)

    @classmethod
    def from_recipe(cls, recipe: Recipe | str | Path, overrides: Iterable[str] = (), *, processes: int = 1) -> Self:
        """The arguments that a recipe stands for.

        Args:
            recipe: a recipe, its file, or a bundled one's name (`qwen3-0.6b/lora`).
            overrides: `section.key=value`, as on the command line.
            processes: of the run; they share its batch.

        Raises:
            UserError: as `load_recipe`, or processes that do not divide the batch.
        """
        recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, overrides)
        train, content = recipe.train, recipe.model_dump()
        given = {name: content[section][key] for name, (section, _, key) in _split_keys()}
        evaluated = recipe.data.dev is not None or recipe.data.probe is not None
        return cls(
            **given,
            max_steps=train.max_steps or -1,
            gradient_accumulation_steps=accumulation_steps(train, processes),
            per_device_train_batch_size=(
                train.batch_size // processes if train.micro_batch_tokens else train.micro_batch_size
            ),
            per_device_eval_batch_size=train.micro_batch_size,
            bf16={"auto": None, "bfloat16": True}.get(train.precision, False),
            fp16=train.precision == "float16",
            save_strategy="steps" if train.save_steps else "no",
            save_steps=train.save_steps or 500,
            eval_strategy=("steps" if train.eval_steps else "epoch") if evaluated else "no",
            eval_steps=train.eval_steps,
            report_to=train.report_to or "none",
            run_name=Path(train.output_dir).name,
            disable_tqdm=False,
        )

    @classmethod
    def of(cls, args: TrainingArguments) -> Self:
        """The same arguments, where they are transformers' own, with this class's defaults for what they lack."""
        if isinstance(args, cls):
            return args
        return cls(**{one.name: getattr(args, one.name) for one in fields(args) if one.init})

    def to_recipe(
        self,
        model: str,
        train: str,
        dev: str | None = None,
        lora: LoraSection | None = None,
        probe: str | None = None,
    ) -> tuple[Recipe, list[str]]:
        """The recipe of a run with these arguments, and what of them no key of a recipe can say.

        Args:
            model: its name.
            train, dev, probe: files of the rows.
            lora: its adapter.
        """
        content: dict[str, dict[str, Any]] = {
            "model": {"name": model, "lora": lora},
            "data": {"train": train, "dev": dev, "probe": probe},
        }
        for name, (section, _, key) in _split_keys():
            value = getattr(self, name)
            if value is not None or section not in ("d2e", "train"):
                content.setdefault(section, {})[key] = getattr(value, "value", value)
        steps = {
            "save_steps": (self.save_strategy, self.save_steps),
            "eval_steps": (self.eval_strategy, self.eval_steps),
        }
        at_once = self.per_device_train_batch_size * self.gradient_accumulation_steps * self.world_size
        content["train"] |= {
            "batch_size": at_once,
            "micro_batch_size": self.per_device_eval_batch_size
            if self.micro_batch_tokens
            else self.per_device_train_batch_size,
            "max_steps": self.max_steps if self.max_steps > 0 else None,
            "precision": "bfloat16" if self.bf16 else "float16" if self.fp16 else "float32",
            "report_to": self.report_to,
            **{
                key: value
                for key, (strategy, value) in steps.items()
                if strategy == "steps" and (dev or probe or key == "save_steps")
            },
        }
        unsaid = sorted(self._given - SAME_IN_RECIPE.keys() - _OTHERWISE_IN_RECIPE)
        in_steps = {"eval_steps", "save_steps"} <= content["train"].keys()
        for key, fits in (("load_best_model_at_end", in_steps), ("early_stopping_patience", dev or probe)):
            if content["train"].get(key) and not fits:
                del content["train"][key]
                unsaid.append(f"train.{key}")
        try:
            return Recipe.model_validate(content), unsaid
        except ValidationError as error:
            for section, key in {tuple(map(str, item["loc"][:2])) for item in error.errors() if len(item["loc"]) > 1}:
                del content[section][key]
                unsaid.append(f"{section}.{key}")
            return Recipe.model_validate(content), unsaid

    def loading_options(self) -> dict[str, Any]:
        """`model_init_kwargs` as `load_model` takes them.

        Raises:
            UserError: one that it does not take.
        """
        options = {}
        for name, value in (self.model_init_kwargs or {}).items():
            if name not in _LOADING:
                raise UserError(
                    f"model_init_kwargs: {name!r} is not taken; expected {', '.join(_LOADING)}",
                    remedy="load the model yourself, and give it as `model`",
                )
            options[_LOADING[name]] = str(value).removeprefix("torch.") if _LOADING[name] == "dtype" else value
        return options

    def _choose_the_best(self) -> None:
        self.metric_for_best_model = getattr(self, "metric_for_best_model", None) or "loss"
        if getattr(self, "greater_is_better", None) is None:
            self.greater_is_better = self.metric_for_best_model.removeprefix("eval_") not in LESS_IS_BETTER
        # Else a resumed run would count its evaluations without progress anew.
        self.restore_callback_states_from_checkpoint = self.early_stopping_patience is not None

    def _refuse(self) -> None:
        """Say of arguments that cannot be had why not."""
        reasons = {
            "neftune_noise_alpha": "noise on the embeddings would differ from view to view, and what is subtracted "
            "must have seen the same embeddings",
            "label_smoothing_factor": "the objective is the loss",
            "torch_compile": "it compiles the whole model and with it the packing; set compile_layers=True",
        }
        for name, reason in reasons.items():
            if getattr(self, name):
                raise UserError(f"D2EConfig: {name}={getattr(self, name)} cannot be had: {reason}")
        if self.use_liger_kernel and find_spec("liger_kernel") is None:
            raise UserError(
                "use_liger_kernel (train.liger_kernel): the package liger-kernel is not installed",
                remedy="pip install liger-kernel, or leave it off",
            )


def _split_keys() -> list[tuple[str, tuple[str, str, str]]]:
    return [(name, key.partition(".")) for name, key in SAME_IN_RECIPE.items()]


@contextmanager
def _not_the_launchers_precision() -> Iterator[None]:
    """The arguments decide alone, where transformers takes the launcher's precision over float32."""
    of_launcher = os.environ.pop(_PRECISION_OF_LAUNCHER, None)
    try:
        yield
    finally:
        if of_launcher is not None:
            os.environ[_PRECISION_OF_LAUNCHER] = of_launcher
