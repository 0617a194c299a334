"""The objective `prefer` the naive way, one forward per answer, and a step of training on pairs."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from d2e_sft.config.recipe import D2ESection
from d2e_sft.objective.preference import FORMS
from d2e_sft.train.config import D2EConfig
from d2e_sft.train.trainer import D2ETrainer
from tests.naive import encoded_rows
from tests.tiny import tiny_model

CONFIGS = {
    **{form: D2ESection(objective="prefer", prefer_form=form, sft_weight=0.7) for form in FORMS},
    "dpo alone": D2ESection(objective="prefer", sft_weight=0, prefer_beta=0.5),
    "simpo without a margin": D2ESection(objective="prefer", prefer_form="simpo", prefer_gamma=0),
}
REJECTED = {0: [5, 9, 7, 30, 2], 1: [11, 3], 3: [40, 41, 42, 43, 44, 45, 46, 2]}  # row → tokens; the others have none


def pair_rows(config: D2ESection = CONFIGS["dpo"], count: int = 5) -> list[dict[str, Any]]:
    rows = encoded_rows(config, count)
    return [{**row, "rejected": REJECTED.get(number % 5, [])} for number, row in enumerate(rows)]


def changed(model: Any, amount: float = 0.05) -> Any:
    """The model after some training."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(amount * torch.randn(parameter.shape))
    return model


def token_log_p(model: Any, row: dict[str, Any], answer: list[int]) -> torch.Tensor:
    if model.config.is_encoder_decoder:
        decoder = torch.tensor([[model.config.decoder_start_token_id, *answer[:-1]]])
        logits = model(input_ids=torch.tensor([row["original"]]), decoder_input_ids=decoder).logits[0]
    else:
        logits = model(input_ids=torch.tensor([row["original"] + answer])).logits[0, -len(answer) - 1 : -1]
    return torch.stack([z.softmax(-1)[token].log() for z, token in zip(logits.double(), answer, strict=True)])


def pair_loss(form: str, gold: torch.Tensor, other: torch.Tensor, ratios: Sequence[Any], config: D2ESection) -> Any:
    """A pair's loss by its formula; `ratios` are log p − log r of both answers."""
    beta, gamma = config.prefer_beta or (2.0 if form == "simpo" else 0.1), config.prefer_gamma
    s, t = ratios
    if form == "dpo":
        return -(1 / (1 + (-beta * (s - t)).exp())).log()
    if form == "hinge":
        return max(1 - beta * (s - t), torch.zeros((), dtype=torch.float64))
    if form == "ipo":
        return (s / len(gold) - t / len(other) - 1 / (2 * beta)) ** 2
    p, q = gold.mean().exp(), other.mean().exp()
    if form == "simpo":
        return -(1 / (1 + math.exp(gamma) * (q / p) ** beta)).log()
    odds = (p / (1 - p)) / (q / (1 - q))
    return -beta * (odds / (1 + odds)).log()


def naive(model: Any, reference: Any, rows: Sequence[dict[str, Any]], config: D2ESection) -> dict[str, Any]:
    """The loss and the log's values, from one forward per answer."""
    golds = [token_log_p(model, row, row["answer"]) for row in rows]
    losses, means = [], []
    for row, gold in zip(rows, golds, strict=True):
        if not row["rejected"]:
            continue
        other = token_log_p(model, row, row["rejected"])
        with torch.no_grad():
            base = [token_log_p(reference, row, row[name]).sum() for name in ("answer", "rejected")]
        ratios = [one.sum() - r for one, r in zip((gold, other), base, strict=True)]
        losses.append(pair_loss(config.prefer_form, gold, other, ratios, config))
        scores = ratios if config.prefer_form in ("dpo", "ipo", "hinge") else [gold.mean(), other.mean()]
        beta = config.prefer_beta or (2 if config.prefer_form == "simpo" else 0.1)
        means.append([*(beta * s.item() for s in scores), gold.sum().item(), other.sum().item()])
    ce, tokens = -sum(gold.sum() for gold in golds), sum(map(len, golds))
    names = ("rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected")
    return {
        "loss": config.sft_weight * ce / tokens + sum(losses) / len(losses),
        "preference": sum(losses) / len(losses),
        **{name: sum(column) / len(means) for name, column in zip(names, zip(*means, strict=True), strict=True)},
        "rewards/margins": sum(one[0] - one[1] for one in means) / len(means),
        "rewards/accuracies": sum(one[0] > one[1] for one in means) / len(means),
    }


SGD = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0, "logging_steps": 1,
       "logging_first_step": False, "bf16": False, "disable_tqdm": True}  # fmt: skip


def step(
    folder: Path, config: D2ESection, rows: Any, model: Any = None, **options: Any
) -> tuple[Any, dict[str, float]]:
    """The change of the weights in one step over all rows, and its log."""
    whole = {} if "micro_batch_tokens" in options else {"gradient_accumulation_steps": 1}
    size = {"per_device_train_batch_size": len(rows), "max_steps": 1, "overwrite_output_dir": True}
    given = {**size, **whole, **SGD, **config.model_dump(), **options}
    trainer = D2ETrainer(model or tiny_model(seed=3), D2EConfig(str(folder), **given), train_dataset=rows)
    start = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train()
    moved = torch.cat([(p.detach() - q).flatten() for p, q in zip(trainer.model.parameters(), start, strict=True)])
    return moved, trainer.state.log_history[0]
