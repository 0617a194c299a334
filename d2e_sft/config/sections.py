"""The sections of a recipe, except `d2e`; the string below a key is its text in `d2e recipes explain` and the docs."""

import os
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from d2e_sft.config.decoding import MAX_ALPHA

Overlong = Literal["error", "drop", "truncate_context"]
Precision = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["4bit", "8bit"]
Packing = Literal["auto", "shared_batch", "shared_prefix", "batched"]
Tracker = Literal["wandb", "tensorboard", "trackio", "mlflow", "comet_ml", "clearml", "swanlab"]
# transformers' optimisers without further settings; the packages that some need are in `d2e_sft.train.checks`.
Optimizer = Literal[
    "adamw_torch_fused", "adamw_torch", "adafactor", "sgd", "adagrad", "rmsprop",
    "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit", "lion_32bit", "lion_8bit", "paged_lion_32bit",
    "paged_lion_8bit", "ademamix", "ademamix_8bit", "adamw_torch_8bit", "adamw_torch_4bit",
    "schedule_free_adamw", "schedule_free_sgd", "stable_adamw", "grokadamw",
]  # fmt: skip
# peft's methods that need only the weights; eva, corda and loftq also need data or other weights.
LoraStart = Literal["gaussian", "orthogonal", "pissa", "olora"]
# `~` is expanded once, here: some libraries expand it and some do not, which would split a run over two folders.
UserPath = Annotated[str, AfterValidator(os.path.expanduser)]


class RecipeSection(BaseModel):
    """A section of a recipe; unknown keys, NaN and infinity are errors."""

    model_config = ConfigDict(
        extra="forbid",
        validate_default=True,
        protected_namespaces=(),
        allow_inf_nan=False,
        use_attribute_docstrings=True,  # the text below a key documents it, see `reference`
    )

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Python's True equals 1, so `alpha: true` would be taken for a number."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and bool not in (kind, *get_args(kind)):
            raise PydanticCustomError("truth_value", "expected no truth value")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _text_has_no_nul(cls, value: Any) -> Any:
        """No path may contain it, and no other text needs it."""
        if isinstance(value, str) and "\0" in value:
            raise PydanticCustomError("nul", "expected text without the character NUL")
        return value


class LoraSection(RecipeSection):
    """Low-rank adapters, trained instead of the full weights (peft's LoraConfig)."""

    r: int = Field(default=16, ge=1, le=4096)
    """The rank of each adapter."""
    lora_alpha: int = Field(default=32, ge=1)
    """Scaling: an adapter's output is multiplied by lora_alpha / r (by lora_alpha / √r with `use_rslora`)."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the input of an adapter."""
    target_modules: str | list[str] = "all-linear"
    """Layers that get an adapter: their names, or `all-linear`."""
    modules_to_save: list[str] | None = None
    """Modules that are trained in full and saved with the adapters, for example `[lm_head]`."""
    use_dora: bool = False
    """Weight-decomposed adapters (DoRA, arXiv 2402.09353)."""
    use_rslora: bool = False
    """Rank-stabilised scaling, lora_alpha / √r instead of lora_alpha / r (arXiv 2312.03732)."""
    init_lora_weights: bool | LoraStart = True
    """Initialisation: `true` (A random, B zero), `false` (both random), or the name of a peft method."""


class ModelSection(RecipeSection):
    """Which model is trained, and whether all of it is."""

    name: str = "builtin:smollm2-135m-instruct"
    """A Hub name, a folder (a model, an adapter or a finished run), or `builtin:smollm2-135m-instruct`."""
    weights: Literal["pretrained", "random"] = "pretrained"
    """`random` uses only the model's architecture and tokenizer; weights are initialised with `train.seed`."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Storage type of the weights; `train.bf16` and `train.fp16` choose the precision of computation."""
    attention: str | None = None
    """transformers' attention implementation for packed rows; null chooses the fastest that is exact."""
    lora: LoraSection | None = None
    """Adapters instead of full fine-tuning; `{}` takes every default, null trains all weights."""
    quantization: Quantization | None = None
    """Keep the base weights in 4 or 8 bits while adapters are trained (QLoRA); needs `model.lora`."""

    @model_validator(mode="after")
    def _quantised_weights_need_an_adapter(self) -> Self:
        if self.quantization is not None and self.lora is None:
            raise ValueError(
                f"model.quantization={self.quantization} needs model.lora, as quantised weights cannot be trained "
                "themselves; set model.lora={} for the default adapter"
            )
        return self


class DataSection(RecipeSection):
    """Training rows and how they become tokens."""

    train: UserPath
    """Training rows: a `.parquet` or `.jsonl` file of EventSample rows, or a Hub dataset (`hf:OWNER/NAME`). A Hub
    dataset may also have `messages`, or `context`, `question` and `answer`."""
    dev: UserPath | None = None
    """Held-out rows for evaluations during training; see `train.eval_steps`."""
    probe: UserPath | None = None
    """Rows of the subsets aligned and conflict, which show during training whether the model uses the context."""
    prompt_set: UserPath = "default"
    """Wording of prompts and answers: the name of a bundled set, or a YAML file."""
    form: Literal["chat", "completion"] = "chat"
    """Prompts by the model's chat template, or as one text that is continued: for base models without a template."""
    end_of_turn: Literal["token", "template"] = "token"
    """What ends a trained answer: the end-of-turn token, or all that the chat template writes after an answer.

    `template` is TRL's way. For ChatML it trains a line break too, which is never generated."""
    without_context: bool = False
    """Leave the contexts out, as `d2e eval --without-context` does: the baseline that sees questions only (`sft`)."""
    max_samples: int | None = Field(default=None, ge=1)
    """Maximum number of training rows, taken evenly from the datasets; null takes all."""
    balance: float | None = Field(default=None, gt=0, lt=1)
    """Share of conflict rows among the aligned and conflict rows of an epoch, which repeats the rarer ones; null shows
    each row once."""
    max_dev_samples: int | None = Field(default=None, ge=1)
    """Maximum number of rows of `data.dev`."""
    max_probe_samples: int | None = Field(default=None, ge=2)
    """Maximum number of rows of `data.probe`, half from each subset."""
    max_length: int = Field(default=1024, ge=8)
    """Maximum tokens of a view, prompt and answer together."""
    overlong: Overlong = "error"
    """How to treat longer rows: stop, drop them, or cut the end of their contexts; answers are never cut."""
    skip_bad: bool = False
    """Skip rows that break the schema (counted, and kept in `_bad_rows.jsonl`) instead of stopping."""


class TrainSection(RecipeSection):
    """Optimisation, evaluation during training, and what is saved.

    Keys are arguments of transformers' TrainingArguments, with the same meaning, and a few of our own: `batch_size`,
    `micro_batch_tokens`, `rows_per_context`, `packing`, `compile_layers`, `sample_predictions`, `early_stopping_*`.
    """

    output_dir: UserPath
    """The run folder: model, resolved recipe, checkpoints, log and evaluations."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seeds the order of rows, adapter initialisation, dropout and `data.max_samples`."""
    num_train_epochs: float = Field(default=3.0, gt=0, le=10_000)
    """Epochs: passes over the training rows."""
    max_steps: int = Field(default=-1, ge=-1, le=10**9)
    """Optimiser steps; overrides `train.num_train_epochs` when above 0."""
    batch_size: int = Field(default=64, ge=1)
    """Global batch: samples per optimiser step, over all processes and micro-batches."""
    per_device_train_batch_size: int = Field(default=8, ge=1)
    """Micro-batch size: samples per forward pass on a process; less where a process's share of the batch needs it."""
    per_device_eval_batch_size: int | None = Field(default=None, ge=1)
    """Samples per forward pass in evaluations; null uses `train.per_device_train_batch_size`."""
    micro_batch_tokens: int | None = Field(default=None, ge=8)
    """Split a step into micro-batches of at most this many tokens instead of a fixed number of samples."""
    rows_per_context: int = Field(default=1, ge=1)
    """How many rows with the same context a step takes together at most, to compute it once; 1 draws rows singly."""
    learning_rate: float = Field(default=1e-5, gt=0)
    """Peak learning rate, reached after the warm-up."""
    lr_scheduler_type: Literal["cosine", "linear", "constant", "constant_with_warmup"] = "cosine"
    """Learning rate schedule after the warm-up."""
    warmup_steps: float = Field(default=0.1, ge=0)
    """Steps in which the learning rate rises from 0; below 1, the warm-up ratio: a share of all steps."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay, on all weights except biases and norms."""
    optim: Optimizer = "adamw_torch_fused"
    """The optimiser; 8-bit ones need bitsandbytes."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are clipped to this norm."""
    bf16: bool | None = None
    """Mixed precision in bfloat16; null uses it where the device multiplies it in hardware, false is float32."""
    fp16: bool = False
    """Mixed precision in float16, over float32 weights, with a gradient scaler; needs CUDA."""
    packing: Packing = "auto"
    """Layout of a micro-batch; `auto` shares all prefixes where that is exact, otherwise it batches the views."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, the same gradients."""
    compile_layers: bool = False
    """Apply torch.compile to each layer."""
    use_liger_kernel: bool = False
    """Use Liger's kernels for norms, MLPs and positions (the loss stays the objective's); needs a GPU."""
    logging_steps: int = Field(default=10, ge=1)
    """Steps between logs."""
    save_steps: int | None = Field(default=None, ge=1)
    """Steps between checkpoints; null writes none, and the run cannot be resumed."""
    save_total_limit: int = Field(default=2, ge=1)
    """How many checkpoints are kept, the newest ones."""
    eval_steps: int | None = Field(default=None, ge=1)
    """Steps between evaluations on `data.dev` and `data.probe`; null evaluates after each epoch."""
    sample_predictions: int = Field(default=8, ge=0)
    """Held-out samples that are decoded at each evaluation, for `eval_em` and `eval_f1`."""
    load_best_model_at_end: bool = False
    """Keep the checkpoint of the best evaluation and load it at the end; needs `eval_steps` and `save_steps`."""
    metric_for_best_model: str | None = None
    """The evaluation metric to select by: `loss`, `em`, `f1`, `debiased_conflict`, …; null is `loss`."""
    greater_is_better: bool | None = None
    """Whether a higher metric is better; null decides by its name (lower for losses, `bias_share`, `habit_gap`)."""
    early_stopping_patience: int | None = Field(default=None, ge=1)
    """Stop after this many evaluations in a row without improvement; null never stops early."""
    early_stopping_threshold: float = Field(default=0.0, ge=0)
    """Smallest change of the metric that counts as an improvement."""
    report_to: list[Tracker] = Field(default_factory=list)
    """Experiment trackers, also as `wandb,tensorboard`."""
    project: str = "d2e-sft"
    """Project name for the trackers."""

    @field_validator("report_to", mode="before")
    @classmethod
    def _text_is_a_list(cls, value: Any) -> Any:
        if value == "none":  # transformers' word for no tracker
            return []
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.micro_batch_tokens is None and self.batch_size % self.per_device_train_batch_size:
            raise ValueError(
                f"train.batch_size={self.batch_size} is not a multiple of "
                f"train.per_device_train_batch_size={self.per_device_train_batch_size}"
            )
        if self.bf16 and self.fp16:
            raise ValueError("train.bf16=true and train.fp16=true: expected at most one of them")
        return self

    @property
    def precision(self) -> Precision:
        """The dtype of products; `auto` until the device has been asked."""
        if self.fp16:
            return "float16"
        return "auto" if self.bf16 is None else "bfloat16" if self.bf16 else "float32"


def fitting_micro_batch(batch_size: int, at_most: int) -> int:
    """The largest micro-batch that splits a batch into equal parts."""
    return max(size for size in range(1, at_most + 1) if batch_size % size == 0)


def fit_micro_batch(train: dict[str, Any], keys_by_layer: Sequence[Collection[str]]) -> dict[str, Any]:
    """Make the micro-batch smaller where it was set before a batch that it does not divide, or not at all.

    Args:
        train: the values of the section `train`.
        keys_by_layer: the keys that each file and then the command line set.
    """
    batch, size = "batch_size", "per_device_train_batch_size"
    last = {
        key: max((place for place, keys in enumerate(keys_by_layer) if key in keys), default=-1)
        for key in (batch, size)
    }
    values = [train.get(key, TrainSection.model_fields[key].default) for key in (batch, size)]
    if (
        last[batch] <= last[size]
        or train.get("micro_batch_tokens") is not None
        or not all(type(value) is int and value > 0 for value in values)
    ):
        return train
    return {**train, size: fitting_micro_batch(*values)} if values[0] % values[1] else train


class EvalSection(RecipeSection):
    """Defaults of `d2e eval` for the trained run."""

    alpha: float | None = Field(default=None, ge=0, le=MAX_ALPHA, allow_inf_nan=False)
    """The debias ratio of decoding; null takes the objective's: `d2e.alpha`, or 0 where nothing is subtracted."""
    batch_size: int | None = Field(default=None, ge=1)
    """Prompts decoded at a time; null takes as many as fit the memory, up to 64."""
    max_new_tokens: int = Field(default=64, ge=1)
    """Maximum tokens of an answer."""
    cot_max_new_tokens: int = Field(default=512, ge=1)
    """Maximum tokens of an answer in the chain-of-thought setting."""
    max_samples: int | None = Field(default=None, ge=1)
    """Maximum number of samples per dataset × relation × format; null takes all."""
