"""Asking a model in passes: the same answers as `d2e eval`, kept as they come, never mixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.data.chat_template import ChatEncoder
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.model.loading import load_model
from d2e_sft.util.errors import UserError
from eval.run.engines import in_process
from eval.run.options import EvalOptions, resolve_options
from eval.run.processes import join_processes
from eval.run.task import Conversation
from eval.score.predictions import read_predictions
from eval.systems.asker import Asker
from eval.systems.files import read_json_lines
from tests.command import d2e
from tests.factories import bench_rows, make_world
from tests.tiny import save_tiny_model

ROWS = bench_rows(10)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"), bench=ROWS, seed=3)


@pytest.fixture
def asker(world: Path, tmp_path: Path) -> Callable[..., Asker]:
    """Askers of the tiny model that all write to one folder; arguments are `EvalOptions`."""

    def make(**options: Any) -> Asker:
        model = str(world / "model")
        chosen = EvalOptions(**{"alpha": 0.5, "max_new_tokens": 6, "batch_size": 3, **options})
        config = resolve_options(model, chosen)
        return Asker(model, config, join_processes(config.engine), tmp_path / "answers")

    return make


def conversations(count: int = len(ROWS)) -> list[Conversation]:
    wording = load_prompt_set("default")
    return [
        Conversation(
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


def test_a_pass_that_broke_off_is_resumed(
    asker: Callable[..., Asker], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = asker().ask("whole", conversations())
    generate = in_process.generate
    answered: list[int] = []

    def breaking(*arguments: Any, on_batch: Any, **options: Any) -> Any:
        def on_two_batches(indices: list[int], answers: list[list[int]]) -> None:
            if len(answered) > 3:
                raise RuntimeError("broken off")
            answered.extend(indices)
            on_batch(indices, answers)

        return generate(*arguments, on_batch=on_two_batches, **options)

    with monkeypatch.context() as patched:
        patched.setattr(in_process, "generate", breaking)
        with pytest.raises(RuntimeError, match="broken off"):
            asker().ask("one", conversations())
    assert asker().ask("one", conversations()) == whole
    assert 0 < len(answered) < len(ROWS)
    assert f"resumed: {len(answered)} of {len(ROWS)}" in capsys.readouterr().err


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


def test_prompts_beyond_the_models_context_are_named(asker: Callable[..., Asker]) -> None:
    long = replace(conversations(1)[0], messages=[{"role": "user", "content": "word " * 5000}])
    with pytest.raises(UserError, match="1 of 1 prompts exceed the model's context") as caught:
        asker().ask("one", [long])
    assert repr(long.id) in caught.value.message


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_the_likeliest_option_is_that_of_a_forward_pass(tmp_path: Path, kind: str) -> None:
    folder = save_tiny_model(tmp_path / "model", kind, seed=5)
    options = EvalOptions(answer="likelihood", dtype="float32", batch_size=3)
    config = resolve_options(str(folder), options)
    chats = [replace(chat, options=("yes", "no way")) for chat in conversations(6)]
    own = Asker(str(folder), config, join_processes(config.engine), tmp_path / "answers")
    chosen = own.choose("answers", chats)
    loaded = load_model(str(folder), dtype="float32")
    model, tokenizer = loaded.model.eval(), loaded.tokenizer
    prompts = ChatEncoder(tokenizer, encoder_decoder=kind == "t5").ids([chat.messages for chat in chats])
    lines = read_json_lines(tmp_path / "answers" / "answers.jsonl")
    for prompt, said, (_, line) in zip(prompts, chosen, lines, strict=True):
        sums = []
        for option in ("yes", "no way"):
            # As the official script for T5 scores: the labels end with the end of the text, where there is a decoder.
            labels = tokenizer(option, add_special_tokens=kind == "t5", return_tensors="pt").input_ids
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
