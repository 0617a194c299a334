"""Asking a model in passes: the same answers as `d2e eval`, kept as they come, never mixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.data.chat_template import ChatEncoder, Form
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.model.loading import load_model
from d2e_sft.util.errors import UserError
from eval.run.options import EvalOptions, resolve_options
from eval.run.passes import EvaluatedModel
from eval.run.processes import join_processes
from eval.run.task import TaskItem
from eval.score.predictions import read_predictions
from eval.systems.asking import Asker
from eval.systems.reading import read_json_lines
from tests.command import d2e
from tests.factories import bench_rows
from tests.tiny import save_tiny_model

ROWS = bench_rows()


@pytest.fixture
def asker(world: Path, tmp_path: Path) -> Callable[..., Asker]:
    """Askers of the tiny model that all write to one folder; arguments are `EvalOptions`."""

    def make(**options: Any) -> Asker:
        model = str(world / "model")
        chosen = EvalOptions(**{"alpha": 0.5, "max_new_tokens": 6, "batch_size": 3, **options})
        config = resolve_options(model, chosen)
        return Asker(EvaluatedModel(model, config, join_processes(config.engine)), tmp_path / "answers")

    return make


def conversations(count: int = len(ROWS)) -> list[TaskItem]:
    wording = load_prompt_set("default")
    return [
        TaskItem(
            dataset=row.dataset,
            id=row.id,
            messages=wording.messages(row, "original"),
            imagined=wording.messages(row, "imagined"),
            group=row.format,
        )
        for row in ROWS[:count]
    ]


@pytest.mark.parametrize(("alpha", "without_context"), [(0.0, False), (0.5, False), (0.0, True)])
def test_answers_are_those_of_an_evaluation_with_the_same_prompts(
    world: Path, tmp_path: Path, asker: Callable[..., Asker], alpha: float, without_context: bool
) -> None:
    flags = ["--without-context"] if without_context else []
    where = ("--bench", world / "bench", "--out", tmp_path / "run", "--alpha", alpha, "--max-new-tokens", 6)
    assert d2e("eval", world / "model", *where, "--batch-size", 3, *flags) == 0
    file = "without_context.jsonl" if without_context else "predictions.jsonl"
    expected = [row.output for row in read_predictions(tmp_path / "run" / "eval" / "bench" / file)]
    outputs = asker(alpha=alpha, without_context=without_context).ask("answers", conversations())
    assert outputs == expected
    assert len(set(outputs)) > 1


def test_a_finished_pass_is_read_and_not_decoded_again(asker: Callable[..., Asker], decoded: list[Any]) -> None:
    first = asker()
    outputs = [first.ask("one", conversations()), first.ask("two", conversations(4), max_new_tokens=3)]
    decoded.clear()
    again = asker()
    assert [again.ask("one", conversations()), again.ask("two", conversations(4), max_new_tokens=3)] == outputs
    assert not decoded
    assert again.records["one"]["engine"] == "transformers"


def test_answers_to_other_prompts_are_not_mixed(asker: Callable[..., Asker]) -> None:
    asker().ask("one", conversations())
    changed = conversations()
    changed[3] = replace(changed[3], messages=[*changed[3].messages[:-1], {"role": "user", "content": "Really?"}])
    with pytest.raises(UserError, match="the prompts: sha256"):
        asker().ask("one", changed)
    with pytest.raises(UserError, match=r"--alpha: 0\.5 → 0\.3"):
        asker(alpha=0.3).ask("one", conversations())
    assert len(asker(overwrite=True).ask("one", changed)) == len(ROWS)


def test_what_is_not_subtracted_does_not_matter(asker: Callable[..., Asker]) -> None:
    asker(alpha=0.0).ask("one", conversations())
    changed = [replace(chat, imagined=chat.messages) for chat in conversations()]
    assert asker(alpha=0.0).ask("one", changed)


def test_sampled_answers_depend_on_the_seed(asker: Callable[..., Asker]) -> None:
    ask = asker().ask
    first = ask("run-0", conversations(), temperature=1.0, seed=0)
    assert ask("run-1", conversations(), temperature=1.0, seed=1) != first
    assert ask("run-2", conversations(), temperature=1.0, seed=0) == first
    with pytest.raises(UserError, match="--seed: 0 → 5"):
        ask("run-0", conversations(), temperature=1.0, seed=5)


@pytest.mark.parametrize(("kind", "form"), [("llama", "chat"), ("t5", "chat"), ("llama", "completion")])
def test_the_likeliest_option_is_that_of_a_forward_pass(tmp_path: Path, kind: str, form: Form) -> None:
    folder = save_tiny_model(tmp_path / "model", kind, seed=5)
    options = EvalOptions(answer="likelihood", dtype="float32", batch_size=3, form=form)
    config = resolve_options(str(folder), options)
    chats = [replace(chat, options=("yes", "no way")) for chat in conversations(6)]
    own = Asker(EvaluatedModel(str(folder), config, join_processes(config.engine)), tmp_path / "answers")
    chosen = own.choose("answers", chats)
    loaded = load_model(str(folder), dtype="float32")
    model, tokenizer = loaded.model.eval(), loaded.tokenizer
    if form == "chat":
        prompts = ChatEncoder(tokenizer, encoder_decoder=kind == "t5").ids([chat.messages for chat in chats])
    else:
        texts = ["\n\n".join(turn["content"] for turn in chat.messages) + "\nAnswer:" for chat in chats]
        prompts = tokenizer(texts)["input_ids"]
    lines = read_json_lines(tmp_path / "answers" / "answers.jsonl")
    for prompt, said, (_, line) in zip(prompts, chosen, lines, strict=True):
        sums = []
        for option in ("yes", "no way"):
            # As the official script for T5 scores: the labels end with the end of the text, where there is a decoder.
            written = f" {option}" if form == "completion" else option
            labels = tokenizer(written, add_special_tokens=kind == "t5", return_tensors="pt").input_ids
            if kind == "t5":
                loss = model(input_ids=torch.tensor([prompt]), labels=labels).loss * labels.shape[1]
            else:
                both = torch.cat([torch.tensor([prompt]), labels], 1)
                target = both.clone()
                target[:, : len(prompt)] = -100
                loss = model(input_ids=both, labels=target).loss * labels.shape[1]
            sums.append(-loss.item())
        assert [option["logprob"] for option in line["likelihoods"]] == pytest.approx(sums, abs=1e-3)
        assert said == line["output"] == ("yes", "no way")[sums.index(max(sums))]


def test_options_and_generated_answers_are_not_mixed(asker: Callable[..., Asker]) -> None:
    chats = [replace(chat, options=("yes", "no")) for chat in conversations(3)]
    asker(alpha=0.0, answer="likelihood", max_new_tokens=None).choose("answers", chats)
    with pytest.raises(UserError, match="--answer: likelihood → none"):
        asker(alpha=0.0).ask("answers", conversations(3))
