"""What a `D2ETrainer` is given: a model or its name, an adapter, and rows as texts or as tokens."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from accelerate import PartialState
from transformers import set_seed

from d2e_sft.config.d2e import D2ESection
from d2e_sft.data.data_record import column_of
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.rows import is_row, plain, refuse_repeated_ids, samples_of
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.forward import expect_of_transformers
from d2e_sft.model.loading import LoadedModel, load_tokenizer
from d2e_sft.objective.objectives import function_of
from d2e_sft.train.checks import check_optimizer
from d2e_sft.train.config import D2EConfig
from d2e_sft.train.prepare import adapter_config, load_on_all, wrapped_in_adapter
from d2e_sft.train.rows import TokenRows, encode_rows, read_rows
from d2e_sft.train.samples import ReadSamples, Split, used_samples
from d2e_sft.util.errors import UserError, shortened
from d2e_sft.util.terminal import quietly, say

Refiner = Callable[[list[EventSample]], list[EventSample]]
_LOADING = {
    "dtype": "dtype",
    "torch_dtype": "dtype",
    "attn_implementation": "attention",
    "quantization_config": "quantization",
}


def refined_by_rule(samples: list[EventSample]) -> list[EventSample]:
    """Add refined contexts by the rule of `d2e data build`, imported by name as this package must not depend on it."""
    rules = importlib.import_module("data_builders.refine.rules")
    refined: list[EventSample] = rules.refine_samples(samples, rules.RefinerOptions())
    return refined


def name_of(model: Any) -> str:
    """The name that a model was loaded by, or that is loaded; empty if it has none."""
    return model if isinstance(model, str) else getattr(getattr(model, "config", None), "_name_or_path", "")


def load_inputs(model: Any, args: D2EConfig, tokenizer: Any, name: str, peft_config: Any) -> LoadedModel:
    """Load the model and tokenizer, unless given, and wrap the model, which keeps its `name`, in an adapter if any.

    Without a `peft_config` the adapter is that of the recipe, unless the model has one already.
    """
    if model is None:
        raise UserError("D2ETrainer: no model; expected a model, its Hub name, or a folder")
    function_of(args.d2e)
    check_optimizer(args.optim.value)
    init_kwargs = args.model_init_kwargs or {}
    if unknown := init_kwargs.keys() - _LOADING.keys():
        raise UserError(
            f"model_init_kwargs: {', '.join(sorted(unknown))} not supported; expected {', '.join(_LOADING)}",
            remedy="load the model yourself, and give it as `model`",
        )
    if tokenizer is not None:
        expect_of_transformers("processing_class", tokenizer, "batch_decode")
        refuse_other_tokenizer(tokenizer, name)
    if isinstance(model, str):
        section, options = args.recipe.model, {_LOADING[name]: value for name, value in init_kwargs.items()}
        section.name, section.dtype = model, str(options.get("dtype", section.dtype)).removeprefix("torch.")
        with quietly(args.disable_tqdm):
            loaded = load_on_all(args.recipe, PartialState(), **options)
        model, tokenizer = loaded.model, tokenizer or loaded.tokenizer
    elif tokenizer is None and name:
        tokenizer = load_tokenizer(name)[0]
    expect_of_transformers("model", model, "config")
    if peft_config is None and not hasattr(model, "peft_config"):
        peft_config = adapter_config(args.recipe)
    adapters = getattr(model, "peft_config", {})
    if adapters and [*adapters] != ["default"]:  # peft would save another one in a folder of its own
        raise UserError(
            f"model: its adapters are {', '.join(adapters)}; expected one, of the name 'default'",
            remedy="leave out adapter_name, and merge the others first, model.merge_and_unload()",
        )
    adapter = peft_config or adapters.get("default")
    kind, example = type(adapter).__name__, 'peft_config=LoraConfig(r=8, target_modules="all-linear")'
    if getattr(adapter, "is_prompt_learning", False):
        raise UserError(
            f"peft_config: {kind} is not supported: it adds learnt tokens to prompts, which the views of a row share",
            remedy=f"give {example}",
        )
    if peft_config is None:
        return LoadedModel(model, tokenizer)
    if not hasattr(peft_config, "peft_type"):
        raise UserError(f"peft_config: got a {kind}; expected one of peft", f"give {example}")
    if hasattr(model, "peft_config"):
        raise UserError(
            "peft_config: the model has an adapter already",
            remedy="give the PeftModel without peft_config, or its base, model.unload()",
        )
    set_seed(args.seed)  # after loading, which may have drawn numbers: an adapter's start depends on it
    return LoadedModel(wrapped_in_adapter(model, peft_config, name), tokenizer)


def refuse_other_tokenizer(tokenizer: Any, name: str) -> None:
    """Raise UserError unless the tokens (without added ones) are those of the tokenizer in the model's folder."""
    if not name or not any(Path(name).glob("tokenizer*")):
        return
    both = (load_tokenizer(name)[0], tokenizer)
    stored, tokens = (each.get_vocab().items() - each.get_added_vocab().items() for each in both)
    if stored != tokens:
        raise UserError(
            f"processing_class: another model's tokenizer; {len(stored - tokens):,} of the {len(stored):,} tokens of "
            f"the one in {name!r} have another id in it, or none",
            remedy="leave processing_class out, or give the model's own tokenizer",
        )


class Inputs:
    """The rows of a training, ready for transformers' Trainer.

    Args:
        loaded: The model, in its adapter if it has one, and its tokenizer; None if rows are tokens.
        rows, held_out, refiner: As of `D2ETrainer`.

    Attributes:
        training, held_out: Rows with their samples; None without rows, or if they are tokens.
        train_dataset, eval_dataset: tokens; a dict for several held-out sets.
        samples: Those of each held-out set by its name, or of the only one by None; None if they are tokens.
    """

    def __init__(
        self, loaded: LoadedModel, args: D2EConfig, rows: Any, held_out: Any, refiner: Refiner | None
    ) -> None:
        self.loaded, self.args, self.refiner = loaded, args, refiner
        self.training, self.train_dataset = self.encoded(rows, "train_dataset", "training")
        self.held_out: TokenRows | None = None
        if isinstance(held_out, Mapping) and not is_row(held_out):
            sets = {key: self.encoded(of_set, f"eval_dataset[{key!r}]", "dev") for key, of_set in held_out.items()}
            self.eval_dataset: Any = {key: tokens for key, (_, tokens) in sets.items()}
            texts = {key: encoded for key, (encoded, _) in sets.items()}
        else:
            self.held_out, self.eval_dataset = self.encoded(held_out, "eval_dataset", "dev")
            texts = {None: self.held_out}
        self.samples = {key: None if rows is None else rows.samples for key, rows in texts.items()}

    def encoded(self, rows: Any, name: str, split: Split | None = None) -> tuple[TokenRows | None, Any]:
        """Return rows with their samples, and as tokens; None for rows that are tokens already.

        The recipe's limit of a `split` holds for the trainer's own rows, not for those of `evaluate` and `predict`.
        """
        args, d2e = self.args, self.args.d2e
        shown = not (args.disable_tqdm or args.process_index > 0)
        if isinstance(rows, ReadSamples) and split is not None:  # rows of a recipe's file
            encoded = read_rows(args.recipe, split, self.loaded, progress=shown, read=rows)
            return encoded, encoded.dataset
        columns = getattr(rows, "column_names", None) if hasattr(rows, "__len__") else None  # a datasets.Dataset
        if columns is None and isinstance(rows, list) and rows and isinstance(rows[0], Mapping):
            columns = [*rows[0]]
        if rows is None or (columns is not None and {"original", "answer"} <= set(columns)):  # tokens
            if columns is not None:
                check_token_rows(rows, name, columns, d2e, self.loaded.model.config.get_text_config().vocab_size)
            return None, rows
        given = samples_of(rows, name, loss="all" if args.assistant_only_loss else "last")
        if split is not None:  # the run keeps them in a file
            refuse_repeated_ids(given, name)
        samples = used_samples(given, args.recipe, split)
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
        encoded = encode_rows(samples, self.loaded, args.recipe, name=name, progress=shown)
        encoded.in_file = len(given)
        return encoded, encoded.dataset

    def _refined(self, samples: list[EventSample], refiner: Refiner) -> list[EventSample]:
        """Refine, unless a row is too long anyway: then the rows are refused, and long ones take long to refine."""
        data, config = self.args.recipe.data, self.loaded.model.config
        long = [sample for sample in samples if data.overlong == "error" and len(sample.context) > data.max_length]
        wording = load_prompt_set(data.prompt_set, data.form)
        views = ViewEncoder(self.loaded.tokenizer, wording, ("original",), encoder_decoder=config.is_encoder_decoder)
        if any(views.encode(sample).longest > data.max_length for sample in long):
            return [sample.model_copy(update={"refined_context": sample.context}) for sample in samples]
        with quietly(self.args.disable_tqdm):
            return refiner(samples)


def check_token_rows(rows: Any, name: str, columns: Sequence[str], d2e: D2ESection, vocabulary: int) -> None:
    """Raise UserError, with the rows' `name`, row and column, unless the rows are lists of ids below `vocabulary`.

    `rows` are a list of dicts or a `datasets.Dataset`; `columns` are those of the first row.
    """
    if missing := [view for view in d2e.views if view not in columns]:
        raise UserError(
            f"{name}: rows of tokens without the column {', '.join(missing)}; the objective {d2e.objective} "
            f"needs prompt ids of the views {', '.join(d2e.views)}",
            remedy="add them, or give rows with `question`, `answer` and `context`",
        )
    if not len(rows):
        raise UserError(f"{name}: no rows; expected at least one")
    answers = _lengths(rows, name, "answer", vocabulary)
    for view in d2e.views:
        _lengths(rows, name, view, vocabulary)
    for column in {"content", "trained"} & {*columns}:  # a mark for each answer token
        lengths = _lengths(rows, name, column)
        for row in np.flatnonzero(lengths != answers):
            raise UserError(
                f"{name}, row {row}: `{column}` has {lengths[row]} values; expected one for each of the "
                f"{answers[row]} answer tokens"
            )


def _lengths(rows: Any, name: str, column: str, vocabulary: int | None = None) -> Any:
    """Return the length of a column's list in each row; its values are token ids if a `vocabulary` is given."""
    expected = f"`{column}`; expected a list with a value for each token in every row"
    try:
        lists = column_of(rows, column)
    except KeyError:
        first = next(number for number, row in enumerate(rows) if column not in row)
        raise UserError(f"{name}, row {first}: no {expected}") from None
    except pa.ArrowException as error:
        raise UserError(f"{name}: {expected} ({error})") from None
    if not pa.types.is_list(lists.type) and not pa.types.is_large_list(lists.type):
        raise UserError(f"{name}: got {shortened(plain(rows[0])[column], 60)} in {expected}")
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    if vocabulary is None:
        return lengths
    for row in np.flatnonzero(lengths == 0):
        raise UserError(f"{name}, row {row}: `{column}` is empty; expected at least one token id")
    ids = pc.list_flatten(lists)
    if not pa.types.is_integer(ids.type) or ids.null_count:
        kind = "None" if ids.null_count else f"values of type {ids.type}"
        raise UserError(f"{name}: `{column}` has {kind}; expected token ids, which are whole numbers")
    values = np.asarray(ids)
    for place in np.flatnonzero((values < 0) | (values >= vocabulary)):
        number = int(np.searchsorted(np.cumsum(lengths), place, side="right"))
        raise UserError(
            f"{name}, row {number}: `{column}` has the token id {values[place]}; expected 0 to {vocabulary - 1}, the "
            "model's vocabulary",
            remedy="use the tokenizer of this model",
        )
    return lengths
