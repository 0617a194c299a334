"""What is handed to vLLM, which rows are paired, and what becomes of their logits; against formulas written out."""

from __future__ import annotations

import importlib.util
import random
import re
from enum import Enum, auto
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from d2e_sft.commands.serve import serve
from d2e_sft.decoding.decoders import named_decoder
from d2e_sft.model.loading import load_model
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.engine import choose_sentinel, model_folder
from d2e_sft.vllm.offline import load_llm
from d2e_sft.vllm.pairing import BatchRows, Draw, InBatch, PairedRow, SlotRows, debias_rows, match, read_row
from tests.tiny import VOCAB_SIZE, save_tiny_model, tiny_tokenizer, with_lora

VOCAB, SENTINEL = 31, 30
NONE = float("-inf")


def _row(pair: str, view: Any, **changes: Any) -> PairedRow:
    return PairedRow(**{"pair": pair, "view": view, "alpha": 0.5, "sentinel": SENTINEL, **changes})


def _pair(name: str, original: int, imagined: int, length: int = 0, **changes: Any) -> list[InBatch]:
    return [
        InBatch(original, length, _row(name, "original", **changes)),
        InBatch(imagined, length, _row(name, "imagined", **changes)),
    ]


def _logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def test_both_rows_of_a_pair_get_the_debiased_logits_each_pair_with_its_own_alpha() -> None:
    logits = _logits(90)
    before = logits.clone()
    # More pairs than are combined at once, in an order that mixes their rows; rows 80 to 89 are plain requests.
    alphas = {f"p{i}": i / 20 for i in range(40)}
    rows = [here for i in range(40) for here in _pair(f"p{i}", i, 79 - i, alpha=alphas[f"p{i}"])]
    debias_rows(logits, rows[1::2] + rows[::2])
    for i in range(40):
        expected = before[i] - alphas[f"p{i}"] * before[79 - i]
        expected[SENTINEL] = NONE
        torch.testing.assert_close(logits[i], expected)
        torch.testing.assert_close(logits[79 - i], expected)
    assert torch.equal(logits[80:], before[80:])


@pytest.mark.parametrize("decoder", ["plain", "d2e", "cad", "adacad"])
def test_a_token_masked_in_either_view_stays_masked_and_takes_no_part_in_distributions(decoder: str) -> None:
    whole, masked = _logits(2, seed=4), _logits(2, seed=4)
    masked[0, :4], masked[1, 2:6] = NONE, NONE
    debias_rows(masked, _pair("p", 0, 1, decoder=decoder))
    assert (masked[:, :6] == NONE).all()
    kept = named_decoder(decoder)(*whole[:, 6:])
    kept[SENTINEL - 6] = NONE
    torch.testing.assert_close(masked[0, 6:].log_softmax(-1), kept.log_softmax(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "rows",
    [
        [InBatch(0, 3, _row("p", "original"))],
        [InBatch(0, 3, _row("p", "original")), InBatch(1, 2, _row("p", "imagined"))],
        [InBatch(0, 3, _row("p", "original")), InBatch(1, 3, _row("q", "imagined"))],
        [InBatch(0, 3, _row("p", "original")), InBatch(1, 3, _row("p", "original"))],
    ],
    ids=["no partner", "partner behind", "another pair's row", "same view twice"],
)
def test_a_row_without_its_partner_can_only_take_the_sentinel(rows: list[InBatch]) -> None:
    logits = _logits(3)
    plain = logits[2].clone()
    debias_rows(logits, rows)
    for here in rows:
        assert logits[here.index].argmax() == SENTINEL
        assert logits[here.index].isfinite().sum() == 1
    assert torch.equal(logits[2], plain)


@pytest.mark.parametrize(("done", "length", "held"), [(0, 1, True), (2, 0, True), (2, 1, False), (0, 3, False)])
def test_stops_wait_for_the_answers_least_length(done: int, length: int, held: bool) -> None:
    logits = torch.zeros(2, VOCAB)
    logits[0, 7] = 10.0
    debias_rows(logits, _pair("p", 0, 1, length, done=done, min_tokens=3, stops=(7,)))
    assert (logits[0, 7] == NONE).item() is held


def test_the_cut_off_keeps_the_tokens_that_the_original_view_finds_plausible() -> None:
    logits = _logits(2)
    probabilities = logits[0].softmax(-1)
    debias_rows(logits, _pair("p", 0, 1, plausibility=0.3))
    kept = logits[0].isfinite()
    kept[SENTINEL] = bool(probabilities[SENTINEL] >= 0.3 * probabilities.max())
    assert torch.equal(kept, probabilities >= 0.3 * probabilities.max())
    assert 1 < kept.sum() < VOCAB


@pytest.mark.parametrize(
    "changes",
    [
        {"alpha": -0.1}, {"alpha": float("nan")}, {"alpha": float("inf")}, {"alpha": "0.5"}, {"alpha": True},
        {"view": "refined"}, {"sentinel": -1}, {"unknown": 1}, {"draw": {"temperature": 0, "seed": 1}},
        {"decoder": "cda"}, {"decoder": "os:getcwd"}, {"decoder": 3}, {"answer": 3},
    ],
)  # fmt: skip
def test_a_malformed_row_is_refused(changes: dict[str, Any]) -> None:
    given = {"pair": "p", "view": "original", "alpha": 0.5, "sentinel": 1, **changes}
    with pytest.raises(ValueError, match=next(iter(changes))):
        read_row({"d2e": given})


LOGITS = torch.randn(12, generator=torch.Generator().manual_seed(3)) * 2


def _drawn(draw: Draw, position: int) -> int:
    logits = LOGITS.clone()
    draw.perturb(logits, position)
    return int(logits.argmax())


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 6, "top_p": 0.6}])
def test_draws_have_the_distribution_that_transformers_gives(options: dict[str, Any]) -> None:
    scores = TemperatureLogitsWarper(0.8)(None, LOGITS[None].clone())
    if "min_p" in options:
        scores = MinPLogitsWarper(options["min_p"])(None, scores)
    if "top_k" in options:
        scores = TopKLogitsWarper(options["top_k"])(None, scores)
    if "top_p" in options:
        scores = TopPLogitsWarper(options["top_p"])(None, scores)
    expected = scores[0].softmax(-1)
    draws = 2000
    counts = torch.zeros(len(LOGITS))
    for position in range(draws):
        counts[_drawn(Draw(0.8, seed=5, **options), position)] += 1
    assert (counts[expected == 0] == 0).all()
    deviation = (counts / draws - expected).abs()
    # Five standard deviations of a share: one seed in a million fails by chance, and this one does not.
    assert (deviation <= 5 * (expected * (1 - expected) / draws).sqrt() + 1e-9).all()


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    first = [_drawn(Draw(1.0, seed=1), position) for position in range(50)]
    assert first == [_drawn(Draw(1.0, seed=1), position) for position in range(50)]
    assert first != [_drawn(Draw(1.0, seed=2), position) for position in range(50)]
    assert len(set(first)) > 3


@pytest.mark.parametrize("spoiled", [float("nan"), float("inf")])
@pytest.mark.parametrize("changes", [{}, {"plausibility": 0.2}, {"draw": Draw(1.0, seed=1, top_p=0.9)}])
def test_a_pair_whose_logits_overflow_takes_the_sentinel_and_no_token(spoiled: float, changes: dict[str, Any]) -> None:
    logits = _logits(6)
    whole = logits.clone()
    logits[0, 3], logits[3], logits[3, 4] = spoiled, NONE, spoiled
    rows = [here for i in range(3) for here in _pair(f"p{i}", 2 * i, 2 * i + 1, **changes)]
    debias_rows(logits, rows)
    assert logits.argmax(dim=-1)[:4].tolist() == [SENTINEL] * 4
    assert (logits[:4].isfinite().sum(dim=-1) == 1).all()
    debias_rows(whole, rows)
    assert torch.equal(logits[4:], whole[4:])


class _Move(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


def test_rows_are_followed_through_a_batch_that_changes_at_random() -> None:
    generator = random.Random(0)
    rows, batch = BatchRows(), {}  # index → (row or None for a plain request, its output tokens)
    for step in range(300):
        removed = [index for index in sorted(batch) if generator.random() < 0.2]
        for index in removed:
            del batch[index]
        added = []
        for index in range(12):
            if index not in batch and generator.random() < 0.3:
                batch[index] = (_row(f"{step}-{index}", "original") if generator.random() < 0.7 else None, [])
                added.append((index, *batch[index]))
        moved = []
        for _ in range(generator.randrange(3)):
            source, target = generator.sample(range(12), 2)
            if source in batch and target in batch:
                batch[source], batch[target] = batch[target], batch[source]
                moved.append((source, target, _Move.SWAP))
            elif source in batch:
                batch[target] = batch.pop(source)
                moved.append((source, target, _Move.UNIDIRECTIONAL))
        rows.update(removed, added, moved)
        for _, outputs in batch.values():
            outputs.extend([-1] * generator.randrange(2))  # async scheduling: their number is known before they are
        expected = {(index, len(out), row) for index, (row, out) in batch.items() if row is not None}
        assert {(here.index, here.length, here.row) for here in rows.in_batch()} == expected


def _slots(prefill: list[int], prompt: list[int] | None = None, **views: int) -> SlotRows:
    """Slots by their prompts' lengths; `views` are the slots of the two requests of a pair."""
    lengths = {"prompt_len": prompt or prefill, "prefill_len": prefill}
    rows = SlotRows(SimpleNamespace(**{name: SimpleNamespace(np=np.array(of)) for name, of in lengths.items()}))
    for view, slot in views.items():
        assert rows.add(slot, _row("p", view, sentinel=0))
    return rows


def _context(slots: list[int], lengths: list[int], expanded: list[int] | None = None) -> Any:
    return SimpleNamespace(
        idx_mapping_np=np.array(slots),
        expanded_idx_mapping=torch.tensor(expanded or slots),
        seq_lens_upper_bound_np=np.array(lengths),
    )


def test_slots_pair_by_the_index_of_the_token_that_is_about_to_be_chosen() -> None:
    rows = _slots([100, 0, 20, 50], original=0, imagined=2)
    rows.add(3, None)
    pairs, unpaired = match(rows.in_batch(_context([3, 2, 0], [60, 25, 105]), 3))
    assert [(original.index, imagined.index, original.length) for original, imagined in pairs] == [(2, 1, 5)]
    assert unpaired == []


def test_a_slot_whose_prompt_is_still_being_read_leaves_its_partner_alone() -> None:
    # The original was preempted with 5 tokens of an answer and is read again: prompt 100, to be filled up to 105.
    rows = _slots([105, 20], prompt=[100, 20], original=0, imagined=1)
    pairs, unpaired = match(rows.in_batch(_context([0, 1], [64, 25]), 2))
    assert (pairs, [here.index for here in unpaired]) == ([], [1])
    assert len(match(rows.in_batch(_context([0, 1], [105, 25]), 2))[0]) == 1


def test_a_slot_forgets_its_last_occupant() -> None:
    rows = _slots([4, 4], original=0)
    assert not rows.add(0, None)
    assert rows.in_batch(_context([0, 1], [4, 4]), 2) == []


def test_draft_tokens_leave_every_row_alone() -> None:
    logits = torch.randn(4, 9)
    context = _context([0, 1], [6, 6], expanded=[0, 0, 1, 1])
    debias_rows(logits, _slots([4, 4], original=0, imagined=1).in_batch(context, 4))
    assert (logits.isfinite().sum(dim=-1) == 1).all()
    assert (logits.argmax(dim=-1) == 0).all()


def _adapter(folder: Path, base: Path, seed: int) -> Path:
    with_lora(load_model(str(base)).model, seed, r=2).save_pretrained(folder)
    return folder


def test_weights_that_are_no_numbers_are_refused_before_vllm_loads_them(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = sorted(weights)[-1]
    weights[name].view(-1)[-1] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=f"the weight {re.escape(name)} contains NaN or infinity"):
        model_folder(str(folder))


def test_an_adapter_is_merged_once_and_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    base = save_tiny_model(tmp_path / "base")
    adapter = _adapter(tmp_path / "adapter", base, seed=1)
    merged = model_folder(str(adapter))
    tokens = torch.arange(5, 25)[None]
    with torch.inference_mode():
        torch.testing.assert_close(
            load_model(merged).model(tokens).logits, load_model(str(adapter)).model(tokens).logits
        )
    assert (Path(merged) / "tokenizer_config.json").is_file()
    written = (Path(merged) / "config.json").stat().st_mtime_ns
    assert model_folder(str(adapter)) == merged
    assert (Path(merged) / "config.json").stat().st_mtime_ns == written
    assert model_folder(str(_adapter(adapter, base, seed=2))) != merged


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "t5", "t5")
    with pytest.raises(UserError, match="encoder-decoder"):
        model_folder(str(folder))


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_the_message_says_what_to_install() -> None:
    with pytest.raises(UserError, match=r"d2e-sft\[vllm\]"):
        load_llm("some/model")
    result = CliRunner().invoke(serve, ["--engine", "vllm", "some/model"])
    assert "d2e-sft[vllm]" in str(result.exception)


def test_the_sentinel_is_a_row_without_a_token_then_an_unused_one_then_one_that_no_template_writes() -> None:
    tokenizer = tiny_tokenizer()
    assert choose_sentinel(tokenizer, VOCAB_SIZE + 8, {1}) == VOCAB_SIZE + 7
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken("<|spare|>", special=True)]})
    spare = tokenizer.convert_tokens_to_ids("<|spare|>")
    assert choose_sentinel(tokenizer, len(tokenizer), {1}) == spare
    assert choose_sentinel(tokenizer, len(tokenizer), {1, spare}) not in {1, spare}
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|reserved_token_0|>", "<|tool|>"]})
    assert choose_sentinel(tokenizer, len(tokenizer), {1}) == tokenizer.convert_tokens_to_ids("<|reserved_token_0|>")


def test_a_vocabulary_without_a_free_token_is_refused_with_the_way_out() -> None:
    tokenizer = tiny_tokenizer()
    with pytest.raises(UserError, match="no special token besides"):
        choose_sentinel(tokenizer, VOCAB_SIZE, set(range(VOCAB_SIZE)))
