"""A run's weights as a plain checkpoint: copied, cast, or an adapter merged into its base."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.chat_template import ChatEncoder, merged_stop_ids, pad_id
from d2e_sft.hub.client import check_no_link
from d2e_sft.model.loading import adapter_on, load_model, load_tokenizer
from d2e_sft.model.storage.folder import base_of_adapter, resolve_name
from d2e_sft.util.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

_TOKENIZER = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*", "vocab*", "merges.txt"),
    "*.model",  # sentencepiece
)
_FULL = ("*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json")
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")

# Shares of the largest logit. A merged weight is rounded once, in bfloat16 by up to 1/256.
_TOLERANCES = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}
_PROBES = (
    "The rain stopped at noon. The road was dry by three. What happened first?",
    "Nadia put the key into the drawer and left. Felix moved it to the shelf. Where is the key now?",
    "List what a baker does before the shop opens, in order.",
)


@dataclass(frozen=True)
class ExportOptions:
    """How a run becomes a folder."""

    merge: bool = False  # merge an adapter into its base model, and check its logits
    dtype: str | None = None  # None keeps that of the weights, and merges in the recipe's `model.dtype`
    licence: str | None = None  # the Hub's name of the weights' licence
    link: bool = False  # unchanged files may be hard links to the run's


AS_TRAINED = ExportOptions()


def write_weights(run: Path, recipe: Recipe, out: Path, options: ExportOptions) -> None:
    """Write weights, configuration, tokenizer and generation config.

    Raises UserError if the run contains no model, cannot be loaded or has a link to outside. Also if a dtype is given
    for an unmerged adapter, a whole model is to be merged, or merging changes the logits.
    """
    resolve_name(str(run))
    base, dtype = base_of_adapter(run), options.dtype or recipe.model.dtype
    if base is not None and not options.merge and options.dtype is not None:
        raise UserError(
            f"--dtype {dtype}: {run} is an adapter, which is exported as it was trained",
            remedy="add --merge for a whole model, or leave --dtype out",
        )
    if base is None and options.merge:
        raise UserError(f"--merge: {run} is a whole model, with nothing to merge", "leave --merge out")
    if options.merge or options.dtype is not None:
        loaded = load_model(str(run), dtype=dtype)
        loaded.model.save_pretrained(out)
        loaded.tokenizer.save_pretrained(out)
        del loaded  # the check loads it again
        for path in out.glob("*.safetensors"):  # written readable only for their owner
            path.chmod(0o644)
        if base is not None:
            _check_merged(out, run, base, dtype)
    else:
        from d2e_sft.model.finite import refuse_non_finite_files  # imports torch

        refuse_non_finite_files(run, str(run))
        _copy(run, out, (*(_FULL if base is None else _ADAPTER), *_TOKENIZER), link=options.link)
    _write_generation_config(run, out, as_text=recipe.data.form == "completion")
    # Training turns the cache off in the model's configuration; decoding needs it.
    path = out / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if config.get("use_cache") is False:
        path.unlink()  # it may be a link to the run's
        path.write_text(json.dumps({**config, "use_cache": True}, indent=2) + "\n", encoding="utf-8")


def _check_merged(folder: Path, run: Path, base: str, dtype: str) -> None:
    """Compare the logits of the model in `folder` with those of base and adapter; raise UserError if they differ."""
    adapted = adapter_on(load_model(base, dtype=dtype).model, run)
    tokenizer, encoder_decoder = load_tokenizer(str(run))
    encoder = ChatEncoder(tokenizer, encoder_decoder=encoder_decoder, as_text=not tokenizer.chat_template)
    prompts = encoder.ids([[{"role": "user", "content": text}] for text in _PROBES])
    expected, found = (_logits(model, prompts) for model in (adapted, load_model(str(folder), dtype=dtype).model))
    difference = ((found - expected).abs().max() / expected.abs().max()).item()
    if not difference <= _TOLERANCES[dtype]:  # NaN included
        raise UserError(
            f"{run}: the merged model's logits differ from the adapter's by {difference:.1e} of the largest one; "
            f"expected at most {_TOLERANCES[dtype]:g} in {dtype}, so nothing was written",
            remedy="merge in float32 (--dtype float32), or keep the adapter: leave --merge out",
        )


def _logits(model: Any, prompts: list[list[int]]) -> Tensor:
    """Return the logits (tokens of all prompts, V) in float32."""
    import torch

    config, found = model.eval().config, []
    for prompt in prompts:
        inputs = {"input_ids": torch.tensor([prompt])}
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = torch.tensor([[config.decoder_start_token_id, *prompt]])
        with torch.no_grad():
            found.append(model(**inputs).logits[0].float())
    return torch.cat(found)


def _copy(run: Path, out: Path, patterns: tuple[str, ...], *, link: bool) -> None:
    files = {path.name: path for pattern in patterns for path in sorted(run.glob(pattern)) if path.is_file()}
    for path in files.values():
        check_no_link(path, run)
    for name, path in files.items():
        if link:
            try:
                os.link(path.resolve(), out / name)
                continue
            except OSError:  # another disk, or one without links
                pass
        shutil.copyfile(path, out / name)


def _write_generation_config(run: Path, out: Path, *, as_text: bool) -> None:
    """Add the token that ended answers in training, which the config of a chat model may lack."""
    tokenizer, encoder_decoder = load_tokenizer(str(run))
    end_of_turn = ChatEncoder(tokenizer, encoder_decoder=encoder_decoder, as_text=as_text).end_of_turn
    config = _generation_config(run, out)
    stops = merged_stop_ids(config.eos_token_id, end_of_turn)
    config.eos_token_id = stops[0] if len(stops) == 1 else stops
    config._from_model_config = False  # it now says more than the model's configuration
    if config.pad_token_id is None:
        config.pad_token_id = pad_id(tokenizer)
    path = out / "generation_config.json"
    path.unlink(missing_ok=True)  # it may be a link to the run's
    path.write_text(config.to_json_string(use_diff=True), encoding="utf-8")


def _generation_config(run: Path, out: Path) -> Any:
    from transformers import GenerationConfig

    for source in (str(out), resolve_name(base_of_adapter(run) or str(run))):
        try:
            return GenerationConfig.from_pretrained(source)
        except OSError:  # none there, or a base on the Hub and no network
            continue
    return GenerationConfig()
