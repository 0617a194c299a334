"""One micro-batch: what goes into the model, and the gradients that it leaves."""

from __future__ import annotations

import torch

from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import Collator, model_inputs
from d2e_sft.model.forward import forward_backward
from d2e_sft.objective.attach import attach_objective
from tests.naive import encoded_rows, gradients_of, naive_sums
from tests.tiny import tiny_model

CPU = torch.device("cpu")


def test_gradients_are_those_of_the_mean_over_answer_tokens() -> None:
    d2e, rows = D2ESection(), encoded_rows(D2ESection(), 2)
    model, reference = tiny_model(seed=3), tiny_model(seed=3)
    (naive_sums(reference, rows, d2e)["loss"] / sum(len(row["answer"]) for row in rows)).backward()
    attach_objective(model, d2e)
    by_cudnn: list[bool] = []
    model.register_forward_hook(lambda *_: by_cudnn.append(torch.backends.cuda.cudnn_sdp_enabled()))
    forward_backward(model, model_inputs(Collator("batched", d2e.views)(rows), CPU), "float32", CPU)
    assert by_cudnn == [False], "as in training"
    assert torch.backends.cuda.cudnn_sdp_enabled()
    theirs = gradients_of(reference)
    for name, gradient in gradients_of(model).items():
        assert (gradient - theirs[name]).norm() <= 1e-5 * theirs[name].norm() + 1e-9, name
