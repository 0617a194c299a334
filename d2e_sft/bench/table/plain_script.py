"""A user's own script, run as a process: one step of TRL's SFTTrainer with LoRA, or one answer by transformers.

`python plain_script.py train|answer MODEL ROWS OUT`: a model's folder, rows with story, ask and place, and where the
result goes. It imports nothing of this project.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def train(model: str, rows: str, out: str) -> None:
    """Train one step on eight rows, and save the adapter."""
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
    """Answer the first row."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with open(rows, encoding="utf-8") as file:
        row = json.loads(next(file))
    tokenizer, loaded = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
    question = [{"role": "user", "content": f"{row['story']}\n\n{row['ask']}"}]
    inputs = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = loaded.generate(**inputs, do_sample=False, max_new_tokens=16)
    text = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    with open(out, "w", encoding="utf-8") as file:
        file.write(json.dumps({"output": text}) + "\n")


if __name__ == "__main__":
    {"train": train, "answer": answer}[sys.argv[1]](*sys.argv[2:])
