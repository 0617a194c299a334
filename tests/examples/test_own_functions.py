"""The objectives and decoders of examples/, named as a user names them: a training, a decoding, and their formulas."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from d2e_sft.config.recipe import D2ESection, load_recipe
from d2e_sft.decoding import DecodingConfig, generate_debiased
from d2e_sft.decoding.decoders import named_decoder
from d2e_sft.objective.objectives import FUNCTIONS, Objective
from d2e_sft.train.run import train_recipe
from tests.d2e_sft.decoding.pairs import random_prompts
from tests.factories import log_history, make_world, write_recipe
from tests.tiny import tiny_model

ROOT = Path(__file__).resolve().parents[2]
ALL = "d2e.own_views=[original,imagined,refined]"
OPTIONS = {
    "product": ["d2e.view_gradients=original"],
    "contrast": [],
    "honest": ["d2e.debias=true"],
    "honest_teacher": [ALL, "d2e.debias=true"],
    "weighted": [ALL, "d2e.debias=true"],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_objective_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    world = make_world(tmp_path / "world", train=4, bench=1)
    options = [f"d2e.objective=examples.objectives:{name}", *OPTIONS[name], "train.max_steps=2"]
    recipe = load_recipe(write_recipe(world, tmp_path / "run", *options))
    assert (recipe.decoding.alpha > 0) == ("d2e.debias=true" in options)
    steps = [entry for entry in log_history(train_recipe(recipe)) if "loss" in entry]
    assert steps
    for step in steps:
        terms = [step[term] for term in ("ce", "imagined_ce", "refined_ce", "kl") if term in step]
        assert step["loss"] == pytest.approx(sum(terms), rel=1e-4)


def test_the_objectives_are_their_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    generator = torch.Generator().manual_seed(0)
    views = ("original", "imagined", "refined")
    logits = {view: torch.randn(6, 9, generator=generator, dtype=torch.float64) for view in views}
    logits["imagined"][:3] += 5 * logits["original"][:3]  # the views agree on these tokens
    targets, content = torch.tensor([3, 1, 4, 1, 5, 0]), torch.tensor([False, True] * 3)
    p = {view: z.softmax(-1) for view, z in logits.items()}

    def terms(name: str) -> dict[str, torch.Tensor]:
        d2e = D2ESection(objective=f"examples.objectives:{name}", own_views=list(views), debias=True)
        return Objective.of(d2e, 9).function(logits, targets, content, d2e)  # type: ignore[arg-type]

    def nats(probabilities: torch.Tensor) -> torch.Tensor:
        return -probabilities.gather(1, targets[:, None]).squeeze(1).log()

    both = p["original"] * torch.where(content[:, None], p["imagined"], 1)
    expected = {"ce": nats(both / both.sum(-1, keepdim=True))}
    torch.testing.assert_close(terms("product"), expected)
    honest = {"ce": nats(p["original"]), "imagined_ce": nats(p["imagined"])}
    torch.testing.assert_close(terms("honest"), honest)
    kl = (p["refined"] * (p["refined"] / p["original"]).log()).sum(-1)
    taught = {**honest, "refined_ce": nats(p["refined"]), "kl": kl}
    torch.testing.assert_close(terms("honest_teacher"), taught)
    d2e = D2ESection()
    subtracted = FUNCTIONS["d2e"](logits, targets, content, d2e)  # type: ignore[arg-type]
    plain = FUNCTIONS["d2e"]({view: z for view, z in logits.items() if view != "imagined"}, targets, content, d2e)  # type: ignore[arg-type,misc]
    assert logits["original"].argmax(-1).eq(logits["imagined"].argmax(-1)).tolist() == [True] * 3 + [False] * 3
    scores = named_decoder("examples.decoders:contrast:weight=0.5")(logits["original"], logits["imagined"])
    torch.testing.assert_close(terms("contrast"), {"ce": nats(scores.softmax(-1))})  # as it is decoded
    for name, found in terms("weighted").items():
        torch.testing.assert_close(found, torch.cat([plain[name][:3], subtracted[name][3:]]))


def test_the_decoders_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    originals, imagined = random_prompts(4, 8, 30, seed=1), random_prompts(4, 3, 12, seed=2)

    def decoded(decoder: str) -> list[list[int]]:
        decoding = DecodingConfig(decoder=decoder, max_new_tokens=8)
        return generate_debiased(tiny_model(seed=1), originals, imagined, decoding, stop_ids=[])

    # CoCoA's fixed numbers are CAD with weight 0.5. A ratio of 1 contrasts no token, a large one all.
    assert decoded("examples.decoders:cocoa") == decoded("cad:weight=0.5")
    assert decoded("examples.decoders:coiecd:ratio=1,weight=1") == decoded("plain")
    assert decoded("examples.decoders:coiecd:ratio=1e9") == decoded("cad") != decoded("plain")


def test_coiecd_contrasts_likely_tokens_of_an_open_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    coiecd, q = named_decoder("examples.decoders:coiecd:ratio=1.5,weight=1"), torch.tensor([0.1, 0.2, 0.3, 0.4])
    p = torch.tensor([0.4, 0.3, 0.2, 0.1])  # two tokens are likely, one is in the middle, one unlikely
    contrasted = p**2 / q
    expected = torch.tensor([contrasted[0], contrasted[1], p[2], contrasted[3]])
    torch.testing.assert_close(coiecd(p.log(), q.log()).exp(), expected)
    p = torch.tensor([0.6, 0.2, 0.15, 0.05])  # one clear winner
    torch.testing.assert_close(coiecd(p.log(), q.log()).exp(), torch.tensor([*p[:3], (p**2 / q)[3]]))
