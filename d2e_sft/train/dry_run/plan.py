"""A run that is shown instead of trained: its rows, model, steps and some micro-batches, and their time."""

import math
import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.chat_template import pad_id
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.model.collation import Row, model_inputs
from d2e_sft.model.device import PeakMemory, unslowed_seconds, usable_device
from d2e_sft.model.forward import enable_checkpointing
from d2e_sft.model.loading import LoadedModel, load_tokenizer, without_weights
from d2e_sft.model.packing_support import Layout, agree_on_layout, collator_for
from d2e_sft.model.shapes import SHAPES, config_of
from d2e_sft.model.token_budget import TokenCosts
from d2e_sft.objective.attach import AttachedObjective
from d2e_sft.objective.reference import REFERENCE
from d2e_sft.train.checks import Steps, count_steps, loads_whole_steps
from d2e_sft.train.dry_run.cards import Where
from d2e_sft.train.loader import Draws, TokenBudgetSteps, problems
from d2e_sft.train.prepare import adapter_config, load_on_all, settle_recipe, wrapped_in_adapter
from d2e_sft.train.rows import check_pairs, read_rows, with_column
from d2e_sft.train.samples import Balance, read_split
from d2e_sft.util.distributed import process_state
from d2e_sft.util.errors import UserError
from d2e_sft.util.progress import Progress

DRAWS = 32  # micro-batches whose tokens are averaged
_NO_BLANKS = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}]"  # scripts
_PIECES = rf"{_NO_BLANKS}| ?(?:(?!{_NO_BLANKS})\p{{L}}){{1,7}}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]|\s+"
_START, _END, _UNKNOWN = "<|start|>", "<|end|>", "<|unknown|>"
_TEMPLATE = (
    "{% for message in messages %}" + _START + "{{ message['role'] }}\n{{ message['content'] }}" + _END + "\n"
    "{% endfor %}{% if add_generation_prompt %}" + _START + "assistant\n{% endif %}"
)
_ENOUGH_S = 10.0  # after two micro-batches, no further one is timed after this


class DrawnSamples(NamedTuple):
    """The micro-batches of an epoch, as row indices.

    `heaviest` has the most tokens as laid out; `of_a_step` is their average number per optimiser step and process.
    """

    micro_batches: list[list[int]]
    heaviest: list[int]
    of_a_step: float
    notes: list[str]


class Speed(NamedTuple):
    """Seconds (`unslowed_seconds`), and peak bytes, on this machine's device.

    A micro-batch's are those of the fastest one, by its tokens: other programs only make them slower.
    """

    per_micro_batch: float
    per_step: float  # the optimiser's own part
    micro_batches: int  # timed
    slowed: float = 1.0  # the clock's time of them all, divided by `unslowed_seconds`
    peak: int | None = None  # on a CPU the growth of the process, with its weights; None if not measurable

    def of_run(self, steps: Steps, cut: float = 1.0) -> float:
        """Return the seconds of a run whose processes are equally fast; `cut` as for `micro_batches_in_all`."""
        return micro_batches_in_all(steps, cut) * self.per_micro_batch + steps.total * self.per_step


class Plan:
    """A run that is shown; errors are those of a training, but for overlong rows, which are dropped."""

    def __init__(self, recipe: Recipe, where: Where) -> None:
        self.recipe, self.where = recipe, where
        settle_recipe(recipe, elsewhere=where.gpu is not None)
        read = read_split(recipe, "training")
        self.loaded = _load(recipe, where, read.chosen)
        self.training = read_rows(recipe, "training", self.loaded, progress=True, refuse=False, read=read)
        adapter = adapter_config(recipe)
        if adapter is not None and not where.reads_weights:
            adapter.init_lora_weights = True  # other initial values are computed from the weights
        self.model = wrapped_in_adapter(self.loaded.model, adapter, recipe.model.name)
        self.layout = agree_on_layout(self.model, recipe.d2e, recipe.train.packing, recipe.model.attention)
        self._collate = collator_for(self.layout, recipe.d2e, self.model.config, pad_id(self.loaded.tokenizer))
        self.rows = self.training.dataset
        if recipe.d2e.prefers:
            check_pairs(self.rows)
        if recipe.d2e.needs_reference:  # of any value
            self.rows = with_column(self.rows, REFERENCE, [[0.0, 0.0]] * len(self.rows))
        self.steps = count_steps(recipe, len(self.rows), where.processes)
        self.drawn = draw(recipe, self.rows, self.layout, self.steps)
        self.batches = [self.batch(part) for part in self.drawn.micro_batches[:DRAWS]]
        self.heaviest = self.batch(self.drawn.heaviest)

    def batch(self, part: Sequence[int]) -> dict[str, Any]:
        batch: dict[str, Any] = self._collate([self.rows[i] for i in part])
        return batch

    @property
    def average_tokens(self) -> tuple[float, float]:
        """Tokens of a micro-batch, as laid out and as separate views."""
        laid_out = sum(batch["input_ids"].numel() for batch in self.batches)
        return laid_out / len(self.batches), sum(batch["view_tokens"] for batch in self.batches) / len(self.batches)

    @property
    def cut(self) -> float:
        """Micro-batches for one of `steps`, which counts a share of a step that is loaded at once as one."""
        return self.drawn.of_a_step if loads_whole_steps(self.recipe) else 1.0

    @property
    def accumulation(self) -> int:
        """Micro-batches per optimiser step and process, rounded up."""
        return math.ceil(self.drawn.of_a_step)

    def measure_speed(self) -> Speed | None:
        """Time some micro-batches and an optimiser step, which changes the weights; None if they do not fit."""
        if self.recipe.train.gradient_checkpointing:
            enable_checkpointing(self.model)
        try:
            with Progress(total=5, desc="timing", unit="micro-batch") as bar:
                return self._speed(usable_device(), bar)
        except torch.OutOfMemoryError:
            return None
        finally:
            self.model.zero_grad()

    def _speed(self, device: torch.device, bar: Progress) -> Speed:
        model, train, memory = self.model, self.recipe.train, None
        with suppress(UserError):  # not available on this device or system
            memory = PeakMemory()
        model.to(device).train()
        objective = AttachedObjective(model, self.recipe.d2e, self.layout)

        def run(batch: dict[str, Any]) -> tuple[float, float]:
            act = partial(objective.backward, model, model_inputs(batch, device), train.precision, device)
            seconds = unslowed_seconds(act, device)
            bar.update()
            return seconds

        first, *batches = [*self.batches, *self.batches][:4]
        run(first)  # a warm-up
        timings = list[tuple[float, float]]()
        for batch in batches:
            timings.append(run(batch))
            if len(timings) > 1 and sum(seconds for seconds, _ in timings) > _ENOUGH_S:
                break
        per_token = min(
            seconds / batch["input_ids"].numel() for (seconds, _), batch in zip(timings, batches, strict=False)
        )
        slowed = sum(clock for _, clock in timings) / sum(seconds for seconds, _ in timings)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, fused=True)

        def step() -> None:
            nn.utils.clip_grad_norm_(trained, train.max_grad_norm)
            optimizer.step()

        step()  # makes the moments
        per_step = unslowed_seconds(step, device)[0]
        run(self.heaviest)  # last, while gradients and moments are in memory
        peak = None if memory is None else int(memory.peak_mb() * 2**20)
        if peak is not None and device.type == "cpu":  # the process held them before
            peak += sum(tensor.untyped_storage().nbytes() for tensor in (*model.parameters(), *model.buffers()))
        return Speed(per_token * self.average_tokens[0], per_step, len(timings), slowed, peak)


def draw(recipe: Recipe, rows: Sequence[Row], layout: Layout, steps: Steps) -> DrawnSamples:
    """Draw the micro-batches of the first epoch as training does."""
    train, costs = recipe.train, TokenCosts.of(rows, layout, recipe.d2e)
    if not loads_whole_steps(recipe):
        size, order = steps.micro_batch, list(range(len(rows)))
        longest = sorted(order, key=lambda i: costs.of_micro_batch([i]), reverse=True)
        random.Random(0).shuffle(order)
        micro_batches = [order[start : start + size] for start in range(0, len(rows), size)]
        return DrawnSamples(micro_batches, longest[:size], steps.accumulation, [])
    balance = Balance.of(recipe.data.balance, rows)
    draws = Draws(train.batch_size, train.seed, train.rows_per_context, balance)
    counted, budget = costs.budgeted(train.micro_batch_tokens, steps.micro_batch)
    epoch = list(TokenBudgetSteps(counted, draws, budget, processes=steps.processes))
    micro_batches = [part for step in epoch for part in step if part]
    notes = list(problems(costs, train, layout))
    return DrawnSamples(
        micro_batches, max(micro_batches, key=costs.of_micro_batch), len(micro_batches) / len(epoch), notes
    )


def micro_batches_in_all(steps: Steps, cut: float = 1.0) -> float:
    """Micro-batches of a run and process, each of `steps` split into `cut` on average."""
    epochs, rest = divmod(steps.total, steps.per_epoch)  # the last step of an epoch may have fewer micro-batches
    return cut * (epochs * steps.micro_batches + min(rest * steps.accumulation, steps.micro_batches))


def _load(recipe: Recipe, where: Where, samples: Sequence[EventSample]) -> LoadedModel:
    if recipe.model.quantization is not None and not where.reads_weights:
        raise UserError(
            f"--without-weights, --like, --gpu: the memory of model.quantization={recipe.model.quantization} cannot "
            "be estimated",
            remedy="leave them out, and --dry-run measures it on a machine that has the model",
        )
    if where.like is not None:
        tokenizer = load_tokenizer(where.tokenizer)[0] if where.tokenizer else estimating_tokenizer(recipe, samples)
        return LoadedModel(without_weights(config_of(where.like), recipe.model.dtype, None), tokenizer)
    try:
        return load_on_all(recipe, process_state(), weights=where.reads_weights)
    except UserError as error:
        if where.gpu is None:
            raise
        fitting = [shape for shape in SHAPES if shape in recipe.model.name.lower()]
        shape = max(fitting, key=len, default="qwen3-4b")
        remedy = f"take a published shape, which needs neither network nor model: --like {shape}"
        raise UserError(error.message, f"{error.remedy}; or {remedy}") from None


def estimating_tokenizer(recipe: Recipe, samples: Iterable[EventSample]) -> Any:
    """Make a tokenizer that estimates how many tokens a text has, for a model whose own tokenizer is not here.

    Words of up to seven letters are one token and longer ones several, each digit and each punctuation mark is one, as
    are scripts without blanks by the character. Prompts get the marks of a common chat template. The vocabulary is
    that of the samples' prompts and answers; other pieces share one id.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    wording = load_prompt_set(recipe.data.prompt_set, recipe.data.form)
    core = Tokenizer(models.WordLevel(unk_token=_UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    core.decoder = decoders.Fuse()  # pieces have their blanks
    trainer = trainers.WordLevelTrainer(
        vocab_size=10**7, special_tokens=[_UNKNOWN, _START, _END], show_progress=False, min_frequency=0
    )
    texts = (
        text
        for sample in samples
        for text in (
            wording.response(sample),
            *(turn["content"] for view in recipe.d2e.views for turn in wording.messages(sample, view)),
        )
    )
    core.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=_END, pad_token=_END, unk_token=_UNKNOWN,
        additional_special_tokens=[_START], chat_template=_TEMPLATE,
    )  # fmt: skip


def per_word(tokenizer: Any, samples: Iterable[EventSample]) -> float:
    """Return the tokens per word of the samples' contexts and questions."""
    texts = [f"{sample.context} {sample.question}" for sample in samples]
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return sum(map(len, ids)) / max(sum(len(text.split()) for text in texts), 1)
