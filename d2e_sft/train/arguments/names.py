"""Arguments of TRL and of other trainers, what to use here instead, and values that do not fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from pydantic import ValidationError
from transformers import TrainingArguments

from d2e_sft.config.recipe import Recipe
from d2e_sft.config.sections import TrainSection
from d2e_sft.util.errors import UserError, describe_problem, did_you_mean, shortened

# Arguments from sections that have keys of the model and its files, too; one has another name than its key.
FROM_OTHER_SECTIONS = {
    "attention": ("model", "attention"),
    "prompt_set": ("data", "prompt_set"),
    "form": ("data", "form"),
    "max_length": ("data", "max_length"),
    "overlong": ("data", "overlong"),
    "decoding_alpha": ("eval", "alpha"),
    "max_new_tokens": ("eval", "max_new_tokens"),
}

_ROWS = "give rows with `question`, `answer` and `context`, or with `messages`"
_TEXT = f"a text has no context that a view can leave out; {_ROWS}"
_BATCHES = "leave it out: views are packed without padding; micro_batch_tokens=N sets the size of a micro-batch"
_PAIRS = "for preferences use objective='prefer' with"
# Argument → what to use instead.
_INSTEAD = {
    "max_seq_length": "use max_length; overlong='truncate_context' cuts the ends of long contexts, never an answer",
    "max_prompt_length": "use max_length, for prompt and answer together",
    "max_completion_length": "use max_length, for prompt and answer together",
    "dataset_text_field": _TEXT,
    "formatting_func": f"{_TEXT}, as dataset.map(your_function) makes them",
    "dataset_kwargs": _ROWS,
    "dataset_num_proc": "leave it out: the rows are tokenised in this process",
    "shuffle_dataset": "leave it out: each epoch shuffles the rows",
    "truncation_mode": "use overlong='truncate_context', which cuts the ends of long contexts, never an answer",
    "packing_strategy": _BATCHES,
    "padding_free": _BATCHES,
    "eval_packing": _BATCHES,
    "pad_to_multiple_of": _BATCHES,
    "chat_template_path": "set the chat template of the tokenizer, and give it as processing_class",
    "eos_token": "set it in the tokenizer, and give that as processing_class",
    "pad_token": "set it in the tokenizer, and give that as processing_class",
    "tokenizer": "use processing_class",
    "model_init": "give the model, or its name, as `model`",
    "group_by_length": "leave it out: views are packed without padding",
    "quantization_config": "use D2EConfig(model_init_kwargs={'quantization_config': …})",
    "trust_remote_code": "leave it out: code from the Hub is not run; a model that needs it has to be converted",
    "warmup_ratio": "use warmup_steps; below 1 it is a share of all steps",
    "activation_offloading": "use gradient_checkpointing=True",
    "loss_type": f"the objective defines the loss; {_PAIRS} prefer_form='dpo', 'ipo', 'hinge', 'orpo' or 'simpo'",
    "beta": f"{_PAIRS} prefer_beta",
    "simpo_gamma": f"{_PAIRS} prefer_gamma",
    **dict.fromkeys(
        ("rpo_alpha", "cpo_alpha", "loss_weights"),
        f"{_PAIRS} sft_weight, the weight of the gold answer's cross entropy",
    ),
    "ref_model": f"{_PAIRS} prefer_reference='NAME'",
    "precompute_ref_log_probs": "leave it out: the reference's log-probabilities are computed before training",
    "compute_loss_func": "the objective defines the loss; your own function is objective='module:function'",
    "preprocess_logits_for_metrics": "compute_metrics gets generated answers and references instead of logits",
}
_PACKING = "use packing='shared_batch' or 'batched', or leave it out: views are packed wherever that is exact"
# Values of TRL that say what happens here anyway.
_SAME: dict[str, tuple[Any, ...]] = {
    "loss_type": ("nll", "chunked_nll"),
    "shuffle_dataset": (True,),
    "precompute_ref_log_probs": (True,),
}


def without_unset(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without those of other trainers that are None, their default."""
    return {name: value for name, value in given.items() if value is not None or name not in _INSTEAD}


def check_names(of: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise UserError for an argument that `of` does not have, with what to use instead."""
    known = [name for name in known if name not in _INSTEAD]
    if isinstance(packing := given.get("packing"), bool):
        raise UserError(f"{of}: packing={packing} of TRL is not supported", _PACKING)
    for name in given:
        if name in known:
            continue
        if name in _INSTEAD:
            raise UserError(f"{of}: {name}={_shown(given[name])} is not supported", _INSTEAD[name])
        raise UserError(f"{of}: has no argument {name}.{did_you_mean(name, known)}")


def check_values(args: Any) -> None:
    """Raise UserError for a number as text, or a value that a recipe refuses of an argument of our own."""
    for one in fields(args):
        value, kinds = getattr(args, one.name, None), set(re.findall(r"\w+", str(one.type)))
        if isinstance(value, str) and kinds & {"int", "float"} and not kinds & {"str", "dict", "Literal"}:
            raise UserError(f"D2EConfig: {one.name}: got {value!r}, which is text; expected a number")
    also = {"per_device_train_batch_size", *(["save_total_limit"] if args.save_total_limit is not None else [])}
    theirs = {one.name for one in fields(TrainingArguments)} - also
    own = {name: ("train", name) for name in TrainSection.model_fields if name not in theirs} | FROM_OTHER_SECTIONS
    content: dict[str, dict[str, Any]] = {"data": {"train": "rows"}, "train": {"output_dir": "run"}}
    for name, (section, key) in own.items():
        content.setdefault(section, {})[key] = getattr(args, name)
    try:
        Recipe.model_validate(content)
    except ValidationError as error:
        names: dict[tuple[int | str, ...], str] = {place: name for name, place in own.items()}
        # What depends on several arguments is checked where they are resolved.
        places = [(names.get(item["loc"][:2]), item) for item in error.errors()]
        if problems := [describe_problem({**item, "loc": (name,)}) for name, item in places if name]:
            raise UserError(f"D2EConfig: {'; '.join(problems)}") from None


def _shown(value: Any) -> str:
    return str(getattr(value, "__name__", "")) or shortened(value, 40)


def taken_over(args: Any, known: Iterable[str]) -> dict[str, Any]:
    """The arguments of another trainer's dataclass that are `known` here.

    Others must have their default values, else UserError says what to use instead.
    """
    known, found = [name for name in known if name not in _INSTEAD], dict[str, Any]()
    for one in fields(args):
        value = getattr(args, one.name) if one.init else None
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if not one.init or (one.name in ("packing", "max_length") and not value):
            continue  # as TRL says that samples are neither packed nor cut
        if one.name in known:
            found[one.name] = value
        elif value not in (None, default, *_SAME.get(one.name, ())):
            of = f"{type(args).__name__}: {one.name}={_shown(value)}"
            raise UserError(f"{of} is not supported", _INSTEAD.get(one.name))
    check_names(type(args).__name__, {"packing": found.get("packing")}, ["packing"])
    return found
