"""What a user would take instead: transformers' `generate` in a loop, lm-evaluation-harness, `datasets`.

Written as such a user would write them, and without this project's own layers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from d2e_sft.data.chat_template import Messages

REFINING = "Copy the sentences of the text that help to answer the question, and nothing else."


def is_missing(*packages: str) -> str | None:
    """Return which package is not installed, or None."""
    return next((f"{name} is not installed" for name in packages if find_spec(name) is None), None)


def answer_one_by_one(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Messages],
    new_tokens: int,
    *,
    without_context: Sequence[Messages] = (),
) -> list[str]:
    """Answer conversations in a loop over `generate`, by guidance of scale 2 if they are given without contexts, too.

    Guidance of this scale chooses the tokens of α = 0.5.
    """

    def encoded(messages: Messages) -> Any:
        how = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
        return tokenizer.apply_chat_template(messages, **how).to(model.device)

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
    how: dict[str, Any] = {"add_generation_prompt": True, "tokenize": False}
    texts = [tokenizer.apply_chat_template(messages, **how) for messages in prompts]
    pairs = [(text, option) for text, own in zip(texts, options, strict=True) for option in own]
    requests = [Instance("loglikelihood", {}, pair, place) for place, pair in enumerate(pairs)]
    scores = iter(harness.loglikelihood(requests, disable_tqdm=True))
    found = [[next(scores)[0] for _ in own] for own in options]
    return [max(range(len(own)), key=own.__getitem__) for own in found]


def build_with_datasets(files: Sequence[Path], folder: Path) -> int:
    """Read, word, filter and write rows by Hugging Face `datasets`, without its cache; returns how many are left.

    It neither refines contexts nor checks rows, and writes no manifest.
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
