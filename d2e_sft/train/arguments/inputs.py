"""What a `D2ETrainer` is given from Python → model, tokenizer and token views, as a recipe's run prepares them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm
from transformers import set_seed
from transformers.trainer_utils import IntervalStrategy

from d2e_sft.data.rows import samples_of
from d2e_sft.data.sample import EventSample
from d2e_sft.model.attention.registry import IMPLEMENTATIONS
from d2e_sft.model.loading import LoadedModel, load_model, load_tokenizer
from d2e_sft.objective.own import function_of
from d2e_sft.train.arguments.config import D2EConfig
from d2e_sft.train.prepare import check_optimizer, count_steps, wrapped_in_adapter
from d2e_sft.train.rows import TokenRows, encode_rows
from d2e_sft.util.errors import UserError

Refiner = Callable[[list[EventSample]], list[EventSample]]


def refined_by_rule(samples: list[EventSample]) -> list[EventSample]:
    """The samples with the sentences of their contexts that have to do with the question, where none are given.

    As `d2e data build` does it, whose package is named and not imported, so that the method depends on neither of the
    others (as the verbs are in `d2e_sft.cli`).
    """
    rules = importlib.import_module("data_builders.refine.rules")
    found: list[EventSample] = rules.refine_samples(samples, rules.RefinerOptions())
    return found


@dataclass(frozen=True)
class UserInputs:
    """Model and rows, ready for transformers' Trainer.

    Attributes:
        loaded: the model, in its adapter where one was asked for, and its tokenizer; the latter None where rows came
            as tokens and no tokenizer with them.
        training, held_out: what became of rows; None where there were none, or where they came as tokens.
        train_dataset, eval_dataset: the tokens; of several held-out sets a dict.
        adapter: the adapter's configuration, with the layers that it found; None without one.
        name: the model's.
    """

    args: D2EConfig
    refiner: Refiner | None
    loaded: LoadedModel
    training: TokenRows | None
    held_out: TokenRows | None
    train_dataset: Any
    eval_dataset: Any
    adapter: Any
    name: str

    @classmethod
    def of(
        cls,
        model: Any,
        args: D2EConfig,
        train_dataset: Any,
        eval_dataset: Any,
        processing_class: Any,
        *,
        peft_config: Any = None,
        refiner: Refiner | None = refined_by_rule,
        name: str | None = None,
    ) -> UserInputs:
        """Load the model and encode the rows, unless that is done; arguments as of `D2ETrainer`.

        Args:
            name: of the model, kept with an adapter; None takes it from the model.

        Raises:
            UserError: as `load_model`, `samples_of` and `encode_rows`.
        """
        if model is None:
            raise UserError("D2ETrainer: no model; expected a model, its Hub name, or a folder")
        function_of(args.d2e)
        check_optimizer(args.optim.value)  # type: ignore[attr-defined]
        if name is None:
            name = model if isinstance(model, str) else getattr(getattr(model, "config", None), "_name_or_path", "")
        loaded = _loaded(model, args, processing_class, name, peft_config)
        training, train_tokens = _encoded(train_dataset, "train_dataset", loaded, args, refiner)
        if isinstance(eval_dataset, Mapping):
            each = {
                key: _encoded(rows, f"eval_dataset[{key!r}]", loaded, args, refiner)
                for key, rows in eval_dataset.items()
            }
            held_out, eval_tokens = None, {key: tokens for key, (_, tokens) in each.items()}
        else:
            held_out, eval_tokens = _encoded(eval_dataset, "eval_dataset", loaded, args, refiner)
        adapter = getattr(loaded.model, "peft_config", {}).get("default")
        return cls(args, refiner, loaded, training, held_out, train_tokens, eval_tokens, adapter, name)

    def tokens(self, rows: Any, name: str) -> Any:
        """Other rows as tokens, by the same wording; tokens are returned as they are."""
        return _encoded(rows, name, self.loaded, self.args, self.refiner)[1]

    def evaluation_strategy(self, probe: Any) -> IntervalStrategy:
        """When to evaluate; by default after each epoch if there is anything to evaluate on.

        That is expressed in steps: an epoch ends after its last checkpoint, so a resumed run would miss an evaluation.
        Without held-out rows `args.eval_strategy` becomes "no", since the Trainer would refuse to be built; the caller
        sets it once the Trainer is there.

        Raises:
            UserError: a probe, with training rows that are tokens.
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
        strategy = IntervalStrategy(args.eval_strategy)
        if probe is not None and self.eval_dataset is None:
            args.eval_strategy = IntervalStrategy.NO
        return strategy


def _loaded(model: Any, args: D2EConfig, tokenizer: Any, name: str, peft_config: Any) -> LoadedModel:
    """The model, in an adapter if one is asked for, and a tokenizer: the given one, or the model's own."""
    if isinstance(model, str):
        # Our own implementations are for packed rows; the trainer sets them once it knows that the model takes them.
        attention = None if args.attention in IMPLEMENTATIONS else args.attention
        loaded = load_model(model, **{"attention": attention, **args.loading_options()})
        model, tokenizer = loaded.model, tokenizer or loaded.tokenizer
    elif tokenizer is None and name:
        tokenizer = load_tokenizer(name)[0]
    if peft_config is not None:
        set_seed(args.seed)  # after loading, which may have drawn numbers: an adapter's start depends on it
        model = wrapped_in_adapter(model, peft_config, name)
    return LoadedModel(model, tokenizer)


def are_tokens(rows: Any) -> bool:
    """Whether rows are token views already, with a column of prompt ids for each view and `answer`."""
    if hasattr(rows, "column_names") and hasattr(rows, "__len__"):  # a datasets.Dataset
        return {"original", "answer"} <= set(rows.column_names)
    first = rows[0] if isinstance(rows, list) and rows else None
    return isinstance(first, Mapping) and {"original", "answer"} <= first.keys()


def _encoded(
    rows: Any, name: str, loaded: LoadedModel, args: D2EConfig, refiner: Refiner | None
) -> tuple[TokenRows | None, Any]:
    if isinstance(rows, TokenRows):
        return rows, rows.dataset
    if rows is None or are_tokens(rows):
        return None, rows
    samples, d2e = samples_of(rows, name), args.d2e
    if loaded.tokenizer is None:
        raise UserError(f"{name}: no tokenizer to read it by, as the model has no name", "give processing_class")
    if refiner is not None and "refined" in d2e.views and any(sample.refined_context is None for sample in samples):
        samples = refiner(samples)
    found = encode_rows(
        samples,
        loaded,
        views=d2e.views,
        prompt_set=args.prompt_set,
        max_length=args.max_length,
        overlong=args.overlong,  # type: ignore[arg-type]
        name=name,
        progress=lambda given: tqdm(given, desc="tokenising", disable=args.disable_tqdm or args.process_index > 0),
    )
    return found, found.dataset
