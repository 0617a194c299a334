"""Model names → vLLM engines; what an engine must be like to decode pairs; the proof that it runs the plug-in."""

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
from d2e_sft.vllm.pairing import PairedRow

INSTALL = "pip install 'd2e-sft[vllm]'"
PLUGIN = "d2e_sft.vllm.processor:DebiasLogitsProcessor"
_UNUSED = re.compile(r"reserved|unused|extra_id|placeholder|dummy", re.IGNORECASE)


def require_vllm() -> None:
    """Raise UserError unless vLLM can be imported."""
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        raise UserError(f"vLLM is not usable here ({error})", remedy=INSTALL) from error


def model_folder(name: str) -> str:
    """What vLLM should load for a name: a folder's path or a Hub name; an adapter is merged into its base model first.

    The merged model is kept in the cache, under a name that changes with the adapter's content.

    Args:
        name: as for `d2e_sft.model.loading.load_model`.

    Raises:
        UserError: nothing of that name can be loaded, it is an encoder-decoder, which vLLM does not run, or a weight
            of a folder is NaN or infinite.
    """
    from d2e_sft.model.finite import refuse_non_finite_files
    from d2e_sft.model.identity import folder_digest
    from d2e_sft.model.loading import load_model, resolve_name

    source = resolve_name(name)
    folder = Path(source)
    adapter = folder / "adapter_config.json"
    if not adapter.is_file():
        config = folder / "config.json"
        if folder.is_dir() and json.loads(config.read_text("utf-8")).get("is_encoder_decoder"):
            raise UserError(
                f"model {name!r}: an encoder-decoder, which vLLM does not run", remedy="decode it in process"
            )
        refuse_non_finite_files(folder, name)  # vLLM would serve it
        return source
    target = cache_dir() / "merged" / folder_digest(folder)[:24]
    if not (target / "config.json").is_file():
        base = json.loads(adapter.read_text("utf-8"))["base_model_name_or_path"]
        loaded = load_model(name, dtype=_stored_dtype(resolve_name(base)))
        try:
            with replacing_folder(target) as aside:
                loaded.model.save_pretrained(aside)
                loaded.tokenizer.save_pretrained(aside)
        except OSError:
            if not (target / "config.json").is_file():  # else another process has merged it meanwhile
                raise
    return str(target)


def unregistered_plugin() -> list[str]:
    """The plug-in's name where no entry point announces it (a clone on PYTHONPATH); empty where vLLM finds it itself.

    Naming it in either case would run it twice.
    """
    found = entry_points(group="vllm.logits_processors")
    return [] if any(entry.value == PLUGIN for entry in found) else [PLUGIN]


def check_engine(config: Any) -> None:
    """Refuse an engine that cannot decode pairs.

    Args:
        config: the engine's VllmConfig.

    Raises:
        UserError: it decodes speculatively, splits a batch over pipeline stages or sampling ranks, or its runner does
            not load plug-ins.
    """
    parallel = config.parallel_config
    sharded = getattr(parallel, "enable_batch_sharded_sampling", False) and parallel.tensor_parallel_size > 1
    watermark = getattr(config, "watermark_config", None)
    for present, what, remedy in (
        (config.speculative_config is not None, "speculative decoding", "start it without --speculative-config"),
        (parallel.pipeline_parallel_size > 1, "pipeline parallelism", "use tensor and data parallelism alone"),
        (sharded, "batch-sharded sampling", "start it without --enable-batch-sharded-sampling"),
        (watermark is not None, "watermarking", "start it without a watermark configuration"),
    ):
        if present:
            raise UserError(f"vLLM engine with {what}: cannot decode debiased, the rows of a pair would part", remedy)


def choose_sentinel(tokenizer: Any, vocab_size: int, stops: Collection[int]) -> int:
    """The token that ends a row which finds itself alone (`PairedRow.sentinel`): one that no answer holds.

    It is barred from every debiased choice, so a sentinel in an output is always a sentinel. Barring costs nothing if
    the token is one that the model never means: a row of the vocabulary without a token, or a special token without a
    use.

    Args:
        tokenizer: a transformers tokenizer.
        vocab_size: how many logits the model has.
        stops: tokens that end an answer; none of them is chosen.

    Raises:
        UserError: every token of the vocabulary has a use.
    """
    named = set(tokenizer.get_vocab().values())
    for token in range(vocab_size - 1, -1, -1):
        if token not in named and token not in stops:
            return token
    template = str(getattr(tokenizer, "chat_template", None) or "")
    special = {entry.content: token for token, entry in tokenizer.added_tokens_decoder.items() if entry.special}
    free = [
        (text, token)
        for text, token in sorted(special.items(), key=lambda item: -item[1])
        if token not in stops and token < vocab_size
    ]
    # Best first: named as unused; neither in the template nor with a role of its own; not in the template; any.
    roles = {tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token}
    for accept in (
        lambda text: _UNUSED.search(text) is not None,
        lambda text: text not in template and text not in roles,
        lambda text: text not in template,
        lambda text: True,
    ):
        for text, token in free:
            if accept(text):
                return token
    raise UserError(
        f"tokenizer of {getattr(tokenizer, 'name_or_path', '?')!r}: has no special token besides those that end an "
        "answer, and debiased decoding in vLLM needs one that no answer holds",
        remedy="name a token that answers never hold: sentinel=ID",
    )


def probe_row(sentinel: int) -> PairedRow:
    """A row that has no partner: an engine that runs the plug-in answers it with the sentinel, and no other does."""
    return PairedRow(pair="probe", view="original", alpha=0.0, sentinel=sentinel)


def check_probe(tokens: Collection[int], sentinel: int) -> None:
    """Raise UserError unless the probe's answer shows that the engine runs the plug-in."""
    if list(tokens) != [sentinel]:
        raise UserError(
            "this vLLM engine does not run d2e-sft's logits processor, so it would decode undebiased",
            remedy="install d2e-sft in the environment that the engine's workers run in, so that its entry point "
            "vllm.logits_processors is found there",
        )


def _stored_dtype(source: str) -> str:
    from transformers import AutoConfig

    dtype = getattr(AutoConfig.from_pretrained(source, trust_remote_code=False), "dtype", None)
    return "float32" if dtype is None else str(dtype).removeprefix("torch.")
