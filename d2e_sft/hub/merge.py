"""Check that a merged checkpoint gives the logits of its base and adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from d2e_sft.data.chat_template import ChatEncoder
from d2e_sft.model.loading import load_model, load_tokenizer
from d2e_sft.util.errors import UserError

# Shares of the largest logit. A merged weight is rounded once, in bfloat16 by up to 1/256.
_TOLERANCES = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}
_PROBES = (
    "The rain stopped at noon. The road was dry by three. What happened first?",
    "Nadia put the key into the drawer and left. Felix moved it to the shelf. Where is the key now?",
    "List what a baker does before the shop opens, in order.",
)


def check_merged(folder: Path, run: Path, base: str, dtype: str) -> None:
    """Compare the logits of the model in `folder` with those of the base with the run's adapter at every layer.

    Raises:
        UserError: a logit differs by more than the tolerance of the dtype.
    """
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(load_model(base, dtype=dtype).model, str(run))
    tokenizer, encoder_decoder = load_tokenizer(str(run))
    encoder = ChatEncoder(tokenizer, encoder_decoder=encoder_decoder)
    prompts = encoder.ids([[{"role": "user", "content": text}] for text in _PROBES])
    expected, found = (_logits(model, prompts) for model in (adapted, load_model(str(folder), dtype=dtype).model))
    difference = ((found - expected).abs().max() / expected.abs().max()).item()
    if not difference <= _TOLERANCES[dtype]:  # NaN included
        raise UserError(
            f"{run}: the merged model's logits differ from the adapter's by {difference:.1e} of the largest one; "
            f"expected at most {_TOLERANCES[dtype]:g} in {dtype}, so nothing was written",
            remedy="merge in float32 (--dtype float32), or keep the adapter: leave --merge out",
        )


@torch.no_grad()
def _logits(model: Any, prompts: list[list[int]]) -> Tensor:
    """Return the logits (tokens of all prompts, V) in float32."""
    config, found = model.eval().config, []
    for prompt in prompts:
        inputs = {"input_ids": torch.tensor([prompt])}
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = torch.tensor([[config.decoder_start_token_id, *prompt]])
        found.append(model(**inputs).logits[0].float())
    return torch.cat(found)
