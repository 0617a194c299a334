"""The probabilities that `d2e inspect` shows are those of the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.loading import load_model
from eval.pages.inspection.distributions import answer_positions
from tests.tiny import make_sample, save_tiny_model

ALPHAS = [0.0, 0.5, 1.3]


@pytest.mark.parametrize(("kind", "seed"), [("llama", 3), ("t5", 0)])
def test_probabilities_are_the_softmax_of_the_subtracted_logits(tmp_path: Path, kind: str, seed: int) -> None:
    loaded = load_model(str(save_tiny_model(tmp_path / kind, kind, seed)))
    model, seq2seq = loaded.model.eval().double(), kind == "t5"
    encoder = ViewEncoder(
        loaded.tokenizer, load_prompt_set("default"), ("original", "imagined"), encoder_decoder=seq2seq
    )
    encoded = encoder.encode(make_sample(2))
    original, imagined, answer = encoded.prompts["original"], encoded.prompts["imagined"], encoded.answer
    positions = answer_positions(model, loaded.tokenizer, (original, imagined), answer, alphas=ALPHAS, top=5)
    assert [position.candidates[position.chosen].token for position in positions] == answer
    for i, position in enumerate(positions):
        with torch.no_grad():
            if seq2seq:
                start = [model.config.decoder_start_token_id, *answer[:i]]
                rows = [
                    model(input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([start])).logits[0, -1]
                    for prompt in (original, imagined)
                ]
            else:
                rows = [model(torch.tensor([[*prompt, *answer[:i]]])).logits[0, -1] for prompt in (original, imagined)]
        for alpha, normaliser in zip(ALPHAS, position.normalisers, strict=True):
            expected = (rows[0] - alpha * rows[1]).softmax(dim=-1)
            ids = [one.token for one in position.candidates]
            ours = torch.tensor(
                [one.original - alpha * one.imagined - normaliser for one in position.candidates]
            ).exp()
            torch.testing.assert_close(ours, expected[ids].float(), rtol=1e-4, atol=1e-6)
            assert set(expected.topk(5).indices.tolist()) <= set(ids), "the likeliest are kept at every ratio"
        assert set(rows[1].topk(5).indices.tolist()) <= set(ids)
