"""The model card: front matter that the Hub accepts, and what it says about a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from transformers import AutoTokenizer

from d2e_sft.config.recipe import load_recipe
from d2e_sft.hub.card import PAPER
from d2e_sft.util.files import with_checksums, write_json
from tests.d2e_sft.hub.runs import (
    card_of,
    group,
    make_run,
    rows_of,
    section_of,
    write_data_record,
    write_manifest,
    write_scores,
)

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
    first = data.eval_results[0]
    assert first.dataset_name == f"{first.dataset_type} ({first.dataset_config}, nli)"
    assert (first.dataset_split, first.dataset_args) == ("test", {"benchmark": "mini", "samples": 20})
    assert first.metric_name == "exact match (95 % interval 35.0, 45.0)"


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
    ("changes", "views", "debiased"),
    [
        ((), "original, imagined, refined", True),
        (("d2e.distill=false",), TWO, True),
        (("d2e.debias=false",), "original, refined", False),
        (("d2e.objective=sft", *PLAIN), "original", False),
        (("d2e.objective=teacher", PLAIN[0]), "original, refined", False),
        (("d2e.objective=prefer", *PLAIN), "original", False),
        (("d2e.objective=my.losses:best", *PLAIN), TWO, False),
    ],
)
def test_the_method_is_that_of_the_recipe(
    tmp_path: Path, changes: tuple[str, ...], views: str, debiased: bool
) -> None:
    card = card_of(make_run(tmp_path, "llama", *changes))
    method = section_of(card, "Method")
    assert ["views", views] in rows_of(method)
    assert ("imagined_input_ids" in card) == ("α·z_imagined" in method) == debiased
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


def test_licences_are_the_manifests(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_manifest(run)
    rows = rows_of(section_of(card_of(run), "Training data"))
    assert rows[2:] == [
        ["[made-up](https://example.org/made-up)", "temporal", "8", "CC-BY-4.0", "allowed by the licence"]
    ]


def test_licences_are_unknown_where_no_manifest_vouches_for_the_rows(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert "Licences: unknown (no manifest of a build next to the file)" in section_of(card_of(run), "Training data")
    write_manifest(run, sha256="0")
    assert "Licences: unknown (the manifest next to the file describes other rows)" in card_of(run)
    assert "licences of its training data are unknown" in section_of(card_of(run), "Limits")
    assert ModelCard(card_of(run)).data.language is None


def test_the_rows_are_counted_where_the_run_recorded_them(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    recipe = load_recipe(run / "recipe.yaml")
    write_data_record(run)
    write_manifest(run)
    Path(recipe.data.train).write_bytes(b"other rows by now")
    data = section_of(card_of(run), "Training data")
    assert "5 samples of 8 rows of `data/train.parquet`" in data
    assert "CC-BY-4.0" in data, "the run recorded the rows that the manifest describes"


def test_results_stand_by_relation_with_their_intervals(run: Path) -> None:
    results = section_of(card_of(run), "Results")
    assert rows_of(results) == [
        ["relation", "dataset", "format", "n", "mean", "exact match", "F1"],
        *[row for row in rows_of(results) if set("".join(row)) <= set("-: ")],
        ["temporal", "tracie", "nli", "20", "50.0 [45.0, 55.0]", "40.0 [35.0, 45.0]", "60.0 [55.0, 65.0]"],
        ["temporal", "mctaco", "mcq", "30", "60.0 [55.0, 65.0]", "50.0 [45.0, 55.0]", "70.0 [65.0, 75.0]"],
        ["temporal", "**average of 2**", "", "50", "55.0", "45.0", "65.0"],
        ["causal", "ecare", "qa", "40", "70.0 [65.0, 75.0]", "60.0 [55.0, 65.0]", "80.0 [75.0, 85.0]"],
        ["all", "**all samples**", "", "90", "60.0 [55.0, 65.0]", "50.0 [45.0, 55.0]", "70.0 [65.0, 75.0]"],
    ]
    assert "zero-shot; prompt set `default`; decoded debiased with α = 0.5; a random subset" in results
    assert "Scored on a subset of mini" in section_of(card_of(run), "Limits")


def test_a_related_systems_benchmark_keeps_its_own_tables(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    folder = run / "eval" / "boxes"
    write_json(folder / "scores.json", with_checksums({"system": "boxes", "alpha": None, "max_samples": None}))
    (folder / "tables.md").write_text("Boxes\n\n| what | accuracy |\n|---|---|\n| all | 12.0 |\n")
    results = section_of(card_of(run), "Results")
    assert "### boxes\n\ndecoded plainly.\n\nBoxes" in results
    assert ["all", "12.0"] in rows_of(results)


def test_answers_by_likelihood_are_marked(run: Path) -> None:
    write_scores(run, answer="likelihood")
    assert "α = 0.5; the likeliest option, nothing generated" in section_of(card_of(run), "Results")


def test_a_run_without_scores_says_so(tmp_path: Path) -> None:
    card = card_of(make_run(tmp_path))
    assert section_of(card, "Results").strip() == "This model has not been scored."
    assert "It has not been scored" in section_of(card, "Limits")
    assert "model-index" not in card
