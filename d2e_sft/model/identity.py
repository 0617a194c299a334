"""The identity of a model by its content: another training under the same name gives another identity."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from d2e_sft.model.loading import load_tokenizer, resolve_name
from d2e_sft.util.files import sha256_of

# Decoded tokens depend on weights, architecture, tokenizer, chat template and stop tokens.
_PATTERNS = (
    *("*.safetensors", "*.bin", "*.gguf", "config.json", "adapter_config.json", "generation_config.json"),
    *("tokenizer*", "*.jinja", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json"),
)
_NOT_THE_MODEL = frozenset({"training_args.bin", "optimizer.bin", "scheduler.bin"})
_HASHING_THREADS = 8


def model_identity(name: str) -> str:
    """Return `sha256:…` of a folder (and of the base under an adapter), or `NAME@COMMIT` of a Hub name.

    Raises:
        UserError: there is no such model.
    """
    from transformers import AutoConfig

    source = resolve_name(name)
    folder = Path(source)
    if folder.is_dir():
        return f"sha256:{folder_digest(folder)}"
    load_tokenizer(source)  # raises a clear error if there is no such model
    commit = getattr(AutoConfig.from_pretrained(source, trust_remote_code=False), "_commit_hash", None)
    return f"{source}@{commit or 'unknown'}"


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 of a model folder's files, with the identity of the base under an adapter."""
    files = sorted({file for pattern in _PATTERNS for file in folder.glob(pattern) if file.is_file()})
    files = [file for file in files if file.name not in _NOT_THE_MODEL]
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:  # hashing releases the interpreter lock
        digests = list(pool.map(sha256_of, files))
    content = [f"{file.name} {digest}" for file, digest in zip(files, digests, strict=True)]
    adapter = folder / "adapter_config.json"
    if adapter.is_file():
        content.append(model_identity(json.loads(adapter.read_text("utf-8"))["base_model_name_or_path"]))
    return hashlib.sha256("\n".join(content).encode()).hexdigest()
