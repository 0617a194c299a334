"""The model card: front matter that the Hub accepts, and what it says about a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from transformers import AutoTokenizer

from d2e_sft.config.recipe import load_recipe
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.hub.card import PAPER, CardOptions, model_card
from d2e_sft.train.data_record import DataRecord, DataSource
from tests.d2e_sft.hub.runs import make_run, write_manifest, write_scores

ROOT = Path(__file__).resolve().parents[3]


def _card(run: Path, *, adapter: bool = False, licence: str | None = None) -> str:
    recipe = load_recipe(run / "recipe.yaml")
    return model_card(run, recipe, load_prompt_set("default"), CardOptions(adapter=adapter, licence=licence))


def _section(card: str, title: str) -> str:
    match = re.search(rf"^## {title}\n\n(.*?)(?=^## |\Z)", card, re.DOTALL | re.MULTILINE)
    assert match is not None, title
    return match[1]


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_the_front_matter_is_read_back_by_the_hubs_client(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_scores(run)
    write_manifest(run)
    data = ModelCard(_card(run)).data
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


def test_an_adapter_says_whose_it_is(tmp_path: Path) -> None:
    run = make_run(tmp_path, lora=True, base="someone/base")
    (run / "recipe.yaml").write_text((run / "recipe.yaml").read_text().replace(str(tmp_path / "base"), "someone/base"))
    data = ModelCard(_card(make_tokenizer_local(run), adapter=True, licence="mit")).data
    assert (data.base_model, data.library_name, data.license) == ("someone/base", "peft", "mit")
    assert data.to_dict()["base_model_relation"] == "adapter"


def make_tokenizer_local(run: Path) -> Path:
    """An adapter's base cannot be asked for its kind without a network, so it is one that lies here."""
    config = json.loads((run / "adapter_config.json").read_text())
    base = make_run(run.parent.parent / "other")
    (run / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(base)}))
    return run


def test_results_stand_by_relation_with_their_intervals(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_scores(run)
    results = _section(_card(run), "Results")
    assert _rows(results) == [
        ["relation", "dataset", "format", "n", "mean", "exact match", "F1"],
        *[row for row in _rows(results) if set("".join(row)) <= set("-: ")],
        ["temporal", "tracie", "nli", "20", "50.0 [45.0, 55.0]", "40.0 [35.0, 45.0]", "60.0 [55.0, 65.0]"],
        ["temporal", "mctaco", "mcq", "30", "60.0 [55.0, 65.0]", "50.0 [45.0, 55.0]", "70.0 [65.0, 75.0]"],
        ["temporal", "**average of 2**", "", "50", "55.0", "45.0", "65.0"],
        ["causal", "ecare", "qa", "40", "70.0 [65.0, 75.0]", "60.0 [55.0, 65.0]", "80.0 [75.0, 85.0]"],
        ["all", "**all samples**", "", "90", "60.0 [55.0, 65.0]", "50.0 [45.0, 55.0]", "70.0 [65.0, 75.0]"],
    ]
    assert "zero-shot; prompt set `default`; decoded debiased with α = 0.5; a random subset" in results
    assert "Scored on a subset of mini" in _section(_card(run), "Limits")


def test_a_related_systems_benchmark_keeps_its_own_tables(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    folder = run / "eval" / "boxes"
    folder.mkdir(parents=True)
    (folder / "scores.json").write_text(json.dumps({"system": "boxes", "alpha": None, "max_samples": None}))
    (folder / "tables.md").write_text("Boxes\n\n| what | accuracy |\n|---|---|\n| all | 12.0 |\n")
    results = _section(_card(run), "Results")
    assert "### boxes\n\ndecoded plainly.\n\nBoxes" in results
    assert ["all", "12.0"] in _rows(results)


def test_a_run_without_scores_says_so(tmp_path: Path) -> None:
    card = _card(make_run(tmp_path))
    assert _section(card, "Results").strip() == "This model has not been scored."
    assert "it has not been scored" in _section(card, "Limits")
    assert "model-index" not in card


def test_licences_are_the_manifests(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_manifest(run)
    rows = _rows(_section(_card(run), "Training data"))
    assert rows[2:] == [
        ["[made-up](https://example.org/made-up)", "temporal", "8", "CC-BY-4.0", "allowed by the licence"]
    ]


def test_licences_are_unknown_where_no_manifest_vouches_for_the_rows(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert "Licences: unknown (no manifest lay beside the file)" in _section(_card(run), "Training data")
    write_manifest(run, sha256="0")
    assert "Licences: unknown (the manifest beside the file describes other rows)" in _card(run)
    assert "licences of its training data are unknown" in _section(_card(run), "Limits")
    assert ModelCard(_card(run)).data.language is None


def test_the_rows_are_counted_where_the_run_recorded_them(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    recipe = load_recipe(run / "recipe.yaml")
    DataRecord(source=DataSource.of(recipe), samples=5, tokens_sha256="", processes=1, versions={}).save(run)
    write_manifest(run)
    Path(recipe.data.train).write_bytes(b"other rows by now")
    data = _section(_card(run), "Training data")
    assert "5 samples of 8 rows of `data/train.parquet`" in data
    assert "CC-BY-4.0" in data, "the run recorded the rows that the manifest describes"


@pytest.mark.parametrize(
    ("changes", "views", "said", "unsaid"),
    [
        ((), "original, imagined, refined", ("without it", "refined view", "α·z_imagined"), ()),
        (("d2e.distill=false",), "original, imagined", ("without it", "α·z_imagined"), ("refined",)),
        (("d2e.debias=false",), "original, refined", ("relevant parts", "divergence"), ("imagined", "without")),
        (("d2e.debias=false", "d2e.distill=false"), "original", ("as any other",), ("imagined", "refined")),
    ],
)
def test_the_method_is_told_in_two_sentences_of_what_was_done(
    tmp_path: Path, changes: tuple[str, ...], views: str, said: tuple[str, ...], unsaid: tuple[str, ...]
) -> None:
    card = _card(make_run(tmp_path, "llama", *changes))
    method = _section(card, "Method")
    sentences = method.partition("\n")[0]
    assert len(re.findall(r"\.(?= [A-Z]|$)", sentences)) == 2
    assert all(words in sentences for words in said)
    assert not any(words in sentences for words in unsaid)
    assert ["views", views] in _rows(method)
    assert ("imagined_input_ids" in card) == ("debias=false" not in "".join(changes))


def test_a_template_without_a_system_message_gets_it_with_the_users(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(run)
    refuse = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    tokenizer.chat_template = refuse + tokenizer.chat_template
    tokenizer.save_pretrained(run)
    assert '[{"role": "user", "content": f"{SYSTEM}\\n\\n{text}"}]' in _card(run)


def test_the_paper_is_cited_by_the_title_that_the_readme_has(tmp_path: Path) -> None:
    assert PAPER in _section(_card(make_run(tmp_path)), "Citation")
    assert PAPER in " ".join((ROOT / "README.md").read_text().split())


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_scores(run)
    assert _card(run) == _card(run)
