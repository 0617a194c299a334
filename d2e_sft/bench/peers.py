"""What a user would take instead: TRL's trainers, transformers' `generate`, lm-evaluation-harness, `datasets`.

Written as such a user would write them, so nothing of this project is imported. `python peers.py train|answer MODEL
ROWS OUT` is a user's whole script: one step of TRL's SFTTrainer with LoRA, or one answer by transformers. MODEL is a
folder, and ROWS a file of rows with story, ask and place.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Messages = list[dict[str, str]]
Tokens = Mapping[str, Any]
REFINING = "Copy the sentences of the text that help to answer the question, and nothing else."
_IGNORE = -100  # label of a token without loss
_LOSS_TYPES = {"dpo": "sigmoid", "ipo": "ipo", "hinge": "hinge"}  # our forms by TRL's names


def is_missing(*packages: str) -> str | None:
    """Return which package is not installed, or None."""
    return next((f"{name} is not installed" for name in packages if find_spec(name) is None), None)


def trl_is_missing() -> str | None:
    """Return why TRL's trainers are not available, or None."""
    if missing := is_missing("trl", "datasets"):
        return missing
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


def answer_one_by_one(
    model: Any, tokenizer: Any, prompts: Sequence[Messages], new_tokens: int, without_context: Sequence[Messages] = ()
) -> list[str]:
    """Answer conversations in a loop over `generate`, by guidance of scale 2 if they are given without contexts, too.

    Guidance of this scale chooses the tokens of α = 0.5.
    """
    import torch

    def encoded(messages: Messages) -> Any:
        options: dict[str, Any] = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
        return tokenizer.apply_chat_template(messages, **options).to(model.device)

    answers = []
    for place, messages in enumerate(prompts):
        inputs, guidance = encoded(messages), {}
        if without_context:
            negative = encoded(without_context[place])
            guidance = {
                "guidance_scale": 2.0,
                "negative_prompt_ids": negative["input_ids"],
                "negative_prompt_attention_mask": negative["attention_mask"],
            }
        with torch.inference_mode():
            output = model.generate(**inputs, do_sample=False, max_new_tokens=new_tokens, **guidance)
        answers.append(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    return answers


def best_options_by_harness(
    model: Any, tokenizer: Any, prompts: Sequence[Messages], options: Sequence[Sequence[str]]
) -> list[int]:
    """Return the likeliest option of each prompt, by lm-evaluation-harness' `hf` model in batches of 16."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    harness = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=16)
    texts = [tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False) for turns in prompts]
    pairs = [(text, option) for text, listed in zip(texts, options, strict=True) for option in listed]
    requests = [Instance("loglikelihood", {}, pair, place) for place, pair in enumerate(pairs)]
    scores = iter(harness.loglikelihood(requests, disable_tqdm=True))
    logprobs = [[next(scores)[0] for _ in listed] for listed in options]
    return [max(range(len(row)), key=row.__getitem__) for row in logprobs]


def build_with_datasets(files: Sequence[Path], folder: Path) -> int:
    """Read, word, filter and write rows by Hugging Face `datasets`; returns how many are left.

    It uses no cache, neither refines contexts nor checks rows, and writes no manifest.
    """
    from datasets import concatenate_datasets, disable_progress_bars, load_dataset

    disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        parts = []
        for file in files:
            rows = load_dataset("json", data_files=str(file), split="train", cache_dir=cache)
            seen: set[str] = set()
            rows = rows.filter(lambda row, seen=seen: not (row["id"] in seen or seen.add(row["id"])))
            parts.append(
                rows.map(lambda row: {"prompt": f"{row['story']}\n\n{row['ask']}", "answers": [row["place"]]})
            )
        whole = concatenate_datasets(parts)
        whole.to_parquet(folder / "test.parquet")
        return len(whole)


def train(model: str, rows: str, out: str) -> None:
    import torch
    from datasets import load_dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    def worded(row: dict[str, Any]) -> dict[str, Any]:
        question = {"role": "user", "content": f"{row['story']}\n\n{row['ask']}"}
        return {"prompt": [question], "completion": [{"role": "assistant", "content": row["place"]}]}

    data = load_dataset("json", data_files=rows, split="train")
    config = SFTConfig(
        output_dir=out, max_steps=1, per_device_train_batch_size=8, save_strategy="no", report_to="none",
        gradient_checkpointing=False, disable_tqdm=True, use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = SFTTrainer(
        model=model, args=config, train_dataset=data.map(worded, remove_columns=data.column_names), peft_config=adapter
    )
    trainer.train()
    trainer.save_model()


def answer(model: str, rows: str, out: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with open(rows, encoding="utf-8") as file:
        row = json.loads(next(file))
    tokenizer, loaded = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
    question = [{"role": "user", "content": f"{row['story']}\n\n{row['ask']}"}]
    (text,) = answer_one_by_one(loaded, tokenizer, [question], 16)
    Path(out).write_text(json.dumps({"output": text}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    {"train": train, "answer": answer}[sys.argv[1]](*sys.argv[2:])
