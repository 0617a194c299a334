"""The identity of a model by its content: another training under the same name gives another identity."""

from __future__ import annotations

import hashlib
from pathlib import Path

from d2e_sft.model.loading import load_tokenizer
from d2e_sft.model.storage.folder import base_of_adapter, resolve_name
from d2e_sft.model.storage.seal import file_sums

# Decoded tokens depend on weights, architecture, tokenizer, chat template and stop tokens.
_PATTERNS = (
    *("*.safetensors", "*.bin", "*.gguf", "config.json", "adapter_config.json", "generation_config.json"),
    *("tokenizer*", "*.jinja", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json"),
)
_NOT_THE_MODEL = frozenset({"training_args.bin", "optimizer.bin", "scheduler.bin"})


def model_identity(name: str) -> str:
    """Return `sha256:…` of a folder (and of the base under an adapter), or `NAME@COMMIT` of a Hub name.

    Raises:
        UserError: there is no such model.
    """
    source = resolve_name(name)
    folder = Path(source)
    if folder.is_dir():
        return f"sha256:{folder_digest(folder)}"
    from transformers import AutoConfig

    load_tokenizer(source)  # raises a clear error if there is no such model
    commit = getattr(AutoConfig.from_pretrained(source, trust_remote_code=False), "_commit_hash", None)
    return f"{source}@{commit or 'unknown'}"


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 of a model folder's files, with the identity of the base under an adapter."""
    files = sorted({file for pattern in _PATTERNS for file in folder.glob(pattern) if file.is_file()})
    files = [file for file in files if file.name not in _NOT_THE_MODEL]
    content = [f"{name} {one.sha256}" for name, one in file_sums(files).items()]
    base = base_of_adapter(folder)
    if base is not None:
        content.append(model_identity(base))
    return hashlib.sha256("\n".join(content).encode()).hexdigest()
