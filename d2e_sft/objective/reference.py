"""The reference of the objective `prefer`: log-probabilities of the answers by a model that is not trained.

They are computed once before training, in the layout of training, and kept in the cache. The name of their file is a
hash of the reference's weights and of the rows. By default the reference is the model before training, which a new
adapter does not change yet.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import nn
from transformers.integrations import is_deepspeed_zero3_enabled

from d2e_sft.config.objectives import BASE
from d2e_sft.config.recipe import D2ESection, Recipe
from d2e_sft.model.collation import Row, model_inputs
from d2e_sft.model.forward import bare_model, evaluating
from d2e_sft.model.loading import load_config, load_model, load_tokenizer
from d2e_sft.model.packing_support import Layout, agree_on_layout, collator_for, computing_on
from d2e_sft.objective.attach import answer_log_probabilities
from d2e_sft.util.distributed import broadcast_from_main
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_results, with_checksums, write_json
from d2e_sft.util.paths import cache_dir
from d2e_sft.util.progress import Progress

REFERENCE = "reference"  # the column with the log-probabilities of both answers of a row
_READ = ("original", "answer", "trained", "rejected", "rejected_trained")  # columns that they depend on
_VOLATILE = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "pad_token_id"}


@dataclass(frozen=True)
class Reference:
    model: Any  # possibly with an adapter
    layout: Layout

    @classmethod
    def of(cls, d2e: D2ESection, model: Any, layout: Layout, tokenizer: Any = None) -> Self:
        """Return the model before training, or load another one of the same tokens and architecture.

        A `tokenizer` of None leaves that of the other model unchecked.
        """
        if is_deepspeed_zero3_enabled():
            raise UserError(
                f"d2e.prefer_form={d2e.prefer_form}: needs whole weights before training, and ZeRO-3 shards them",
                remedy="use --launch ddp or zero2, or d2e.prefer_form=orpo",
            )
        if d2e.prefer_reference == BASE:
            return cls(model, layout)
        key, trained = f"d2e.prefer_reference={d2e.prefer_reference}", bare_model(model)
        loaded = load_model(d2e.prefer_reference)
        _refuse_other_tokens(key, (loaded.model.config, loaded.tokenizer), (trained.config, tokenizer))
        kind, expected = (lm.config.get_text_config().model_type for lm in (loaded.model, trained))
        if kind != expected:
            raise UserError(
                f"{key}: has the architecture {kind}; expected {expected}, that of the trained model",
                remedy="use the model before training (base), or another run of it",
            )
        return cls(loaded.model, agree_on_layout(loaded.model, d2e))

    def log_probabilities(
        self, d2e: D2ESection, rows: Sequence[Row], *, pad_token_id: int = 0, batch_size: int = 8, precision: str = ""
    ) -> list[list[float]]:
        """Return for each row the log-probabilities of the gold answer and of the rejected one, 0 without one.

        All processes call it; each computes its share. `precision` is that of the caller's autocast.
        """
        state = PartialState()
        path, kept = broadcast_from_main(state, lambda: self._kept(rows, precision))
        if kept is not None:
            return kept
        starts = range(state.process_index * batch_size, len(rows), state.num_processes * batch_size)
        collate = collator_for(self.layout, d2e, bare_model(self.model).config, pad_token_id)
        share = dict[int, list[list[float]]]()
        with computing_on(state.device, bare_model(self.model), whole=True), evaluating(self.model):
            for start in Progress(starts, desc="reference", unit="batch"):
                batch = [rows[i] for i in range(start, min(start + batch_size, len(rows)))]
                share[start] = self._of_batch(batch, collate)
        by_start: dict[int, list[list[float]]] = {}
        for of_process in gather_object([share]) if state.num_processes > 1 else [share]:
            by_start |= of_process
        ordered = [row for start in sorted(by_start) for row in by_start[start]]
        broadcast_from_main(state, lambda: _write(path, ordered))
        return ordered

    def _kept(self, rows: Sequence[Row], precision: str) -> tuple[Path, list[list[float]] | None]:
        """Return the file of these rows' log-probabilities, and its content, if any."""
        used = [{name: row.get(name) for name in _READ} for row in rows]
        content = [_digest(self.model), precision, hashlib.sha256(json.dumps(used).encode()).hexdigest()]
        path = cache_dir() / REFERENCE / f"{hashlib.sha256(' '.join(content).encode()).hexdigest()}.json"
        return path, _read(path, len(rows))

    @torch.no_grad()
    def _of_batch(self, batch: Sequence[Row], collate: Any) -> list[list[float]]:
        inputs = model_inputs(collate(batch), self.model.device)
        owner = inputs["pairs"].owner.tolist()
        gold, rejected = answer_log_probabilities(self.model, self.layout, inputs).split([len(batch), len(owner)])
        by_owner = dict(zip(owner, rejected.tolist(), strict=True))
        return [[log_p, by_owner.get(b, 0.0)] for b, log_p in enumerate(gold.tolist())]


def check_reference(recipe: Recipe) -> None:
    """Check, before weights are read, that a recipe's reference exists, has finished and has the model's tokens."""
    name, trained = recipe.d2e.prefer_reference, recipe.model.name
    key = f"d2e.prefer_reference={name}"
    try:
        reference = (load_config(name), load_tokenizer(name)[0])
    except UserError as error:
        raise UserError(f"{key}: {error.message}", error.remedy) from None
    _refuse_other_tokens(key, reference, (load_config(trained), load_tokenizer(trained)[0]))


def _refuse_other_tokens(key: str, reference: tuple[Any, Any], trained: tuple[Any, Any]) -> None:
    """Compare configurations and tokenizers; a tokenizer of None is not compared."""
    size, expected = (config.get_text_config().vocab_size for config, _ in (reference, trained))
    if size != expected or (trained[1] is not None and reference[1].get_vocab() != trained[1].get_vocab()):
        difference = "another tokenizer" if size == expected else f"a vocabulary of {size} tokens, not {expected}"
        raise UserError(
            f"{key}: has {difference}, so its log-probabilities are of other tokens",
            remedy="use a model with the tokenizer of model.name, for example another run of it",
        )


def _digest(model: nn.Module) -> str:
    """Return the SHA-256 of weights and configuration; a new adapter, which changes nothing yet, is left out."""
    adapters = tuple(f".{name}." for name in getattr(model, "peft_config", {}))
    added = {name: p for name, p in model.named_parameters() if any(part in f"{name}." for part in adapters)}
    idle = all("lora_A" in name or "lora_embedding_A" in name or not p.any() for name, p in added.items())
    config = bare_model(model).config.to_dict()
    digest = hashlib.sha256(json.dumps({k: str(v) for k, v in config.items() if k not in _VOLATILE}).encode())
    for name, parameter in model.named_parameters():
        if not (idle and name in added):
            digest.update(f"{parameter.dtype} {tuple(parameter.shape)}".encode())
            digest.update(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read(path: Path, rows: int) -> list[list[float]] | None:
    """Return kept log-probabilities; None without a file, or if it is damaged."""
    if not path.is_file():
        return None
    try:
        kept = read_results(dict[str, list[list[float]]], path, "log-probabilities of a reference", "")["rows"]
    except (UserError, KeyError):
        return None
    return kept if len(kept) == rows else None


def _write(path: Path, rows: list[list[float]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, with_checksums({"rows": rows}))
