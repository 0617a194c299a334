"""Forms of the prompts through `d2e train`, `d2e eval` and `d2e predict`: models without a chat template."""

from pathlib import Path

import pytest
import torch

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.model.loading import load_model
from tests.command import d2e, refusal_of
from tests.factories import bench_rows, evaluate, evaluation, make_world, predictions, scores_of, write_recipe


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model without a chat template, with rows to train and to test on."""
    folder = make_world(tmp_path_factory.mktemp("base"), seed=3)
    (folder / "model" / "chat_template.jinja").unlink()
    return folder


def naive(model: torch.nn.Module, prompts: list[list[int]], alpha: float) -> list[int]:
    """Six greedy tokens of `original - alpha * imagined`, without a cache."""
    answer: list[int] = []
    while len(answer) < 6:
        with torch.no_grad():
            original, imagined = (model(torch.tensor([[*prompt, *answer]])).logits[0, -1] for prompt in prompts)
        token = int((original - alpha * imagined).argmax())
        if token == 1:  # the end
            break
        answer.append(token)
    return answer


def test_a_base_model_is_decoded_debiased_from_its_two_texts(world: Path, tmp_path: Path) -> None:
    assert "--form completion" in refusal_of(*evaluation(world, tmp_path))
    assert evaluate(world, tmp_path, "--form", "completion", "--alpha", 0.5) == 0
    loaded, wording = load_model(str(world / "model")), load_prompt_set("default")
    for sample, row in zip(bench_rows(), predictions(tmp_path, "bench-completion"), strict=True):
        prompts = []
        for view in ("original", "imagined"):
            system, user = (message["content"] for message in wording.messages(sample, view))
            text = f"{system}\n\n{user}\n{wording.marker(sample.format)}"
            prompts.append(loaded.tokenizer(text)["input_ids"])
        said = loaded.tokenizer.decode(naive(loaded.model.eval(), prompts, 0.5), skip_special_tokens=True)
        assert row["output"] == said.partition("\nContext:")[0].partition("\nPremise:")[0]
    assert scores_of(tmp_path, "bench-completion")["form"] == "completion"


@pytest.mark.parametrize("how", [("--setting", "few_shot"), ("--setting", "cot"), ("--answer", "likelihood")])
def test_every_setting_has_the_form_in_its_folder(world: Path, tmp_path: Path, how: tuple[str, str]) -> None:
    where = ("--bench", world / "bench", "--out", tmp_path, "--form", "completion", "--alpha", 0.5)
    short = () if "likelihood" in how else ("--max-new-tokens", 6)
    assert d2e("eval", world / "model", *where, *how, *short) == 0
    name = "bench-completion-likelihood" if "likelihood" in how else f"bench-{how[1]}-completion"
    assert scores_of(tmp_path, name)["form"] == "completion"


def test_a_run_trained_on_texts_is_evaluated_on_texts(world: Path, tmp_path: Path) -> None:
    recipe = write_recipe(world, tmp_path / "run", "train.max_steps=1", "train.save_steps=1")
    assert "data.form=completion" in refusal_of("train", recipe)
    assert d2e("train", recipe, "data.form=completion", "data.dev=" + str(world / "train.jsonl"), "train.eval_steps=1",
               "train.sample_predictions=2") == 0  # fmt: skip
    assert d2e("eval", tmp_path / "run", "--bench", world / "bench", "--max-new-tokens", 4) == 0
    assert scores_of(tmp_path / "run", "bench-completion")["alpha"] == 0.5
    assert "data.form" in refusal_of("train", recipe, "--resume", "train.max_steps=2")
    assert "was trained on texts" in " ".join(refusal_of("chat", tmp_path / "run").split())
    assert d2e("export", tmp_path / "run", tmp_path / "exported") == 0
    assert "as one text that is continued" in (tmp_path / "exported" / "README.md").read_text()
    wrong = refusal_of("train", recipe, "data.form=complete", "--overwrite")
    assert "'chat' or 'completion'. Did you mean 'completion'?" in " ".join(wrong.split())
