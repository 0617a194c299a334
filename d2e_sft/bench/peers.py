"""What a user would take instead of the training here: a step of TRL's trainers.

Written as such a user would write it, so nothing of this project is imported.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

Tokens = Mapping[str, Any]
_IGNORE = -100  # label of a token without loss
_LOSS_TYPES = {"dpo": "sigmoid", "ipo": "ipo", "hinge": "hinge"}  # our forms by TRL's names


def trl_is_missing() -> str | None:
    """Return why TRL's trainers are not available, or None."""
    if missing := [name for name in ("trl", "datasets") if find_spec(name) is None]:
        return f"{missing[0]} is not installed"
    try:
        from trl import DPOTrainer, SFTConfig, SFTTrainer  # noqa: F401
    except (ImportError, RuntimeError) as error:  # a dependency has another version
        return f"trl cannot be imported ({str(error).splitlines()[0]})"
    return None


def trl_sft_step(model: Any, rows: Sequence[Tokens], precision: str, *, packing: bool = False) -> Callable[[], Any]:
    """Build TRL's SFTTrainer; returns a step: its collator and its loss of completions, summed over answer tokens.

    `packing` is by best-fit decreasing, padding-free.
    """
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    labelled = [
        {
            "input_ids": [*row["original"], *row["answer"]],
            "labels": [*[_IGNORE] * len(row["original"]), *row["answer"]],
        }
        for row in rows
    ]
    config = SFTConfig(
        per_device_train_batch_size=len(rows),
        packing=packing,
        max_length=sum(len(row["input_ids"]) for row in labelled) if packing else None,
        **_arguments(model, precision),
    )
    data = Dataset.from_list(labelled)
    with _own_forward(model):
        trainer: Any = SFTTrainer(model=model, args=config, train_dataset=data, processing_class=_tokenizer())
        compute_loss = _with_its_own_forward(trainer, model)

    def step() -> Any:
        batch = trainer.data_collator([dict(row) for row in trainer.train_dataset])
        answers = batch["labels"].ne(_IGNORE).sum()
        loss = compute_loss(trainer._prepare_inputs(batch))
        return loss * answers.to(loss.device)

    return step


def trl_dpo_step(
    model: Any, rows: Sequence[Tokens], precision: str, *, form: str = "dpo", beta: float = 0.1, sft_weight: float = 0
) -> Callable[[], Any]:
    """Build TRL's DPOTrainer; returns a step: its collator and its loss, times the gold answer tokens.

    Rows have the log-probabilities of the reference, its fastest setting (`precompute_ref_log_probs`).
    """
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import DPOConfig, DPOTrainer

    config = DPOConfig(
        loss_type=[_LOSS_TYPES[form], *(["sft"] if sft_weight else [])],
        loss_weights=[1.0, *([sft_weight] if sft_weight else [])],
        beta=beta,
        max_length=None,
        **_arguments(model, precision),
    )
    words = Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}])  # not used: it takes no tokens
    tiny = LlamaConfig(vocab_size=2, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    # The trainer wants a reference, but does not ask it.
    options = {"args": config, "train_dataset": words, "processing_class": _tokenizer()}
    with _own_forward(model):
        trainer: Any = DPOTrainer(model, LlamaForCausalLM(tiny), **options)
        trainer.precompute_ref_logps = True
        compute_loss = _with_its_own_forward(trainer, model)
    features = [
        {
            "prompt_ids": [*row["original"]],
            "chosen_ids": [*row["answer"]],
            "rejected_ids": [*row["rejected"]],
            "ref_chosen_logps": row["reference"][0],
            "ref_rejected_logps": row["reference"][1],
        }
        for row in rows
    ]
    answer_tokens = sum(len(row["answer"]) for row in rows)
    return lambda: compute_loss(trainer._prepare_inputs(trainer.data_collator(features))) * answer_tokens


def _arguments(model: Any, precision: str) -> dict[str, Any]:
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


def _with_its_own_forward(trainer: Any, model: Any) -> Callable[[Any], Any]:
    """Return the trainer's loss of inputs; each trainer wraps the model's forward, which only it may call."""
    wrapped = model.forward

    def compute(inputs: Any) -> Any:
        with _own_forward(model):
            model.forward = wrapped
            return trainer.compute_loss(model, inputs)

    return compute


@contextmanager
def _own_forward(model: Any) -> Iterator[None]:
    before = {name: value for name, value in vars(model).items() if name == "forward"}
    try:
        yield
    finally:
        vars(model).pop("forward", None)
        vars(model).update(before)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"<pad>": 0, "<end>": 1}, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")
