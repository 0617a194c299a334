"""The model card: front matter that the Hub accepts, and what it says about a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from transformers import AutoTokenizer

from d2e_sft.hub.card import PAPER
from tests.d2e_sft.hub.runs import card_of, group, make_run, rows_of, section_of, write_manifest, write_scores

ROOT = Path(__file__).resolve().parents[3]
PLAIN, TWO = ("d2e.debias=false", "d2e.distill=false"), "original, imagined"


def test_the_front_matter_is_read_back_by_the_hubs_client(run: Path) -> None:
    write_manifest(run)
    data = ModelCard(card_of(run)).data
    assert (data.base_model, data.license, data.language) == ("someone/tiny", "unknown", "en")
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-generation")
    assert data.to_dict()["base_model_relation"] == "finetune"
    assert data.tags == ["event-reasoning", "d2e-sft", "custom_generate"]
    assert data.model_name == "tiny"
    found = {(r.dataset_type, r.dataset_config, r.task_type, r.metric_type): r.metric_value for r in data.eval_results}
    assert found == {
        ("tracie", "temporal", "text-classification", "exact_match"): 40.0,
        ("tracie", "temporal", "text-classification", "f1"): 60.0,
        ("ecare", "causal", "question-answering", "exact_match"): 60.0,
        ("ecare", "causal", "question-answering", "f1"): 80.0,
        ("mctaco", "temporal", "multiple-choice", "exact_match"): 50.0,
        ("mctaco", "temporal", "multiple-choice", "f1"): 70.0,
    }
    assert data.eval_results[0].metric_name == "exact match (95 % interval 35.0, 45.0)"


def test_names_and_licences_put_no_html_into_the_front_matter(tmp_path: Path) -> None:
    name, licence = "tiny<script>alert(1)<!--", "<img src=x onerror=alert(1)>"
    run = make_run(tmp_path)
    write_scores(run, groups=[group("e<svg/onload=alert(1)>", "causal", "qa", 40, 0.7)])
    card = card_of(run.rename(run.with_name(name)), licence=licence)
    assert "<" not in card.split("\n---\n")[0]
    data = ModelCard(card).data
    assert (data.model_name, data.license) == (name, licence)
    assert "e<svg/onload=alert(1)>" in {result.dataset_type for result in data.eval_results}


def test_an_adapter_says_whose_it_is(tmp_path: Path) -> None:
    run = make_run(tmp_path, lora=True, base="someone/base")
    # The base in the folder is one that lies here: another could not be asked for its kind without a network.
    config = json.loads((run / "adapter_config.json").read_text())
    base = str(make_run(tmp_path / "other"))
    (run / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": base}))
    data = ModelCard(card_of(run, adapter=True, licence="mit")).data
    assert (data.base_model, data.library_name, data.license) == ("someone/base", "peft", "mit")
    assert data.to_dict()["base_model_relation"] == "adapter"


def test_random_weights_have_no_base_model(tmp_path: Path) -> None:
    run = make_run(tmp_path, "llama", "model.weights=random")
    card = card_of(run)
    assert ModelCard(card).data.base_model is None
    assert "which began with random weights" in card
    assert "A fine-tuned version of" not in card


@pytest.mark.parametrize(
    ("changes", "views", "said", "unsaid"),
    [
        ((), "original, imagined, refined", ("without it", "refined view", "α·z_imagined"), ()),
        (("d2e.distill=false",), TWO, ("without it", "α·z_imagined"), ("refined",)),
        (("d2e.debias=false",), "original, refined", ("relevant parts", "divergence"), ("imagined", "without")),
        (PLAIN, "original", ("like any other",), ("imagined", "refined")),
        (("d2e.objective=sft", *PLAIN), "original", ("from the logits", "like any other"), ("imagined", "refined")),
        (
            ("d2e.objective=teacher", PLAIN[0]),
            "original, refined",
            ("drawn to the refined", "like any"),
            ("kept", "α"),
        ),
        (
            ("d2e.objective=prefer", *PLAIN),
            "original",
            ("a comparison with a rejected answer", "like any other"),
            ("imagined", "refined", "α"),
        ),
        (("d2e.objective=my.losses:best", *PLAIN), TWO, ("its author's own", "like any other"), ("α",)),
    ],
)
def test_the_method_is_described_in_two_sentences(
    tmp_path: Path, changes: tuple[str, ...], views: str, said: tuple[str, ...], unsaid: tuple[str, ...]
) -> None:
    card = card_of(make_run(tmp_path, "llama", *changes))
    method = section_of(card, "Method")
    sentences = method.partition("\n")[0]
    assert len(re.findall(r"\.(?= [A-Z]|$)", sentences)) == 2
    assert all(words in sentences for words in said)
    assert not any(words in sentences for words in unsaid)
    assert ["views", views] in rows_of(method)
    assert ("imagined_input_ids" in card) == ("like any other" not in sentences)
    objective = next((change.partition("objective=")[2] for change in changes if "objective" in change), "d2e")
    assert ["objective", f"`{objective}`"] in rows_of(method)


def test_a_template_without_a_system_message_gets_it_with_the_users(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(run)
    refuse = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    tokenizer.chat_template = refuse + tokenizer.chat_template
    tokenizer.save_pretrained(run)
    assert '[{"role": "user", "content": f"{SYSTEM}\\n\\n{text}"}]' in card_of(run)


def test_the_paper_is_cited_by_the_title_that_the_readme_has(tmp_path: Path) -> None:
    assert PAPER in section_of(card_of(make_run(tmp_path)), "Citation")
    assert PAPER in " ".join((ROOT / "README.md").read_text().split())


def test_the_same_run_gives_the_same_bytes(run: Path) -> None:
    assert card_of(run) == card_of(run)
