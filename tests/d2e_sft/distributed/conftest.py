from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from d2e_sft.data.sample import write_samples
from tests.d2e_sft.distributed.trainings import KEYS, one_process
from tests.factories import write_recipe
from tests.tiny import VOCAB_SIZE, make_sample, tiny_model, tiny_tokenizer


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, 20 samples and a recipe."""
    folder = tmp_path_factory.mktemp("world")
    config = tiny_model().config.to_dict()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**config, "vocab_size": 3200}))
    with torch.no_grad():  # as in tiny_model: an almost uniform model has no divergence between its views to speak of
        for parameter in model.parameters():
            parameter.mul_(8 if parameter.dim() > 1 else 1)
        model.lm_head.weight[VOCAB_SIZE:] = 0  # so that answers are of the tokenizer's words
    model.save_pretrained(folder / "model")
    tiny_model("qwen2").save_pretrained(folder / "tied")
    for name in ("model", "tied"):
        tiny_tokenizer().save_pretrained(folder / name)
    rejected = {number: ["a fish" + " or two" * (number % 3)] for number in range(25) if number % 3}
    samples = [
        make_sample(number, rejected=rejected.get(number, []), subset="aligned" if number % 5 else "conflict")
        for number in range(25)
    ]
    write_samples(samples[:20], folder / "train.jsonl")
    write_samples([sample.model_copy(update={"split": "dev"}) for sample in samples[20:]], folder / "dev.jsonl")
    rows = f"data.dev={folder}/dev.jsonl"
    write_recipe(folder, folder / "recipe", rows, "eval.max_new_tokens=4", *(f"train.{key}" for key in KEYS))
    return folder


@pytest.fixture(scope="package")
def one(world: Path) -> Path:
    return one_process(world, world / "one")


@pytest.fixture(scope="package", autouse=True)
def _own_cache(world: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("D2E_CACHE", str(world / "cache"))
        yield
