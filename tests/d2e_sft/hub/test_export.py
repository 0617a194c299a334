"""`d2e export`: what is in the folder, that it is there whole or not at all, and what its card says."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from d2e_sft.config.recipe import load_recipe
from d2e_sft.data.data_record import trained_wording
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.hub import export as exporting
from d2e_sft.hub.card import example_conversation
from d2e_sft.hub.export import ExportOptions, export, exported_files
from d2e_sft.model.loading import LoadedModel, load_model
from d2e_sft.util.files import with_checksums, write_json
from tests.command import call, output_of, refusal_of
from tests.d2e_sft.hub.runs import (
    card_of,
    content_of,
    group,
    interval,
    make_run,
    section_of,
    write_data_record,
    write_manifest,
    write_scores,
)
from tests.factories import seal_run
from tests.messages import Call, messages_of
from tests.tiny import tiny_model, tiny_tokenizer


def test_the_folder_holds_all_that_the_model_is(tmp_path: Path) -> None:
    run, out = make_run(tmp_path), tmp_path / "exports" / "tiny"
    write_scores(run)
    write_data_record(run, "neutral")
    (run / "notes.txt").write_text("mine")
    (run / "training_args.bin").write_bytes(b"pickled")
    output = output_of("export", run, out)
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert found == {
        "README.md", "chat_template.jinja", "checksums.json", "config.json", "custom_generate/generate.py",
        "d2e_export.json", "data.json",
        "eval/mini/scores.json", "generation_config.json", "model.safetensors", "prompt_set.yaml", "recipe.yaml",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    assert exported_files(out) == sorted(found)
    assert (out / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    assert f"exported {len(found)} files: {out}" in output
    assert load_prompt_set(str(out / "prompt_set.yaml")).name == "neutral", "as its rows were worded"
    assert trained_wording(str(out), "default") == "neutral", "which chat and demo take"


def test_nothing_in_it_names_a_path_of_this_machine(tmp_path: Path) -> None:
    run, out = make_run(tmp_path), tmp_path / "out"
    write_scores(run)
    write_data_record(run)
    export(run, out)
    for path in out.rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            assert str(tmp_path) not in path.read_text(), path
    assert load_recipe(out / "recipe.yaml").data.train == "data/train.parquet"
    assert json.loads((out / "eval/mini/scores.json").read_text())["model"] == "runs/tiny"


def test_an_export_is_a_run_to_this_package_too(tmp_path: Path) -> None:
    export(make_run(tmp_path), tmp_path / "out")
    export(tmp_path / "out", tmp_path / "again")
    assert (tmp_path / "again" / "README.md").is_file()
    assert load_model(str(tmp_path / "again")).model.config.model_type == "llama"


def test_a_checkpoint_of_a_run_is_exported_with_the_runs_recipe_and_its_own_scores(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    checkpoint = run / "checkpoint-3"
    checkpoint.mkdir()
    for path in list(run.iterdir()):
        if path.is_file() and path.name != "recipe.yaml":
            path.rename(checkpoint / path.name)
    seal_run(checkpoint)
    write_scores(run, "of-the-run")
    write_scores(checkpoint, "of-the-checkpoint")
    export(checkpoint, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out" / "eval").iterdir()] == ["of-the-checkpoint"]
    assert (tmp_path / "out" / "recipe.yaml").is_file()
    assert "# tiny-checkpoint-3\n" in (tmp_path / "out" / "README.md").read_text()


def test_only_an_earlier_export_is_replaced_and_only_if_asked(tmp_path: Path) -> None:
    run, out = make_run(tmp_path), tmp_path / "out"
    output_of("export", run, out)
    first = content_of(out)
    (out / "eval" / "mine").mkdir(parents=True)
    (out / "eval" / "mine" / "scores.json").write_text("of the earlier export")
    before = content_of(tmp_path)
    assert "out: already exists; expected a new folder" in (said := refusal_of("export", run, out))
    assert "add --overwrite" in said
    assert "is in " in refusal_of("export", out, out, "--overwrite")
    assert content_of(tmp_path) == before
    assert "--overwrite removes from" in (said := call("export", run, out, "--overwrite").err)
    assert "the evaluation mine; " in " ".join(said.split())
    assert content_of(out) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out", "runs"]


def test_a_failure_leaves_no_folder_behind(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_scores(run, groups=1)
    before = sorted(tmp_path.iterdir())
    assert "scores.json: not the scores of `d2e eval`" in refusal_of("export", run, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


def test_the_generation_config_stops_where_answers_ended_in_training_and_decodes_as_scored(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    penalties = {"repetition_penalty": 1.1, "num_beams": 4, "min_length": 9, "forced_bos_token_id": 7}
    GenerationConfig(eos_token_id=9, temperature=0.3, do_sample=True, **penalties).save_pretrained(run)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "use_cache": False}))
    seal_run(run)
    export(run, tmp_path / "out", ExportOptions(link=True))
    written = GenerationConfig.from_pretrained(tmp_path / "out")
    kept = {"eos_token_id": [1, 9], "pad_token_id": 0, "temperature": 0.3, "do_sample": True}
    assert {name: value for name, value in written.to_diff_dict().items() if name != "transformers_version"} == kept
    assert json.loads((tmp_path / "out" / "config.json").read_text())["use_cache"] is True
    assert json.loads((run / "config.json").read_text())["use_cache"] is False, "the run stays as it is"
    assert GenerationConfig.from_pretrained(run).eos_token_id == 9


def test_a_merged_adapter_is_the_base_with_its_products_added(tmp_path: Path) -> None:
    run = make_run(tmp_path, lora=True)
    export(run, tmp_path / "out", ExportOptions(merge=True))
    merged = load_file(tmp_path / "out" / "model.safetensors")
    adapter = load_file(run / "adapter_model.safetensors")
    scale = json.loads((run / "adapter_config.json").read_text())["lora_alpha"] / 2
    name = "model.layers.0.self_attn.q_proj"
    a, b = (adapter[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
    base = tiny_model(seed=1).state_dict()[f"{name}.weight"]
    torch.testing.assert_close(merged[f"{name}.weight"], base + scale * b @ a)
    assert not (tmp_path / "out" / "adapter_config.json").exists()


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_a_merge_that_changes_logits_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    run = make_run(tmp_path, kind, lora=True)
    before = content_of(tmp_path)

    def load(name: str, **options: Any) -> LoadedModel:
        without_adapter = LoadedModel(tiny_model(kind, seed=1), tiny_tokenizer())
        return without_adapter if name == str(run) else load_model(name, **options)

    with monkeypatch.context() as patch:
        patch.setattr(exporting, "load_model", load)
        message = refusal_of("export", run, tmp_path / "out", "--merge")
    assert "the merged model's logits differ from the adapter's by " in message
    assert "expected at most 0.001 in float32, so nothing was written" in message
    assert content_of(tmp_path) == before
    output_of("export", run, tmp_path / "out", "--merge")


def test_an_adapter_stays_one_unless_it_is_merged(tmp_path: Path) -> None:
    run = make_run(tmp_path, lora=True)
    warning = call("export", run, tmp_path / "out").err
    assert "has no name on the Hub; for use elsewhere, add --merge" in warning
    assert "Its base model has no name on the Hub" in (tmp_path / "out" / "README.md").read_text()
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (run / name).read_bytes()
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert (tmp_path / "out" / "generation_config.json").is_file()


@pytest.mark.parametrize("lora", [False, True])
def test_the_dtype_of_the_weights_can_be_chosen(tmp_path: Path, lora: bool) -> None:
    run = make_run(tmp_path, lora=lora)
    if lora:  # weights of a usual size: sharp ones are another model in 8 bits of mantissa
        for file in (tmp_path / "base" / "model.safetensors", run / "adapter_model.safetensors"):
            scaled = {name: weight / 8 if weight.dim() > 1 else weight for name, weight in load_file(file).items()}
            save_file(scaled, file, {"format": "pt"})
    seal_run(run)
    merged = ["--merge"] if lora else []
    output_of("export", run, tmp_path / "out", *merged, "--dtype", "bfloat16", "--license", "mit")
    assert ModelCard.load(tmp_path / "out" / "README.md").data.license == "mit"
    assert {tensor.dtype for tensor in load_file(tmp_path / "out" / "model.safetensors").values()} == {torch.bfloat16}
    assert (tmp_path / "out" / "model.safetensors").stat().st_mode & 0o044, "others may read it"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.bfloat16
    expected = load_model(str(run)).model.model.embed_tokens.weight.bfloat16()
    assert torch.equal(model.model.embed_tokens.weight, expected)


def part(title: str | None, *recipe: str, change: Callable[[Path], object] = lambda run: None, **options: Any) -> Call:
    """A section of a run's card; or what opens it (None), or its front matter as the Hub's client reads it ("").

    `change` gets the run first.
    """
    trained = {name: options.pop(name) for name in ("lora", "base") if name in options}

    def call(folder: Path) -> str:
        run = make_run(folder, "llama", *recipe, **trained)
        change(run)
        card = card_of(run, **options)
        if title is None:
            return re.search(r"^# .*?(?=^## )", card, re.DOTALL | re.MULTILINE)[0]  # type: ignore[index]
        return section_of(card, title) if title else yaml.safe_dump(ModelCard(card).data.to_dict(), sort_keys=False)

    return call


def described(run: Path) -> None:
    write_scores(run)
    write_manifest(run)


def kept(run: Path) -> None:
    """The run recorded its rows, and the file has others by now."""
    write_data_record(run)
    write_manifest(run)
    Path(load_recipe(run / "recipe.yaml").data.train).write_bytes(b"other rows by now")


def with_local_base(run: Path) -> None:
    """Let the adapter's base lie here: another could not be asked for its kind without a network."""
    config = json.loads((run / "adapter_config.json").read_text())
    base = str(make_run(run / "other"))
    (run / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": base}))


def own(wording: str | None, *formats: str) -> Callable[[Path], None]:
    """The run's rows are a user's own, a dataset of each format, worded by these prompt sets."""

    def change(run: Path) -> None:
        write_manifest(run, own=formats)
        write_data_record(run, wording)

    return change


def by_subset(run: Path) -> None:
    tagged = {
        "aligned": {"n": 60, "accuracy": interval(0.9), "mean": interval(0.9)},
        "conflict": {"n": 40, "accuracy": interval(0.4), "mean": interval(0.5), "habit_rate": interval(0.3)},
    }
    overall = group("all", "all", "all", 100, 0.6)
    overall["faithfulness"] = {"n": 50, "lacking": 20, "refusal": interval(0.8), "false_refusal": interval(0.1)}
    write_scores(run, overall=overall, subsets=[{"dataset": "habit", "subsets": tagged}])


def of_a_system(run: Path) -> None:
    folder = run / "eval" / "boxes"
    write_json(folder / "scores.json", with_checksums({"system": "boxes", "alpha": None, "max_samples": None}))
    (folder / "tables.md").write_text("Boxes\n\n| what | accuracy |\n|---|---|\n| all | 12.0 |\n")


def example(**description: Any) -> Call:
    """The example of a card of chats with this description, with its policy and without."""

    def call(folder: Path) -> str:
        views = map(example_conversation(description).messages, ("P.", ""))
        return "\n---\n".join("\n".join(f"{turn['role']}: {turn['content']}" for turn in view) for view in views)

    return call


PLAIN = ("d2e.debias=false", "d2e.distill=false")
METHODS = {
    "d2e": (),
    "no distillation": ("d2e.distill=false",),
    "no debiasing": ("d2e.debias=false",),
    "sft": ("d2e.objective=sft", *PLAIN),
    "teacher": ("d2e.objective=teacher", PLAIN[0]),
    "prefer": ("d2e.objective=prefer", *PLAIN),
    "an own objective": ("d2e.objective=my.losses:best", *PLAIN),
    "random weights": ("model.weights=random",),
}
test_card = messages_of(
    __file__,
    {
        "front matter": part("", change=described),
        "front matter of an adapter": part(
            "", change=with_local_base, lora=True, base="someone/base", adapter=True, licence="mit"
        ),
        "front matter of random weights": part("", "model.weights=random"),
        **{f"method of {name}": part("Method", *keys) for name, keys in METHODS.items()},
        **{f"opening of {name}": part(None, *METHODS[name]) for name in ("d2e", "sft", "prefer", "random weights")},
        "how to decode debiased": part("How to decode debiased", change=write_scores),
        "how to use": part("How to use", *METHODS["sft"]),
        "training data with a manifest": part("Training data", change=described),
        "training data without": part("Training data"),
        "a manifest of other rows": part("Training data", change=lambda run: write_manifest(run, sha256="0")),
        "rows that were recorded": part("Training data", change=kept),
        "results": part("Results", change=write_scores),
        "results by subset": part("Results", change=by_subset),
        "results of a system": part("Results", change=of_a_system),
        "no results": part("Results"),
        "front matter of own data": part("", change=own("neutral", "qa")),
        "method of chats": part("Method", change=own(None, "chat")),
        "method of two wordings and chats": part(
            "Method", change=own("default, neutral, the rows' own", "qa", "chat")
        ),
        "use of two datasets of chats": part("How to decode debiased", change=own(None, "chat", "chat")),
        "use of two wordings and chats": part(
            "How to decode debiased", change=own("default, neutral, the rows' own", "qa", "chat")
        ),
        "example of a prompt": example(prompt="Policy: {context}\nCustomer: {question}", system="Be kind."),
        "example of tags": example(context_in="<doc>"),
        "example of a role": example(context_in="system"),
        "example of a column": example(columns={"context": "policy"}),
        "limits": part("Limits"),
        "limits of a subset": part("Limits", change=described),
    },
)


def test_names_and_licences_put_no_html_into_the_front_matter(tmp_path: Path) -> None:
    name, licence = "tiny<script>alert(1)<!--", "<img src=x onerror=alert(1)>"
    run = make_run(tmp_path)
    write_scores(run, groups=[group("e<svg/onload=alert(1)>", "causal", "qa", 40, 0.7)])
    card = card_of(run.rename(run.with_name(name)), licence=licence)
    assert "<" not in card.split("\n---\n")[0]
    data = ModelCard(card).data
    assert (data.model_name, data.license) == (name, licence)
    assert "e<svg/onload=alert(1)>" in {result.dataset_type for result in data.eval_results}


def test_a_template_without_a_system_message_gets_it_with_the_users(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(run)
    refuse = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    tokenizer.chat_template = refuse + tokenizer.chat_template
    tokenizer.save_pretrained(run)
    assert '[{"role": "user", "content": f"{SYSTEM}\\n\\n{text}"}]' in card_of(run)
