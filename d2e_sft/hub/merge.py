"""Merge an adapter into its base model, and check that the merged model gives the same logits.

The merged checkpoint is read back from disk and compared with base and adapter as they were trained, with the
adapter's product added at every layer. If they differ, nothing is written.
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
from d2e_sft.hub.client import check_new_folder
from d2e_sft.hub.export import export
from d2e_sft.hub.weights import ExportOptions
from d2e_sft.model.loading import LoadedModel, base_of_adapter, load_model, load_tokenizer, resolve_name
from d2e_sft.util.errors import UserError

# Shares of the largest logit. A merged weight is rounded once, in bfloat16 by up to 1/256.
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
        difference: the largest difference of a logit, as a share of the largest logit.
        tolerance: the allowed `difference` in this dtype.
    """

    files: list[str]
    base: str
    dtype: str
    difference: float
    tolerance: float


def merge(run: Path, out: Path, *, dtype: str | None = None) -> Merged:
    """Write base and adapter of a run as one model to the new folder `out`, with all other files of `d2e export`.

    Args:
        run: a run folder with an adapter, or one of its checkpoints.
        dtype: of the weights; None is the recipe's `model.dtype`.

    Raises:
        UserError: the run has no adapter, `out` exists, a model cannot be loaded, or the merged model's logits differ
            by more than the tolerance.
    """
    base = _base_of(run)
    out = out.absolute()
    check_new_folder(out)
    recipe = recipe_of(str(run))
    dtype = dtype or (recipe.model.dtype if recipe is not None else "float32")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.merge-", dir=out.parent) as place:
        folder = Path(place) / "merged"
        files = export(run, folder, ExportOptions(merge=True, dtype=dtype))
        expected = _logits(_with_adapter(run, base, dtype))
        difference = _difference(expected, _logits(load_model(str(folder), dtype=dtype)))
        tolerance = TOLERANCES[dtype]
        if difference > tolerance:
            raise UserError(
                f"{run}: the merged model's logits differ from the adapter's by {difference:.1e} of the largest one; "
                f"expected at most {tolerance:g} in {dtype}, so nothing was written",
                remedy="merge in float32 (--dtype float32), or keep the adapter: d2e export without --merge",
            )
        os.replace(folder, out)
    return Merged(files, base, dtype, difference, tolerance)


def _base_of(run: Path) -> str:
    if not run.is_dir():
        raise UserError(f"{run}: no such folder; expected a run with an adapter", "name a folder of `d2e train`")
    resolve_name(str(run))  # lists the checkpoints if there is no model
    base = base_of_adapter(run)
    if base is None:
        raise UserError(
            f"{run}: a whole model, with nothing to merge; expected an adapter (adapter_config.json)",
            remedy=f"evaluate and serve it as it is; d2e export {run} DIR writes it as a plain folder",
        )
    return base


def _with_adapter(run: Path, base: str, dtype: str) -> LoadedModel:
    """Load base and adapter separately, as in training; `load_model` merges them."""
    from peft import PeftModel

    model = PeftModel.from_pretrained(load_model(base, dtype=dtype).model, str(run))
    return LoadedModel(model=model, tokenizer=load_tokenizer(str(run))[0])


@torch.no_grad()
def _logits(loaded: LoadedModel) -> list[Tensor]:
    """Return the logits (tokens, V) of each probe, in float32."""
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
    """Return the largest difference of a logit, as a share of the largest logit; infinite for NaN or other shapes."""
    if [logits.shape for logits in expected] != [logits.shape for logits in found]:
        return math.inf
    largest = max(logits.abs().max().item() for logits in expected)
    furthest = max((one - other).abs().max().item() for one, other in zip(expected, found, strict=True))
    return furthest / largest if math.isfinite(furthest) and largest > 0 else math.inf
