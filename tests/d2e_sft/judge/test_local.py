"""A local model as judge: its own greedy answers, whatever the batch, kept and counted like any other's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.judge.judge import Judge, JudgePrompt, make_judge
from d2e_sft.judge.options import JudgeOptions
from d2e_sft.util.errors import UserError
from tests.tiny import save_tiny_model, tiny_model, tiny_t5_tokenizer, tiny_tokenizer

PROMPTS = [JudgePrompt("Judge.", "word " * length, label=f"sample {length}") for length in (3, 12, 1, 7, 20)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model")


def local(model: Path, **options: object) -> Judge:
    fields = {"backend": "local", "model": str(model), "max_tokens": 6, "concurrency": 2, **options}
    judge = make_judge(JudgeOptions.model_validate({"cache": model.parent / "replies", **fields}))
    assert judge is not None
    return judge


def ask(judge: Judge, prompts: list[JudgePrompt] = PROMPTS) -> list[str | None]:
    return judge.ask(prompts, str, what="local", reminder="")


def by_transformers(prompt: JudgePrompt) -> str:
    tokenizer, model = tiny_tokenizer(), tiny_model()
    text = f"<|system|>{prompt.system}<|end|><|user|>{prompt.user}<|end|><|assistant|>"
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    generated = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
    decoded = tokenizer.decode(generated[0, ids.shape[1] :], skip_special_tokens=True)
    assert isinstance(decoded, str)
    return decoded


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_batches_answer_as_each_prompt_alone_does(model: Path, concurrency: int) -> None:
    assert ask(local(model, concurrency=concurrency)) == [by_transformers(prompt) for prompt in PROMPTS]


def test_the_estimate_counts_and_a_second_run_does_not_even_load_the_same_weights(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = local(model)
    estimate = judge.estimate(PROMPTS)
    first = ask(judge)
    assert f"5 requests (0 replies already cached), {judge.usage.prompt_tokens} prompt tokens (counted)" in estimate
    assert "at most 30 reply tokens" in estimate
    with monkeypatch.context() as patch:
        patch.setattr("d2e_sft.model.loading.load_model", lambda *_, **__: pytest.fail("loaded"))
        again = local(model)
        assert ask(again) == first
        assert again.usage.cached == len(PROMPTS)
    save_tiny_model(model, seed=1)
    other = local(model)
    ask(other)
    assert other.usage.asked == len(PROMPTS)


def test_replies_before_the_end_of_a_run_are_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from d2e_sft.decoding.rows import PackedRows

    add, batches = PackedRows.add, []

    def breaks(rows: PackedRows, *args: Any) -> None:
        batches.append(args)
        if len(batches) == 2:
            raise KeyboardInterrupt
        add(rows, *args)

    monkeypatch.setattr(PackedRows, "add", breaks)
    with pytest.raises(KeyboardInterrupt):
        ask(local(model))
    monkeypatch.undo()
    again = local(model)
    ask(again)
    assert (again.usage.cached, again.usage.asked) == (2, 3)


def test_a_prompt_too_long_for_the_model_is_named(model: Path) -> None:
    long = JudgePrompt("Judge.", "word " * 300, label="sample 'x'")
    with pytest.raises(UserError, match=r"the prompt for sample 'x' has 1,\d+ tokens .* expected at most 1,024"):
        ask(local(model), [*PROMPTS, long])


def test_a_model_without_a_chat_template_is_refused(model: Path) -> None:
    tiny_t5_tokenizer().save_pretrained(model)
    (model / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(UserError, match="no chat template; expected an instruction-tuned model"):
        ask(local(model))


def test_replies_of_other_weights_with_the_same_size_and_times_are_not_taken(model: Path) -> None:
    ask(local(model))
    file, other = model / "model.safetensors", save_tiny_model(model.parent / "other", seed=5) / "model.safetensors"
    times = file.stat()
    assert other.stat().st_size == times.st_size
    file.write_bytes(other.read_bytes())
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "(0 replies already cached)" in local(model).estimate(PROMPTS)


def test_a_model_that_does_not_exist_is_named_before_anything_else() -> None:
    with pytest.raises(UserError, match="no such folder"):
        make_judge(JudgeOptions(backend="local", model="./nowhere"))
