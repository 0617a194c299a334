"""What recipes, keys and options of decoding refuse, and how: each call and its message in `test_messages.yaml`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.config.functions import load_function
from d2e_sft.config.lookup import require_recipe
from d2e_sft.config.recipe import load_recipe
from d2e_sft.config.reference import explain
from tests.messages import Call, message_of, messages_of

OPTIONS: dict[str, dict[str, Any]] = {
    "beams of debiased decoding": {"num_beams": 4},
    "beams of another decoder": {"num_beams": 4, "decoder": "cad"},
    "beams and draws": {"num_beams": 4, "alpha": 0, "temperature": 1},
    **{
        f"{name}={value!r}": {name: value}
        for name, value in (
            ("num_beams", 0), ("temperature", -0.1), ("temperature", float("nan")), ("top_p", 0.0), ("top_k", -1),
            ("plausibility", 1.1), ("plausibility", "much"), ("max_new_tokens", 0), ("batch_size", 0), ("alpha", -0.5),
            ("alpha", 10.1), ("alpha", float("nan")), ("alpha", "0.5"), ("alpha", True), ("stop_strings", "end"),
            ("stop_strings", [""]),
        )
    },
}  # fmt: skip
DECODERS = (
    "adcad", "", "no module:f", "cad:wieght=1", "cad:1", "plain:alpha=1", "cad:weight", "cad:weight=much",
    "cad:weight=inf", "d2e:alpha=-1", "grd",
)  # fmt: skip
NAMES = (
    "qwen3-0.6b/d2e-loar", "recipes/qwen3-0.6b/d2e-loar.yaml", "recipes/shared/d2e-lroa.yaml",
    "methods/no-disitl.yaml", "zzz",
)  # fmt: skip
OVERRIDES = (
    "d2e.aplha=1", "trian.seed=1", "model.lora.rank=1", "model.lora.r=1000000", "d2e.alpha=-1", "d2e.alpha=true",
    "train.max_steps=false", "d2e.alpha=much",
    "train.per_device_train_batch_size=7", "train.report_to=wnadb", "d2e.alpha", "train.eval_steps=2",
    "train.early_stopping_patience=2", "train.load_best_model_at_end=true", "data.max_dev_samples=3",
    "data.max_probe_samples=2", "data.train.deeper=1", "d2e.objective=techer", "d2e.objective=product",
    "d2e.bias_model=base", "d2e.objective=mine:2nd", "model.quantization=4bit", "extends=other.yaml",
    "train.optim=[", "data.without_context=true",
)  # fmt: skip
MISNAMED = ("epochs", "micro_batch_size", "warmup_ratio", "precision", "compile", "liger_kernel")
SEVERAL = {
    "sft that subtracts": ["d2e.objective=sft", "d2e.debias=true"],
    "prefer that distils": ["d2e.objective=prefer", "d2e.distill=true"],
    "a teacher without gradient": ["d2e.objective=teacher", "d2e.view_gradients=original"],
    "views without the original": ["d2e.objective=a:b", "d2e.own_views=[imagined]"],
    "two precisions": ["train.bf16=true", "train.fp16=true"],
    "a batch after its micro-batch": ["train.batch_size=4", "train.per_device_train_batch_size=8"],
    "the best model, not saved": ["data.dev=d", "train.load_best_model_at_end=true", "train.eval_steps=2"],
    "the best model, saved too seldom": [
        "data.dev=d", "train.load_best_model_at_end=true", "train.eval_steps=2", "train.save_steps=3",
    ],
}  # fmt: skip
FILES = {
    "a base that does not exist": "extends: nowhere.yaml\n",
    "a base with a near name": "extends: recipes/methods/d2e-loar.yaml\n",
    "a base that is a number": "extends: 3\n",
    "a file that extends itself": "extends: recipe.yaml\n",
    "a ring of files": "extends: ring.yaml\n",
    "a list": "- 1\n",
    "a text": "only text\n",
    "no YAML": "train: {\n",
    "a key given twice": "model: {name: a}\nmodel: {name: b}\n",
    "a wrong key in a base": "extends: base.yaml\ndata: {train: x}\ntrain: {output_dir: y}\n",
}
KEYS = ("train.optin", "learing_rate", "zzzz")
FUNCTIONS = ("nowhere_at_all:f", "mine_bad:f", "mine_three:twise", "mine_three:NUMBER")


def overridden(*overrides: str) -> Call:
    def call(tmp: Path) -> Any:
        file = tmp / "recipe.yaml"
        file.write_text("data: {train: rows.parquet}\ntrain: {output_dir: runs/x}\n", encoding="utf-8")
        return load_recipe(file, overrides)

    return call


def suggested(tmp: Path) -> str:
    """What is suggested for names that keys of `train` had, or have elsewhere."""
    messages = (message_of(overridden(f"train.{name}=1"), tmp) for name in MISNAMED)
    return "\n".join(f"{name}: {text.rpartition('. ')[2]}" for name, text in zip(MISNAMED, messages, strict=True))


def of_file(text: str) -> Call:
    def call(tmp: Path) -> Any:
        (tmp / "base.yaml").write_text("d2e: {aplha: 1}\n", encoding="utf-8")
        (tmp / "ring.yaml").write_text("extends: recipe.yaml\n", encoding="utf-8")
        (tmp / "recipe.yaml").write_text(text, encoding="utf-8")
        return load_recipe(tmp / "recipe.yaml")

    return call


def decoder(name: str) -> Call:
    return lambda tmp: DecodingConfig(decoder=name)


def function(name: str) -> Call:
    def call(tmp: Path) -> Any:
        (tmp / "mine_bad.py").write_text("1 / 0\n", encoding="utf-8")
        (tmp / "mine_three.py").write_text("NUMBER = 1\ndef twice(x):\n    return x\n", encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "path", [*sys.path, str(tmp)])
            patch.delitem(sys.modules, "mine_three", raising=False)
            return load_function(name, "decoder")

    return call


def table(calls: dict[str, Any], make: Callable[[Any], Call]) -> dict[str, Call]:
    return {name: make(value) for name, value in calls.items()}


test_message = messages_of(
    __file__,
    {
        **table(OPTIONS, lambda options: lambda tmp: DecodingConfig(**options)),
        **table({f"decoder {name!r}": name for name in DECODERS}, decoder),
        **table({f"recipe {name}": name for name in NAMES}, lambda name: lambda tmp: require_recipe(name)),
        **table({text: text for text in OVERRIDES}, overridden),
        "names that keys do not have": suggested,
        **table(SEVERAL, lambda overrides: overridden(*overrides)),
        **table(FILES, of_file),
        **table({name: name for name in FUNCTIONS}, function),
        **table({f"explain {key}": key for key in KEYS}, lambda key: lambda tmp: explain(key)),
    },
)
