"""The examples run: objectives, decoders and a benchmark of one's own, and the notebooks."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.config.recipe import D2ESection, load_recipe
from d2e_sft.decoding import DecodingConfig, generate_debiased
from d2e_sft.decoding.decoders import named_decoder
from d2e_sft.objective.objectives import FUNCTIONS, Objective
from d2e_sft.train.run import train_recipe
from tests.command import output_of, refusal_of
from tests.d2e_sft.decoding.pairs import random_prompts
from tests.factories import log_history, make_world, write_recipe
from tests.tiny import save_tiny_model, tiny_model

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
    torch.testing.assert_close(terms("contrast:weight=0.5"), {"ce": nats(scores.softmax(-1))})  # as it is decoded
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


OWN = "examples.benchmark:Statements"
ROWS = [("1", "true", "in the barn"), ("2", "false", "in the garage"), ("3", "false", "lost")]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    rows = [
        {"id": name, "passage": "The key is in the barn.", "statement": f"The key is {place}.", "answer": answer}
        for name, answer, place in ROWS
    ]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.csv").write_text("id,answer\n1,true\n2,true\n3,false\n")
    (tmp_path / "b.csv").write_text("id,answer\n1,true\n2,false\n3,null\n")
    return tmp_path


def test_a_model_is_asked_and_its_scores_are_read_by_the_comparison(data: Path) -> None:
    model = save_tiny_model(data / "model")
    runs = [str(data / name) for name in ("one", "two")]
    for run in runs:
        output_of("eval", str(model), "--bench", OWN, "--data", str(data), "--out", run)
    scores = json.loads((data / "one/eval/statements/scores.json").read_text())
    assert (scores["system"], scores["counts"]["gold"]) == ("statements", {"true": 1, "false": 2})
    assert "statements" in output_of("compare", *runs)


def test_files_of_predictions_are_scored_and_compared(data: Path) -> None:
    files = [str(data / name) for name in ("a.csv", "b.csv")]
    scores = json.loads(output_of("score", OWN, *files, "--gold", str(data), "--json", "-"))["scores"]
    assert [scores[name]["accuracy"] for name in ("a", "b")] == [pytest.approx(2 / 3)] * 2
    assert [scores[name]["unparsed"]["questions"] for name in ("a", "b")] == [0, 1]
    output_of("score", OWN, files[0], "--gold", str(data), "--out", str(data / "run"))
    assert (data / "run/eval/statements/scores.json").is_file()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("examples.benchmark:Statement", "expected a subclass of LabelBenchmark or Benchmark"),
        ("examples.benchmark:Statment", "Did you mean 'Statement'?"),
        ("no_such_module:Statements", "cannot be imported"),
        ("eval.systems.wiqa.benchmark:Wiqa", "its name is 'wiqa'; expected a name"),
    ],
)
def test_what_is_no_benchmark_is_refused(data: Path, name: str, message: str) -> None:
    for command in (("eval", "MODEL", "--bench", name), ("score", name, str(data / "a.csv"), "--gold", str(data))):
        assert message in " ".join(refusal_of(*command).split())


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("notebook", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_cell_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_EXAMPLE_MODEL", str(save_tiny_model(tmp_path / "model")))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    content = json.loads(notebook.read_text(encoding="utf-8"))
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"{notebook.name}, code cell {number + 1}", "exec"), names)
    assert names["trainer"].state.global_step == 5
    assert len(names["debiased"]) == 4
    assert load_recipe("runs/notebook-lora/recipe.yaml").model.lora.use_rslora  # type: ignore[union-attr]
