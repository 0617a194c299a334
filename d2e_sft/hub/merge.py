"""An adapter merged into its base model, and the proof that the merged model says the same.

The merged checkpoint is read back from the disk, and its logits are compared with those of base and adapter as they
were trained, the adapter's product added at every layer. A run that fails this leaves nothing behind.
"""

from __future__ import annotations

import math
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from d2e_sft.config.recipe import recipe_of
from d2e_sft.data.chat_template import ChatEncoder
from d2e_sft.hub.export import export
from d2e_sft.hub.weights import ExportOptions, base_of_adapter, is_adapter
from d2e_sft.model.loading import LoadedModel, load_model, load_tokenizer, resolve_name
from d2e_sft.util.errors import UserError

# Of the largest logit: a merged weight is rounded once, and 8 bits of mantissa (bfloat16) round by up to 1/256.
TOLERANCES = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}
_PROBES = (
    "The rain stopped at noon. The road was dry by three. What happened first?",
    "Nadia put the key into the drawer and left. Felix moved it to the shelf. Where is the key now?",
    "List what a baker does before the shop opens, in order.",
)


@dataclass(frozen=True)
class Merged:
    """A merged checkpoint.

    Attributes:
        files: its files, by their paths in the folder.
        base: the model that the adapter was trained on.
        dtype: of the weights.
        difference: the largest difference of a logit, as a share of the largest logit.
        tolerance: what `difference` may be in this dtype.
        tokens: positions at which the logits were compared.
    """

    files: list[str]
    base: str
    dtype: str
    difference: float
    tolerance: float
    tokens: int


def merge(run: Path, out: Path, *, dtype: str | None = None) -> Merged:
    """Write the new folder `out`: base and adapter of a run as one model, with what `d2e export` writes beside it.

    Args:
        run: a run folder with an adapter, or one of its checkpoints.
        dtype: of the weights; None is the recipe's `model.dtype`.

    Raises:
        UserError: the run holds no adapter, `out` is there already, a model cannot be loaded, or the merged model's
            logits differ from the adapter's by more than the tolerance; nothing is written then.
    """
    _refuse_what_is_no_adapter(run)
    out = out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: already exists; expected a new folder", "choose another one, or remove it")
    recipe = recipe_of(str(run))
    dtype = dtype or (recipe.model.dtype if recipe is not None else "float32")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.merge-", dir=out.parent) as place:
        folder = Path(place) / "merged"
        files = export(run, folder, ExportOptions(merge=True, dtype=dtype))
        expected = _logits(_with_adapter(run, dtype))
        difference = _difference(expected, _logits(load_model(str(folder), dtype=dtype)))
        tolerance = TOLERANCES[dtype]
        if difference > tolerance:
            raise UserError(
                f"{run}: the merged model's logits differ from the adapter's by {difference:.1e} of the largest one; "
                f"expected at most {tolerance:g} in {dtype}, so nothing was written",
                remedy="merge in float32 (--dtype float32), or keep the adapter: d2e export without --merge",
            )
        os.replace(folder, out)
    tokens = sum(len(logits) for logits in expected)
    return Merged(files, base_of_adapter(run), dtype, difference, tolerance, tokens)


def _refuse_what_is_no_adapter(run: Path) -> None:
    if not run.is_dir():
        raise UserError(f"{run}: no such folder; expected a run with an adapter", "name a folder of `d2e train`")
    resolve_name(str(run))  # no model at all: says which checkpoints there are
    if not is_adapter(run):
        raise UserError(
            f"{run}: a whole model, with nothing to merge; expected an adapter (adapter_config.json)",
            remedy=f"evaluate and serve it as it is; d2e export {run} DIR writes it as a plain folder",
        )


def _with_adapter(run: Path, dtype: str) -> LoadedModel:
    """Base and adapter side by side, as in training; `load_model` merges them."""
    from peft import PeftModel

    base = load_model(base_of_adapter(run), dtype=dtype)
    model = PeftModel.from_pretrained(base.model, str(run))
    return LoadedModel(model=model, tokenizer=load_tokenizer(str(run))[0])


@torch.no_grad()
def _logits(loaded: LoadedModel) -> list[Tensor]:
    """(tokens, V) logits of each probe, in float32."""
    model = loaded.model.eval()
    config = model.config
    encoder = ChatEncoder(loaded.tokenizer, encoder_decoder=config.is_encoder_decoder)
    found = []
    for prompt in encoder.ids([[{"role": "user", "content": text}] for text in _PROBES]):
        inputs = {"input_ids": torch.tensor([prompt])}
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = torch.tensor([[config.decoder_start_token_id, *prompt]])
        found.append(model(**inputs).logits[0].float())
    return found


def _difference(expected: list[Tensor], found: list[Tensor]) -> float:
    """The largest difference of a logit, as a share of the largest one; NaN and a changed vocabulary are infinite."""
    if [logits.shape for logits in expected] != [logits.shape for logits in found]:
        return math.inf
    largest = max(logits.abs().max().item() for logits in expected)
    furthest = max((one - other).abs().max().item() for one, other in zip(expected, found, strict=True))
    return furthest / largest if math.isfinite(furthest) and largest > 0 else math.inf
