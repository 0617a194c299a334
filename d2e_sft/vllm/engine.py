"""Model names → vLLM engines, and checks that an engine can decode pairs and runs the plug-in."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import replacing_folder
from d2e_sft.util.paths import cache_dir

INSTALL = "pip install 'd2e-sft[vllm]'"
PLUGIN = "d2e_sft.vllm.processor:DebiasLogitsProcessor"
_UNUSED = re.compile(r"reserved|unused|extra_id|placeholder|dummy", re.IGNORECASE)


def require_vllm() -> None:
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        raise UserError(f"vLLM is not usable here ({error})", remedy=INSTALL) from error


def model_folder(name: str) -> str:
    """Return the folder or Hub name that vLLM loads for a name; an adapter is first merged into its base model.

    The merged model is cached under the hash of the adapter's content. Raises UserError for an encoder-decoder, and
    as `load_model`.
    """
    from transformers import AutoConfig

    from d2e_sft.model.finite import refuse_non_finite_files
    from d2e_sft.model.loading import load_model
    from d2e_sft.model.storage.folder import base_of_adapter, check_model_files, folder_digest, resolve_name
    from d2e_sft.model.storage.hub import find_model

    source = find_model(name)
    folder = Path(source)
    check_model_files(folder)
    base = base_of_adapter(folder)
    if base is None:
        config = folder / "config.json"
        if folder.is_dir() and json.loads(config.read_text("utf-8")).get("is_encoder_decoder"):
            raise UserError(f"model {name!r}: an encoder-decoder, which vLLM does not run", "decode it in process")
        refuse_non_finite_files(folder, name)  # vLLM would serve it
        return source
    target = cache_dir() / "merged" / folder_digest(folder)[:24]
    if not (target / "config.json").is_file():
        stored = AutoConfig.from_pretrained(resolve_name(base), trust_remote_code=False).dtype
        loaded = load_model(name, dtype="float32" if stored is None else str(stored).removeprefix("torch."))
        try:
            with replacing_folder(target) as aside:
                loaded.model.save_pretrained(aside)
                loaded.tokenizer.save_pretrained(aside)
        except OSError:
            if not (target / "config.json").is_file():  # else another process has merged it meanwhile
                raise
    return str(target)


def unregistered_plugin() -> list[str]:
    """Return the plug-in's name unless an entry point registers it already; named twice, it would run twice."""
    plugins = entry_points(group="vllm.logits_processors")
    return [] if any(entry.value == PLUGIN for entry in plugins) else [PLUGIN]


def check_engine(config: Any) -> None:
    """Raise UserError for speculative decoding, pipeline parallelism, batch-sharded sampling or watermarking."""
    parallel = config.parallel_config
    sharded = getattr(parallel, "enable_batch_sharded_sampling", False) and parallel.tensor_parallel_size > 1
    unsupported = {
        "speculative decoding": config.speculative_config is not None,
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "batch-sharded sampling": sharded,
        "watermarking": getattr(config, "watermark_config", None) is not None,
    }
    if used := [name for name, present in unsupported.items() if present]:
        raise UserError(
            f"vLLM engine with {' and '.join(used)}: the rows of a pair would part, so it cannot decode debiased",
            remedy="start it without; tensor and data parallelism are supported",
        )


def choose_sentinel(tokenizer: Any, vocab_size: int, stops: Collection[int]) -> int:
    """Return a token that no answer holds, to end a row without a partner (`PairedRow.sentinel`); none of `stops`.

    Debiased decoding never chooses it, so a sentinel in an output is always a sentinel. That costs nothing if the
    model never uses the token: a row of the vocabulary without a token, or an unused special token.
    """
    token_ids = set(tokenizer.get_vocab().values())
    for token in range(vocab_size - 1, -1, -1):
        if token not in token_ids and token not in stops:
            return token
    template = str(getattr(tokenizer, "chat_template", None) or "")
    roles = {tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token}
    special = {token: entry.content for token, entry in tokenizer.added_tokens_decoder.items() if entry.special}
    free = [token for token in special if token not in stops and token < vocab_size]
    if free:
        # Best: named as unused; then not in the template; then without a role of its own.
        return min(
            free, key=lambda i: (not _UNUSED.search(special[i]), special[i] in template, special[i] in roles, -i)
        )
    raise UserError(
        f"tokenizer of {getattr(tokenizer, 'name_or_path', '?')!r}: has no special token besides those that end an "
        "answer, and debiased decoding in vLLM needs one that no answer holds",
        remedy="add a special token to the tokenizer, or decode in process: --engine transformers",
    )


def check_probe(tokens: Collection[int], sentinel: int) -> None:
    """Raise UserError unless the probe's answer shows that the engine runs the plug-in."""
    if list(tokens) != [sentinel]:
        raise UserError(
            "this vLLM engine does not run d2e-sft's logits processor, so it would decode undebiased",
            remedy="install d2e-sft in the environment that the engine's workers run in, so that its entry point "
            "vllm.logits_processors is found there",
        )
