"""`d2e inspect`: probabilities are those of the model, and the page's slider and tokens work."""

from __future__ import annotations

import json
import re
from itertools import groupby
from math import exp
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.data.prompts import PromptSet, load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import PromptPair
from d2e_sft.model.loading import load_model
from eval.pages.inspect import InspectOptions, answer_positions, inspect_samples, token_marks
from tests.browser import after_scripts
from tests.command import d2e, output_of, refusal_of
from tests.factories import save_bench
from tests.tiny import make_sample, save_tiny_model, tiny_tokenizer


def page_of(world: Path, folder: Path, *arguments: str | int) -> tuple[Path, dict[str, Any]]:
    out = folder / "page.html"
    assert d2e("inspect", world / "model", "--out", out, "--max-new-tokens", 6, *arguments) == 0
    text = out.read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    return out, json.loads(data[1])


def test_a_page_shows_the_samples_asked_for_and_stands_alone(world: Path, tmp_path: Path) -> None:
    out, data = page_of(world, tmp_path, "--bench", str(world / "bench"), "--sample", "s3", "--sample", "s1")
    text = out.read_text(encoding="utf-8")
    assert list(re.findall(r"<h3>.* · (s\d)</h3>", text)) == ["s3", "s1"]
    assert not re.search(r'(src|href)="(?!data:)', text), "nothing is loaded from elsewhere"
    assert data["ratios"][data["start"]] == 0.5
    out, data = page_of(
        world, tmp_path, "--context", "Rain <b>fell</b>.", "--question", "What fell?", "--alpha", "0.37"
    )
    assert "Rain &lt;b&gt;fell&lt;/b&gt;." in out.read_text(encoding="utf-8")
    assert data["ratios"][data["start"]] == 0.37


def test_the_model_is_moved_to_the_accelerator(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eval.pages.inspect.usable_device", lambda: torch.device("meta"))
    options = InspectOptions(along="gold")
    with pytest.raises(NotImplementedError, match="meta tensor"):  # it computes there, without data
        inspect_samples(str(world / "model"), [make_sample(1)], tmp_path / "page.html", options)


def test_an_answer_lacks_the_text_that_ends_it_as_in_an_evaluation(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokens() -> list[str]:
        _, data = page_of(world, tmp_path, "--bench", str(world / "bench"), "--sample", "s1")
        return [position["text"] for position in data["samples"][0]]

    free = tokens()
    place = next(i for i, text in enumerate(free) if i and text.isascii() and text not in free[:i])
    monkeypatch.setattr(PromptSet, "stops", property(lambda _: (free[place],)))
    assert tokens() == [*free[:place], "<|end|>"]


@pytest.mark.parametrize("along", ["decoded", "gold"])
def test_a_prompt_beyond_the_models_context_is_refused_or_cut(world: Path, tmp_path: Path, along: str) -> None:
    save_bench(tmp_path / "bench", [make_sample(1), make_sample(2, context="Rain fell on the hills. " * 60)])
    arguments = ("--bench", tmp_path / "bench", "--samples", 2, "--along", along)
    error = refusal_of("inspect", world / "model", "--out", tmp_path / "no.html", *arguments)
    assert "1 of 2 prompts exceed the model's context" in error
    assert "sample 's2' of 'made-up'" in error
    assert "--overlong truncate_context" in error.replace("\n     ", "")
    assert not (tmp_path / "no.html").exists()
    cutting = ("--overlong", "truncate_context", "--max-new-tokens", 6)
    printed = output_of("inspect", world / "model", "--out", tmp_path / "page.html", *arguments, *cutting)
    assert "contexts cut to fit the model: 1" in printed
    shown = (tmp_path / "page.html").read_text().count("Rain fell on the hills.")
    assert 60 < shown < 110, "the sample's context as it is, and the prompt with what fits of it"


def marked(said: str, answers: list[str], *, right: bool = False) -> list[tuple[str, str]]:
    """The pieces of an output with their marks; the tokens of this tokenizer are bytes."""
    tokenizer = tiny_tokenizer()
    encoder = ViewEncoder(tokenizer, load_prompt_set("default"), ("original",))
    ids = [*tokenizer(said, add_special_tokens=False)["input_ids"], encoder.end_of_turn]
    marks = token_marks(encoder, make_sample(answers=answers), ids, right=right)
    assert marks[-1] == "", "the end of the turn is no part of the answer"
    pieces = groupby(zip(said, marks, strict=False), key=itemgetter(1))
    return [("".join(letter for letter, _ in piece), mark) for mark, piece in pieces]


def test_tokens_are_right_where_the_gold_answer_has_them_and_wrong_elsewhere() -> None:
    assert marked("The answer is: barn", ["barn"], right=True) == [("The answer is: ", ""), ("barn", "right")]
    assert marked("The answer is: barX", ["barn"]) == [("The answer is: ", ""), ("bar", "right"), ("X", "wrong")]
    assert marked("The answer is: attic", ["barn", "attic"], right=True)[-1] == ("attic", "right")
    assert marked("The answer is: Qarn", ["barn"], right=True) == [("The answer is: Q", ""), ("arn", "right")]


def test_slider_and_tokens_work_in_a_browser(world: Path, tmp_path: Path) -> None:
    out, data = page_of(world, tmp_path, "--bench", str(world / "bench"), "--samples", 2)
    last = len(data["ratios"]) - 1
    moved = after_scripts(
        out,
        f"slider.value = {last}; slider.dispatchEvent(new Event('input'));"
        "document.querySelectorAll('.tokens button')[1].click();",
    )
    still = after_scripts(out)
    value = re.compile(r'<output id="value"[^>]*>([^<]*)</output>')
    assert value.findall(still) == ["0.5"]
    assert value.findall(moved) == ["1.5"]
    assert re.findall(r'data-place="(\d+)" aria-pressed="true"', moved.split("<article")[1]) == ["1"]
    place = data["samples"][0][1]
    best = max(place["candidates"], key=lambda one: one["original"] - 1.5 * one["imagined"])
    share = exp(best["original"] - 1.5 * best["imagined"] - place["normalisers"][last])
    rows = re.findall(r"<tr class=\"[^\"]*\"><th.*?</tr>", moved, flags=re.DOTALL)
    assert f"{100 * share:.1f} %" in rows[0]


ALPHAS = [0.0, 0.5, 1.3]


@pytest.mark.parametrize(("kind", "seed"), [("llama", 3), ("t5", 0)])
def test_probabilities_are_the_softmax_of_the_subtracted_logits(tmp_path: Path, kind: str, seed: int) -> None:
    loaded = load_model(str(save_tiny_model(tmp_path / kind, kind, seed)))
    model, seq2seq = loaded.model.eval().double(), kind == "t5"
    encoder = ViewEncoder(
        loaded.tokenizer, load_prompt_set("default"), ("original", "imagined"), encoder_decoder=seq2seq
    )
    encoded = encoder.encode(make_sample(2))
    original, imagined, answer = encoded.prompts["original"], encoded.prompts["imagined"], encoded.answer
    positions = answer_positions(model, loaded.tokenizer, PromptPair(original, imagined), answer, alphas=ALPHAS, top=5)
    assert [position.candidates[position.chosen].token for position in positions] == answer
    for i, position in enumerate(positions):
        with torch.no_grad():
            if seq2seq:
                start = [model.config.decoder_start_token_id, *answer[:i]]
                rows = [
                    model(input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([start])).logits[0, -1]
                    for prompt in (original, imagined)
                ]
            else:
                rows = [model(torch.tensor([[*prompt, *answer[:i]]])).logits[0, -1] for prompt in (original, imagined)]
        for alpha, normaliser in zip(ALPHAS, position.normalisers, strict=True):
            expected = (rows[0] - alpha * rows[1]).softmax(dim=-1)
            ids = [one.token for one in position.candidates]
            ours = torch.tensor(
                [one.original - alpha * one.imagined - normaliser for one in position.candidates]
            ).exp()
            torch.testing.assert_close(ours, expected[ids].float(), rtol=1e-4, atol=1e-6)
            assert set(expected.topk(5).indices.tolist()) <= set(ids), "the likeliest are kept at every ratio"
        assert set(rows[1].topk(5).indices.tolist()) <= set(ids)
