"""Load and encode what a `D2ETrainer` is given: model, tokenizer and rows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, get_args

from transformers import set_seed
from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from transformers.utils import logging

from d2e_sft.config.sections import ModelSection
from d2e_sft.data.conversation import Loss
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.rows import is_row, samples_of
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.attention.registry import BY_BRANCH
from d2e_sft.model.forward import expect_of_transformers
from d2e_sft.model.loading import LoadedModel, load_model, load_tokenizer
from d2e_sft.objective.objectives import function_of
from d2e_sft.train.arguments.config import D2EConfig
from d2e_sft.train.arguments.token_rows import check_token_rows
from d2e_sft.train.checks import check_optimizer, count_steps
from d2e_sft.train.prepare import wrapped_in_adapter
from d2e_sft.train.rows import TokenRows, encode_rows
from d2e_sft.util.errors import UserError
from d2e_sft.util.startup import bars_if_slow
from d2e_sft.util.terminal import quietly, say

_LOADING = {
    "dtype": "dtype",
    "torch_dtype": "dtype",
    "attn_implementation": "attention",
    "quantization_config": "quantization",
}
_DTYPES = get_args(ModelSection.model_fields["dtype"].annotation)
Refiner = Callable[[list[EventSample]], list[EventSample]]


def refined_by_rule(samples: list[EventSample]) -> list[EventSample]:
    """Add refined contexts by the rule of `d2e data build`, imported by name as this package must not depend on it."""
    rules = importlib.import_module("data_builders.refine.rules")
    found: list[EventSample] = rules.refine_samples(samples, rules.RefinerOptions())
    return found


class UserInputs:
    """Model and rows, ready for transformers' Trainer.

    Args:
        loaded: the model, in its adapter if it has one, and its tokenizer; None if rows are tokens.
        name: the model's name.
        rows, held_out, refiner: as of `D2ETrainer`.

    Attributes:
        training, held_out: rows with their samples; None without rows, or if they are tokens.
        train_dataset, eval_dataset: tokens; a dict for several held-out sets.
        samples: those of each held-out set by its name, or of the only one by None; None if they are tokens.

    Raises:
        UserError: as `samples_of` and `encode_rows`.
    """

    def __init__(
        self, loaded: LoadedModel, args: D2EConfig, name: str, rows: Any, held_out: Any, refiner: Refiner | None
    ) -> None:
        self.loaded, self.args, self.name, self.refiner = loaded, args, name, refiner
        self.training, self.train_dataset = self.encoded(rows, "train_dataset")
        self.held_out: TokenRows | None = None
        if isinstance(held_out, Mapping) and not is_row(held_out):
            sets = {key: self.encoded(one, f"eval_dataset[{key!r}]") for key, one in held_out.items()}
            self.eval_dataset: Any = {key: rows for key, (_, rows) in sets.items()}
            self.samples = {key: found and found.samples for key, (found, _) in sets.items()}
        else:
            self.held_out, self.eval_dataset = self.encoded(held_out, "eval_dataset")
            self.samples = {None: self.held_out and self.held_out.samples}

    def encoded(self, rows: Any, name: str) -> tuple[TokenRows | None, Any]:
        """Return rows with their samples, and as tokens; None for rows that are tokens already."""
        if isinstance(rows, TokenRows):
            return rows, rows.dataset
        columns = getattr(rows, "column_names", None) if hasattr(rows, "__len__") else None  # a datasets.Dataset
        if columns is None and isinstance(rows, list) and rows and isinstance(rows[0], Mapping):
            columns = rows[0]
        d2e = self.args.d2e
        if rows is None or (columns is not None and {"original", "answer"} <= set(columns)):  # tokens
            if columns is not None:
                vocabulary = self.loaded.model.config.get_text_config().vocab_size
                check_token_rows(rows, name, [*columns], d2e, vocabulary)
            return None, rows
        loss: Loss = "all" if self.args.assistant_only_loss else "last"
        samples = samples_of(rows, name, loss=loss)
        if self.loaded.tokenizer is None:
            raise UserError(f"{name}: the model has no name to find a tokenizer by", "give processing_class")
        if name == "train_dataset" and not d2e.prefers and any(sample.rejected for sample in samples):
            say(
                f"{name}: unused column: rejected, since the objective {d2e.objective} trains on the right answer "
                "(`chosen`) alone; objective='prefer' compares the two",
                err=True,
            )
        unrefined = "refined" in d2e.views and any(sample.refined_context is None for sample in samples)
        if self.refiner is not None and unrefined:
            samples = self._refined(samples, self.refiner)
        shown = not (self.args.disable_tqdm or self.args.process_index > 0)
        found = encode_rows(samples, self.loaded, self.args, name=name, progress=shown)
        return found, found.dataset

    def _refined(self, samples: list[EventSample], refiner: Refiner) -> list[EventSample]:
        """Refine, unless a row is too long anyway: then the rows are refused, and long ones take long to refine."""
        args, config = self.args, self.loaded.model.config
        long = [sample for sample in samples if args.overlong == "error" and len(sample.context) > args.max_length]
        wording = load_prompt_set(args.prompt_set, args.form)
        views = ViewEncoder(self.loaded.tokenizer, wording, ("original",), encoder_decoder=config.is_encoder_decoder)
        if any(views.encode(sample).longest > args.max_length for sample in long):
            return [sample.model_copy(update={"refined_context": sample.context}) for sample in samples]
        with quietly(args.disable_tqdm):
            return refiner(samples)

    def evaluation_strategy(self, probe: Any) -> IntervalStrategy:
        """When to evaluate; by default after each epoch if there is anything to evaluate on.

        That is expressed in steps: an epoch ends after its last checkpoint, so a resumed run would miss an evaluation.
        Without held-out rows `args.eval_strategy` becomes "no", since the Trainer would refuse to be built; the caller
        sets it once the Trainer is there. Raises UserError for a probe with training rows that are tokens, or without
        evaluations for arguments that need them.
        """
        args = self.args
        if probe is not None and self.training is None:
            raise UserError(
                "probe_dataset: it needs training rows with `question`, `answer` and `context`, and these are tokens",
                remedy="give train_dataset as such rows",
            )
        if args.evaluates_by_default and self.training is not None and not (self.eval_dataset is probe is None):
            args.eval_strategy = IntervalStrategy.STEPS
            args.eval_steps = count_steps(args, len(self.train_dataset), args.world_size).per_epoch
            if args.load_best_model_at_end:  # what is best must be saved
                args.save_strategy, args.save_steps = SaveStrategy.STEPS, args.eval_steps
        strategy = IntervalStrategy(args.eval_strategy)
        evaluates = strategy != IntervalStrategy.NO and not (self.eval_dataset is probe is None)
        needing = [name for name in ("load_best_model_at_end", "early_stopping_patience") if getattr(args, name)]
        if needing and not evaluates and self.train_dataset is not None:
            raise UserError(
                f"D2EConfig: {needing[0]}={getattr(args, needing[0])} needs evaluations, and this training has none",
                remedy="give held-out rows as eval_dataset; for rows of tokens also set eval_steps",
            )
        if probe is not None and self.eval_dataset is None:
            args.eval_strategy = IntervalStrategy.NO
        return strategy


def name_of(model: Any) -> str:
    """The name that a model was loaded by, or that is loaded; empty if it has none."""
    return model if isinstance(model, str) else getattr(getattr(model, "config", None), "_name_or_path", "")


@contextmanager
def bars(*, shown: bool) -> Iterator[None]:
    """Load or save a model with or without transformers' own progress bars, which are shown only if it takes long."""
    before = logging.is_progress_bar_enabled()
    if not shown:
        logging.disable_progress_bar()
    try:
        with bars_if_slow():
            yield
    finally:
        if before and not shown:
            logging.enable_progress_bar()


def load_inputs(model: Any, args: D2EConfig, tokenizer: Any, name: str, peft_config: Any) -> LoadedModel:
    """Load the model and tokenizer, unless they are given, and wrap the model in an adapter, if one is asked for.

    An adapter keeps the model's `name`. Raises UserError as `load_model`, `function_of` and `check_optimizer`.
    """
    if model is None:
        raise UserError("D2ETrainer: no model; expected a model, its Hub name, or a folder")
    function_of(args.d2e)
    check_optimizer(args.optim.value)
    given = args.model_init_kwargs or {}
    if unknown := given.keys() - _LOADING.keys():
        raise UserError(
            f"model_init_kwargs: {', '.join(sorted(unknown))} not supported; expected {', '.join(_LOADING)}",
            remedy="load the model yourself, and give it as `model`",
        )
    if isinstance(model, str):
        # Our own implementations are for packed rows; the trainer sets them once it knows that the model takes them.
        attention = None if args.attention == BY_BRANCH else args.attention
        options = {"attention": attention, **{_LOADING[name]: value for name, value in given.items()}}
        if "dtype" in options:
            options["dtype"] = dtype = str(options["dtype"]).removeprefix("torch.")
            if dtype not in _DTYPES:
                raise UserError(f"model_init_kwargs: dtype={dtype}; expected {', '.join(_DTYPES)}")
        with bars(shown=not args.disable_tqdm):
            loaded = load_model(model, **options)
        model, tokenizer = loaded.model, tokenizer or loaded.tokenizer
    elif tokenizer is None and name:
        tokenizer = load_tokenizer(name)[0]
    expect_of_transformers("model", model, "config")
    if tokenizer is not None:
        expect_of_transformers("processing_class", tokenizer, "batch_decode")
    if peft_config is not None and not hasattr(peft_config, "peft_type"):
        kind, example = type(peft_config).__name__, 'LoraConfig(r=8, target_modules="all-linear")'
        raise UserError(f"peft_config: got a {kind}; expected one of peft", f"give peft_config={example}")
    if peft_config is not None and hasattr(model, "peft_config"):
        raise UserError(
            "peft_config: the model has an adapter already",
            remedy="give the PeftModel without peft_config, or its base, model.unload()",
        )
    if peft_config is not None:
        set_seed(args.seed)  # after loading, which may have drawn numbers: an adapter's start depends on it
        model = wrapped_in_adapter(model, peft_config, name)
    return LoadedModel(model, tokenizer)
