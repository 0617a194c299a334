"""A run's weights as a plain checkpoint: copied as they are, cast, or an adapter merged into its base."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.chat_template import ChatEncoder, merged_stop_ids, pad_id
from d2e_sft.hub.client import check_no_link
from d2e_sft.model.loading import load_model, load_tokenizer, resolve_name
from d2e_sft.util.errors import UserError

_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*", "vocab*", "merges.txt")
_TOKENIZER_MORE = ("*.model",)  # sentencepiece
_FULL = ("*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json")
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")


@dataclass(frozen=True)
class ExportOptions:
    """How a run becomes a folder.

    Attributes:
        merge: merge an adapter into its base model; a whole model is exported all the same.
        dtype: of the weights; None keeps them, and merges in the recipe's `model.dtype`.
        licence: of the weights, as the Hub names it, for the card.
        link: files that stay as they are may be hard links to the run's; for a folder that is gone soon.
    """

    merge: bool = False
    dtype: str | None = None
    licence: str | None = None
    link: bool = False


AS_TRAINED = ExportOptions()


def is_adapter(run: Path) -> bool:
    """Whether the folder holds an adapter, and not a whole model."""
    return (run / "adapter_config.json").is_file()


def base_of_adapter(run: Path) -> str:
    """The model that an adapter belongs to, as its configuration names it."""
    return str(json.loads((run / "adapter_config.json").read_text("utf-8"))["base_model_name_or_path"])


def write_weights(run: Path, recipe: Recipe, out: Path, options: ExportOptions) -> None:
    """Write weights, configuration, tokenizer and generation config.

    Raises:
        UserError: the run holds no model, cannot be loaded, has a link to elsewhere in the place of a file, or a dtype
            is asked for an adapter on its own.
    """
    resolve_name(str(run))
    adapter, dtype, link = is_adapter(run), options.dtype, options.link
    if adapter and not options.merge:
        if dtype is not None:
            raise UserError(
                f"--dtype {dtype}: {run} is an adapter, which is kept as it was trained",
                remedy="add --merge for a whole model, or leave --dtype out",
            )
        _place(run, out, (*_ADAPTER, *_TOKENIZER, *_TOKENIZER_MORE), link=link)
    elif adapter or dtype is not None:
        loaded = load_model(str(run), dtype=dtype or recipe.model.dtype)
        loaded.model.save_pretrained(out)
        loaded.tokenizer.save_pretrained(out)
        for path in out.glob("*.safetensors"):  # written readable for their owner alone
            path.chmod(0o644)
    else:
        _place(run, out, (*_FULL, *_TOKENIZER, *_TOKENIZER_MORE), link=link)
    _write_generation_config(run, out)
    _allow_a_cache(out / "config.json")


def _place(run: Path, out: Path, patterns: Iterable[str], *, link: bool) -> None:
    files = {path.name: path for pattern in patterns for path in sorted(run.glob(pattern)) if path.is_file()}
    for path in files.values():
        check_no_link(path, run)
    for name, path in files.items():
        if link:
            try:
                os.link(path.resolve(), out / name)
                continue
            except OSError:  # another disk, or one that has no links
                pass
        shutil.copyfile(path, out / name)


def _write_generation_config(run: Path, out: Path) -> None:
    """transformers' `generate` must stop where answers ended in training; a chat model's config may not say it."""
    tokenizer, encoder_decoder = load_tokenizer(str(run))
    end_of_turn = ChatEncoder(tokenizer, encoder_decoder=encoder_decoder).end_of_turn
    config = _generation_config(run, out)
    stops = merged_stop_ids(config.eos_token_id, end_of_turn)
    config.eos_token_id = stops[0] if len(stops) == 1 else stops
    config._from_model_config = False  # from now on it says more than the model's configuration does
    if config.pad_token_id is None:
        config.pad_token_id = pad_id(tokenizer)
    path = out / "generation_config.json"
    path.unlink(missing_ok=True)  # it may be a link to the run's
    path.write_text(config.to_json_string(use_diff=True), encoding="utf-8")


def _allow_a_cache(path: Path) -> None:
    """Training turns the cache off in the model's configuration; whoever decodes wants it."""
    if not path.is_file():
        return
    config = json.loads(path.read_text(encoding="utf-8"))
    if config.get("use_cache") is False:
        path.unlink()  # it may be a link to the run's
        path.write_text(json.dumps({**config, "use_cache": True}, indent=2) + "\n", encoding="utf-8")


def _generation_config(run: Path, out: Path) -> Any:
    from transformers import GenerationConfig

    for source in (str(out), resolve_name(base_of_adapter(run)) if is_adapter(run) else str(run)):
        try:
            return GenerationConfig.from_pretrained(source)
        except OSError:  # none there, or a base that only the Hub has and no Hub
            continue
    return GenerationConfig()
