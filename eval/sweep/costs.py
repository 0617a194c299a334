"""What a dry run says a command costs: tokens, disk and hours, before any data are built or a model is loaded.

Time is model FLOPs as `d2e bench gpu` counts them, over the rate that the sweep's `expected` assumes; decoding
reads all weights for every new token of a batch. Starting and loading are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from d2e_sft.judge.options import DEFAULT_KEY_ENV
from eval.sweep.plan import Point, Sweep
from eval.sweep.spec import Expected, SweepSpec

_WEIGHT, _CHECKPOINT = 4, 12  # bytes of a parameter: in float32, and with Adam's two moments
_READ = 2  # bytes of a parameter that decoding reads, in 16 bits


@dataclass(frozen=True)
class CommandCost:
    """Tokens that are computed, bytes that stay and that pass, and seconds on the machine that `on` names."""

    tokens: float
    seconds: float
    on: str
    kept: float = 0.0
    passing: float = 0.0

    def describe(self) -> str:
        from d2e_sft.train.dry_run.report import hours

        sizes = {"kept": self.kept, "while it runs": self.passing}
        kept = "".join(f"{size / 1e9:,.3g} GB {when}, " for when, size in sizes.items() if size)
        return f"{self.tokens / 1e6:,.3g} M tokens, {kept}{hours(self.seconds)} on {self.on}"


def sum_of(costs: Sequence[CommandCost]) -> CommandCost:
    """Return the cost of commands one after another; what passes is the most of one."""
    return CommandCost(
        sum(cost.tokens for cost in costs), sum(cost.seconds for cost in costs), costs[0].on,
        sum(cost.kept for cost in costs), max(cost.passing for cost in costs),
    )  # fmt: skip


def cost_of(sweep: Sweep, point: Point, words: Sequence[str]) -> CommandCost | None:
    """Return the cost of a command; None if it computes no model, or nothing is expected of its model or suite."""
    expected = sweep.spec.expected
    model = None if expected is None or words[0] not in ("train", "eval") else _model(point.recipe.model.name)
    if expected is None or model is None:
        return None
    if words[0] == "train":
        return _training(sweep.spec, expected, point, model)
    return _evaluation(expected, point, model, words)


def paid_judge(sweep: Sweep, words: Sequence[str], *, again: bool = False) -> str | None:
    """Return what a build asks of a paid endpoint, with its key and cost; None if it asks none.

    `again` is a build after another one: what both ask is paid once, since replies are kept.
    """
    options = dict(pairwise(words))  # of an option that is given twice, the last
    models = [options.get(f"{by}-model") for by in ("--judge", "--refine") if options.get(by) == "openai"]
    if words[:2] != ["data", "build"] or not models or "--judge-url" in options:
        return None
    dollars = None if sweep.spec.expected is None else sweep.spec.expected.judge_dollars
    if again:
        cost = "nothing for replies that a build above keeps"
    elif dollars is None:
        cost = "add --judge-price IN,OUT --estimate to see the cost"
    else:
        cost = f"about {dollars:,.0f} USD"
    key = f"{options.get('--judge-key-env', DEFAULT_KEY_ENV)}"
    return f"asks {models[0] or 'a model'} by OpenAI's API, which is paid: needs {key}; {cost}"


@cache
def _model(name: str) -> Any:
    """Return a model of the shape without data; None if the name begins like no shape's."""
    import torch

    from d2e_sft.model.shapes import SHAPES, random_model

    short = name.rpartition("/")[2].removeprefix("builtin:").lower()
    shape = next((shape for shape in SHAPES if short.startswith(shape)), None)
    return None if shape is None else random_model(shape, torch.device("meta"))


def _training(spec: SweepSpec, expected: Expected, point: Point, model: Any) -> CommandCost:
    from d2e_sft.model.shapes import Work
    from d2e_sft.train.checks import count_steps

    recipe, train = point.recipe, point.recipe.train
    rows = min(expected.rows, recipe.data.max_samples or expected.rows)
    steps = count_steps(recipe, rows, expected.devices)
    seen, views = rows * steps.total / steps.per_epoch, recipe.d2e.views
    tokens = seen * sum(expected.tokens[view] for view in views)
    pairs = seen * sum(expected.tokens[view] ** 2 / 2 for view in views)
    flops = Work(round(tokens), round(seen * expected.answer * len(views)), round(pairs)).flops(model)
    size = _parameters(model)
    kept = 0 if train.save_steps is None else train.save_total_limit or steps.total // train.save_steps
    checkpoints = _CHECKPOINT * size * kept
    whole = _WEIGHT * size + checkpoints + (_CHECKPOINT * size if kept else 0)  # one more while it is written
    staying = spec.keep_models * _WEIGHT * size + spec.keep_checkpoints * checkpoints
    return CommandCost(tokens, _seconds(expected, flops), expected.on, staying, whole - staying)


def _evaluation(expected: Expected, point: Point, model: Any, words: Sequence[str]) -> CommandCost | None:
    from d2e_sft.model.shapes import Work

    suite = expected.suites.get(words[words.index("--suite") + 1]) if "--suite" in words else None
    if suite is None:
        return None
    prompts = [suite.prompt, *([suite.without_context] if point.decoding.needs_imagined else [])]
    tokens = suite.rows * (sum(prompts) + suite.answer * len(prompts))
    flops = Work(0, 0, 0, round(tokens), round(suite.rows * sum(length**2 / 2 for length in prompts))).flops(model)
    batches = suite.rows / point.recipe.decoding.group_batch_size / expected.devices
    reading = batches * suite.answer * _READ * _parameters(model) / expected.bytes_per_s
    return CommandCost(tokens, _seconds(expected, flops) + reading, expected.on)


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _seconds(expected: Expected, flops: float) -> float:
    return flops / (expected.devices * expected.flops * expected.utilisation)
