"""TRL's SFTTrainer and DPOTrainer as engines of `d2e bench train`: their own collators and losses.

The loss of SFT covers only completions, with and without packing (best-fit decreasing, padding-free). DPO gets the
log-probabilities of the reference with its rows, its fastest setting (`precompute_ref_log_probs`). Trainers are built
before the timed steps. A timed step runs the collator, `compute_loss` and the backward.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from d2e_sft.bench.engines import PREFER, Engine
from d2e_sft.config.recipe import D2ESection, Precision
from d2e_sft.model.collation import IGNORE, Row
from d2e_sft.util.errors import UserError

_LOSS_TYPES = {"dpo": "sigmoid", "ipo": "ipo", "hinge": "hinge"}  # our forms by TRL's names


def trl_is_missing() -> str | None:
    """Return why TRL's trainer is not available, or None."""
    for name in ("trl", "datasets"):
        if find_spec(name) is None:
            return f"{name} is not installed"
    try:
        from trl import DPOTrainer, SFTConfig, SFTTrainer  # noqa: F401
    except (ImportError, RuntimeError) as error:  # a dependency has another version
        return f"trl cannot be imported ({str(error).splitlines()[0]})"
    return None


def trl_engines(precision: Precision, *, prefers: bool = False) -> tuple[Engine, ...]:
    """Return the engines of TRL's SFT without and with packing, or of its DPO; UserError if it is not installed."""
    missing = trl_is_missing()
    if missing is not None:
        raise UserError(f"TRL's trainers cannot be measured: {missing}", "pip install 'd2e-sft[bench]'")
    if prefers:
        loss = _TrlPreference(precision)
        return (Engine("trl", "sft_plain", False, loss, False, elsewhere=True, prefers=True, prepare=loss.prepare),)

    def engine(name: str, packing: bool) -> Engine:
        loss = _TrlLoss(packing, precision)
        return Engine(
            name, "sft_plain", shares_samples=False, loss=loss, packed=False, is_sft=True, elsewhere=True,
            prepare=loss.prepare,
        )  # fmt: skip

    return engine("trl", packing=False), engine("trl_packed", packing=True)


class _TrlLoss:
    """The loss of a trainer that is built for the first rows it gets, summed over answer tokens."""

    def __init__(self, packing: bool, precision: Precision) -> None:
        self.packing, self.precision = packing, precision
        self._rows: Sequence[Row] | None = None
        self._trainer: Any = None

    def prepare(self, model: Any, rows: Sequence[Row]) -> None:
        """Build the trainer, which is not timed."""
        if self._rows is not rows:
            self._trainer, self._rows = _trainer(model, rows, self.packing, self.precision), rows

    def __call__(self, model: Any, rows: Sequence[Row], d2e: D2ESection) -> Tensor:
        self.prepare(model, rows)
        trainer = self._trainer
        batch = trainer.data_collator([dict(row) for row in trainer.train_dataset])
        answers = batch["labels"].ne(IGNORE).sum()
        loss: Tensor = trainer.compute_loss(model, trainer._prepare_inputs(batch))
        return loss * answers.to(loss.device)


class _TrlPreference:
    """The loss of a preference trainer that is built at the first call, times the gold answer tokens."""

    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self._trainer: Any = None
        self._of: D2ESection | None = None

    def prepare(self, model: Any, rows: Sequence[Row], d2e: D2ESection = PREFER) -> None:
        """Build the trainer, which is not timed."""
        if self._of != d2e:
            self._trainer, self._of = _preference_trainer(model, d2e, self.precision), d2e

    def __call__(self, model: Any, rows: Sequence[Row], d2e: D2ESection) -> Tensor:
        self.prepare(model, rows, d2e)
        batch = self._trainer.data_collator(
            [
                {
                    "prompt_ids": [*row["original"]],
                    "chosen_ids": [*row["answer"]],
                    "rejected_ids": [*row["rejected"]],
                    "ref_chosen_logps": row["reference"][0],
                    "ref_rejected_logps": row["reference"][1],
                }
                for row in rows
            ]
        )
        loss: Tensor = self._trainer.compute_loss(model, self._trainer._prepare_inputs(batch))
        return loss * sum(len(row["answer"]) for row in rows)


def _preference_trainer(model: Any, d2e: D2ESection, precision: Precision) -> Any:
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import DPOConfig, DPOTrainer

    config = DPOConfig(
        loss_type=[_LOSS_TYPES[d2e.prefer_form], *(["sft"] if d2e.sft_weight else [])],
        loss_weights=[1.0, *([d2e.sft_weight] if d2e.sft_weight else [])],
        beta=d2e.beta,
        max_length=None,
        **_arguments(model, precision),
    )
    words = Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}])  # not used: it takes no tokens
    tiny = LlamaConfig(vocab_size=2, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    with _own_forward(model):
        # The trainer wants a reference, but does not ask it: rows have its log-probabilities.
        trainer = DPOTrainer(
            model, LlamaForCausalLM(tiny), args=config, train_dataset=words, processing_class=_tokenizer()
        )
        trainer.precompute_ref_logps = True
        return _with_its_own_forward(trainer, model)


def _trainer(model: Any, rows: Sequence[Row], packing: bool, precision: Precision) -> Any:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    labelled = [
        {"input_ids": [*row["original"], *row["answer"]], "labels": [*[IGNORE] * len(row["original"]), *row["answer"]]}
        for row in rows
    ]
    config = SFTConfig(
        per_device_train_batch_size=len(rows),
        packing=packing,
        max_length=sum(len(row["input_ids"]) for row in labelled) if packing else None,
        **_arguments(model, precision),
    )
    with _own_forward(model):
        trainer = SFTTrainer(
            model=model, args=config, train_dataset=Dataset.from_list(labelled), processing_class=_tokenizer()
        )
        return _with_its_own_forward(trainer, model)


def _arguments(model: Any, precision: Precision) -> dict[str, Any]:
    return {
        "output_dir": tempfile.gettempdir(),  # nothing is saved
        "bf16": precision == "bfloat16",
        "fp16": precision == "float16",
        "use_cpu": model.device.type == "cpu",
        "gradient_checkpointing": False,
        "report_to": "none",
        "disable_tqdm": True,
        "dataset_num_proc": None,
    }


def _with_its_own_forward(trainer: Any, model: Any) -> Any:
    wrapped, compute_loss = model.forward, trainer.compute_loss

    # Each trainer wraps the model's forward: only this trainer may call the wrapper.
    def compute(model: Any, inputs: dict[str, Any]) -> Any:
        with _own_forward(model):
            model.forward = wrapped
            return compute_loss(model, inputs)

    trainer.compute_loss = compute
    return trainer


@contextmanager
def _own_forward(model: Any) -> Iterator[None]:
    """Restore the model's forward at the end."""
    before = {name: own for name, own in vars(model).items() if name == "forward"}
    try:
        yield
    finally:
        vars(model).pop("forward", None)
        vars(model).update(before)


def _tokenizer() -> Any:
    """Return a tokenizer that the trainer requires and does not use, since rows are tokens."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"<pad>": 0, "<end>": 1}, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")
