"""Exported models decode debiased without this package: the program of the card, and `custom_generate/generate.py`."""

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig, TextStreamer

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, generate_debiased, stop_token_ids
from d2e_sft.hub.custom_generate import generate as module
from d2e_sft.hub.custom_generate.generate import generate
from d2e_sft.hub.export import ExportOptions, export, push
from d2e_sft.model.collation import left_pad
from d2e_sft.model.forward import cache_name
from d2e_sft.model.loading import load_model
from tests.d2e_sft.decoding.pairs import frequent_token, random_prompts
from tests.d2e_sft.hub.runs import card_code, make_run, run_elsewhere
from tests.factories import seal_run
from tests.hub_server import running_hub
from tests.tiny import tiny_model, tiny_tokenizer

SHOW = "\nprint('TOKENS', output.tolist())\n"
EXAMPLE = EventSample(
    id="1", dataset="d", split="test", relation="causal", format="qa", question="Why was the road gone?",
    context="The dam broke at noon. By one the road was gone.", options=[], answers=["the dam broke"],
    refined_context=None,
)  # fmt: skip
RUNS = {  # kind, changes of the recipe, whether an adapter was trained
    "llama": ("llama", ["d2e.alpha=0.8"], False),
    "t5": ("t5", [], False),
    "qwen2": ("qwen2", [], False),
    "adapter": ("llama", [], True),
    "merged": ("llama", [], True),
}


def left_padded(
    prompts: list[list[int]], names: tuple[str, str] = ("input_ids", "attention_mask")
) -> dict[str, Tensor]:
    """Tokens and mask, padded with 0 on the left."""
    padded = left_pad(prompts, 0)
    return {names[0]: padded["input_ids"], names[1]: padded["attention_mask"]}


def pairs(originals: list[list[int]], imagined: list[list[int]]) -> dict[str, Tensor]:
    """The four inputs of debiased decoding."""
    return {
        **left_padded(originals),
        **left_padded(imagined, ("imagined_input_ids", "imagined_attention_mask")),
    }


def answers(sequences: Any, prompt_tokens: int, stops: list[int]) -> list[list[int]]:
    """The new tokens of each sequence, up to the first stop token."""
    found = []
    for sequence in sequences[:, prompt_tokens:].tolist():
        end = next((i for i, token in enumerate(sequence) if token in stops), len(sequence))
        found.append(sequence[:end])
    return found


def tokens_of(printed: str) -> list[Any]:
    lines = [line.removeprefix("TOKENS") for line in printed.splitlines() if line.startswith("TOKENS")]
    return [json.loads(line) for line in lines]


def expected_answer(run: Path, alpha: float) -> list[int]:
    loaded = load_model(str(run))
    model = loaded.model.eval()
    encoder = ViewEncoder(
        loaded.tokenizer, load_prompt_set("default"), ("original", "imagined"),
        encoder_decoder=model.config.is_encoder_decoder,
    )  # fmt: skip
    original, imagined = (encoder.prompt_ids(EXAMPLE, view) for view in ("original", "imagined"))
    stops, decoding = stop_token_ids(model, encoder.end_of_turn), DecodingConfig(alpha=alpha, max_new_tokens=12)
    [debiased] = generate_debiased(model, [original], [imagined], decoding, stop_ids=stops)
    [plain] = generate_debiased(model, [original], decoding=replace(decoding, alpha=0), stop_ids=stops)
    assert debiased not in ([], plain)
    return debiased


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs and their exports: NAME/runs/tiny and NAME/out."""
    world = tmp_path_factory.mktemp("usage")
    for name, (kind, changes, lora) in RUNS.items():
        run = make_run(world / name, kind, *changes, lora=lora)
        for folder in (run, *world.glob(f"{name}/base")):  # as some models are published
            GenerationConfig(repetition_penalty=9.0, no_repeat_ngram_size=1, decoder_start_token_id=0).save_pretrained(
                folder
            )
        seal_run(run)
        export(run, world / name / "out", ExportOptions(merge=name == "merged"))
    return world


@pytest.fixture(scope="module")
def outputs(world: Path) -> dict[str, Any]:
    """What the programs print, all in one process that cannot import this package."""
    programs = {name: card_code(world / name / "out") for name in ("llama", "t5", "adapter", "merged")}
    programs["default"] = programs["llama"].replace("    alpha=0.8,\n", "")
    programs["plain"] = programs["default"].replace("do_sample=False", "do_sample=False, alpha=0.0")
    denied = "try:\n    import d2e_sft\nexcept ModuleNotFoundError:\n    output = torch.zeros(1)\n"
    with pytest.MonkeyPatch.context() as patch, running_hub(patch) as hub:
        push(world / "qwen2" / "runs" / "tiny", "team/tiny")
        (world / "README.md").write_bytes(hub.files["team/tiny"]["README.md"])
        programs["qwen2"] = card_code(world)
        assert 'NAME = "team/tiny"' in programs["qwen2"], "it is loaded from the Hub"
        text = "".join(program + SHOW for program in (*programs.values(), "import torch\n" + denied))
        environment = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
        *found, refused = tokens_of(run_elsewhere(text, world / "elsewhere", **environment))
    assert refused == [0], "this package can be imported"
    return dict(zip(programs, found, strict=True))


@pytest.mark.parametrize("name", ["llama", "t5", "adapter", "merged", "qwen2"])
def test_the_cards_program_gives_the_answer_of_this_package(world: Path, outputs: dict[str, Any], name: str) -> None:
    """Compare the last tokens, without a stop token."""
    ids = outputs[name][0]
    end = len(ids) - (ids[-1] == 1)
    expected = expected_answer(world / name / "runs" / "tiny", 0.8 if name == "llama" else 0.5)
    assert ids[end - len(expected) : end] == expected


def test_the_default_alpha_is_that_of_the_run(outputs: dict[str, Any]) -> None:
    assert outputs["default"] == outputs["llama"] != outputs["plain"]


NEW_TOKENS = 12
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "pad_token_id": 0}


def _prompts(count: int) -> tuple[list[list[int]], list[list[int]]]:
    return random_prompts(count, 8, 40, seed=1), random_prompts(count, 3, 12, seed=2)


@pytest.mark.parametrize(
    ("kind", "count", "alpha"),
    [
        *product(["llama", "qwen2", "gemma3", "bloom", "gpt2"], [4], [0.5, 1.3]),
        *(("llama", 1, 0.9), ("llama", 4, 0.0), ("t5", 3, 0.7), ("mamba", 4, 0.5)),
    ],
)
def test_the_tokens_are_those_of_generate_debiased(kind: str, count: int, alpha: float) -> None:
    model = tiny_model(kind, seed=1)
    if kind == "mamba" and cache_name(model) != "cache":
        pytest.skip("refused before transformers 5.24")
    originals, imagined = _prompts(count)
    stops = [frequent_token(model, originals, imagined, NEW_TOKENS)]
    inputs = pairs(originals, imagined)
    theirs = generate(**inputs, model=model, alpha=alpha, eos_token_id=stops, **GREEDY)
    ours = generate_debiased(
        model, originals, imagined, DecodingConfig(alpha=alpha, max_new_tokens=NEW_TOKENS), stop_ids=stops
    )
    assert answers(theirs, 1 if kind == "t5" else inputs["input_ids"].shape[1], stops) == ours


def test_without_imagined_prompts_it_is_transformers_generate() -> None:
    model = tiny_model(seed=1)
    inputs = left_padded(_prompts(3)[0])
    assert torch.equal(generate(**inputs, model=model, **GREEDY), model.generate(**inputs, **GREEDY))
    assert torch.equal(
        generate(inputs["input_ids"], model=model, **GREEDY), model.generate(inputs["input_ids"], **GREEDY)
    )
    with pytest.raises(ValueError, match="without imagined_input_ids"):
        generate(**inputs, model=model, alpha=0.5, **GREEDY)


def _naive_sample(model: Any, original: list[int], imagined: list[int], alpha: float, **warp: float) -> list[int]:
    """Whole sequences anew for each token; temperature, top-k and top-p written out."""
    drawn: list[int] = []
    for _ in range(NEW_TOKENS):
        z = [model(torch.tensor([prompt + drawn])).logits[0, -1] for prompt in (original, imagined)]
        debiased = (z[0] - alpha * z[1]) / warp["temperature"]
        debiased[debiased < debiased.topk(int(warp["top_k"])).values[-1]] = -torch.inf
        probabilities, order = debiased.softmax(-1).sort(descending=True)
        outside = order[(probabilities.cumsum(-1) - probabilities) >= warp["top_p"]]
        debiased[outside] = -torch.inf
        drawn.append(int(torch.multinomial(debiased.softmax(-1), 1)))
    return drawn


@pytest.mark.parametrize("alpha", [0.5, 0.9])
def test_sampling_draws_from_the_warped_debiased_distribution(alpha: float) -> None:
    model = tiny_model(seed=4)
    original, imagined = (prompts[0] for prompts in _prompts(1))
    warp = {"temperature": 3.0, "top_k": 40, "top_p": 0.9}
    torch.manual_seed(5)
    with torch.no_grad():
        expected = _naive_sample(model, original, imagined, alpha, **warp)
    torch.manual_seed(5)
    options: dict[str, Any] = {**GREEDY, "do_sample": True, "eos_token_id": None, **warp}
    drawn = generate(**pairs([original], [imagined]), model=model, alpha=alpha, **options)
    assert drawn[0, len(original) :].tolist() == expected
    greedy = generate(**pairs([original], [imagined]), model=model, alpha=alpha, eos_token_id=None, **GREEDY)
    assert not torch.equal(drawn, greedy)


def test_several_samples_of_a_prompt_are_each_debiased() -> None:
    model = tiny_model(seed=4)
    inputs = pairs(*_prompts(3))
    options = {**GREEDY, "do_sample": True, "top_k": 1, "num_return_sequences": 2}
    one = generate(**inputs, model=model, alpha=0.9, **GREEDY)
    assert torch.equal(generate(**inputs, model=model, alpha=0.9, **options), one.repeat_interleave(2, dim=0))


def test_a_prompt_without_a_context_is_decoded_plainly() -> None:
    model = tiny_model(seed=1)
    originals, imagined = _prompts(4)
    imagined[2] = originals[2]
    inputs = pairs(originals, imagined)
    options: dict[str, Any] = {**GREEDY, "eos_token_id": None}
    debiased = generate(**inputs, model=model, alpha=1.3, **options)
    plain = model.generate(**left_padded(originals), **options)
    assert debiased[2].tolist() == plain[2].tolist()
    assert debiased[0].tolist() != plain[0].tolist()


@pytest.mark.parametrize("penalty", [1.0, 1.7])
def test_scores_are_debiased_and_then_penalised_and_logits_are_those_of_the_original_prompts(penalty: float) -> None:
    model = tiny_model(seed=1)
    originals, imagined = _prompts(1)
    output = generate(
        **pairs(originals, imagined), model=model, alpha=0.5, repetition_penalty=penalty,
        return_dict_in_generate=True, output_scores=True, output_logits=True, **GREEDY,
    )  # fmt: skip
    with torch.no_grad():
        z_o, z_im = (model(torch.tensor(prompts)).logits[:, -1] for prompts in (originals, imagined))
    expected = z_o - 0.5 * z_im
    for token in set(originals[0]):
        expected[0, token] *= 1 / penalty if expected[0, token] > 0 else penalty
    torch.testing.assert_close(output.logits[0], z_o)
    torch.testing.assert_close(output.scores[0], expected)


def test_stop_strings_and_a_streamer_work_as_without_debiasing(capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer = tiny_model(seed=1), tiny_tokenizer()
    originals, imagined = _prompts(1)
    options: dict[str, Any] = {**GREEDY, "eos_token_id": None, "tokenizer": tokenizer}
    whole = generate(**pairs(originals, imagined), model=model, alpha=0.5, **options)[0, len(originals[0]) :]
    texts = [tokenizer.decode([token]) for token in whole]
    stop = next(text for text in texts[2:] if text.isascii() and text != texts[0])
    streamer = TextStreamer(tokenizer, skip_prompt=True)
    cut = generate(
        **pairs(originals, imagined), model=model, alpha=0.5, stop_strings=[stop], streamer=streamer, **options
    )[0, len(originals[0]) :]
    assert cut.tolist() == whole[: texts.index(stop) + 1].tolist()
    assert len(cut) < NEW_TOKENS
    assert capsys.readouterr().out.strip("\n") == tokenizer.decode(cut).strip("\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_beams": 2}, "num_beams=2"),
        ({"guidance_scale": 1.5}, "guidance_scale=1.5"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3"),
        ({"cache_implementation": "paged"}, "paged"),
        ({"alpha": -0.1}, "alpha=-0.1"),
        ({"alpha": float("nan")}, "alpha=nan"),
        ({"imagined_attention_mask": None}, "imagined_attention_mask is missing"),
        ({"imagined_attention_mask": torch.ones(2, 1, dtype=torch.long)}, "of shape"),
        ({"imagined_input_ids": torch.ones(1, 5, dtype=torch.long), "imagined_attention_mask": None}, "1 imagined"),
        ({"imagined_attention_mask": torch.tensor([[1, 1, 0]] * 2)}, "padding_side='left'"),
    ],
)
def test_unsupported_options_are_errors(change: dict[str, Any], message: str) -> None:
    inputs: dict[str, Any] = pairs([[5, 6, 7, 8], [9, 10, 11, 12]], [[5, 6, 7], [9, 10, 11]])
    with pytest.raises(ValueError, match=message):
        generate(**{**inputs, **GREEDY, "model": tiny_model(), **change})


def test_the_file_needs_only_torch_and_transformers() -> None:
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    imported = re.findall(r"^ *(?:import|from) (\S+)", text, re.MULTILINE)
    assert {*imported} == {"inspect", "typing", "torch", "transformers"}
