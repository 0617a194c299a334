"""What a training from Python refuses, and how: each call and its message in `test_messages.yaml`."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest
import torch
from accelerate.parallelism_config import ParallelismConfig
from peft import LoraConfig, PrefixTuningConfig, get_peft_model
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, TrainingArguments

from d2e_sft import D2EConfig, D2ETrainer, DecodingConfig, answer_samples
from d2e_sft.util.errors import UserError
from tests.command import refusal_of
from tests.d2e_sft.model.test_packing import failing
from tests.factories import make_world, write_recipe
from tests.messages import messages_of
from tests.tiny import save_tiny_model, tiny_model, tiny_tokenizer

SHORT: dict[str, Any] = {
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 3e-3, "logging_steps": 1,
    "max_steps": 2, "bf16": False, "disable_tqdm": True,
}  # fmt: skip
ROWS = [
    {
        "context": f"Rain fell for {i} days. Roads stayed dry. Then the river rose.",
        "question": "What rose?",
        "answer": "the river",
    }
    for i in range(6)
]
GOOD: dict[str, Any] = {
    "original": [1, 2, 3], "imagined": [1, 2], "refined": [1, 3], "answer": [4, 5], "content": [True, False],
}  # fmt: skip


@dataclass
class SFTConfig(TrainingArguments):
    """The arguments that TRL 1.16 adds, with their defaults."""

    dataset_text_field: str = "text"
    max_length: int | None = 1024
    packing: bool = False
    padding_free: bool = False
    shuffle_dataset: bool = False
    dataset_num_proc: int | None = None
    completion_only_loss: bool | None = None
    assistant_only_loss: bool = False
    loss_type: str = "nll"
    router_aux_loss_coef: float | None = None


def shares_of(logits: Any, targets: Any) -> Any:
    """An objective with too few arguments."""
    raise NotImplementedError


def trainer(folder: Path, rows: Any = ROWS, *, model: Any = None, given: Any = None, **arguments: Any) -> D2ETrainer:
    args = D2EConfig(str(folder), **{**SHORT, **arguments})
    options: dict[str, Any] = {"processing_class": tiny_tokenizer(), **(given or {})}
    return D2ETrainer(model or tiny_model(), args, train_dataset=rows, **options)


def argmax(answered: Any) -> Any:
    logits, labels = answered
    return {"accuracy": float(np.mean(np.argmax(logits, axis=-1) == labels))}


ARGUMENTS: Mapping[str, Any] = {
    "max_seq_length": 512, "learning_rat": 0.1, "packing": True, "completion_only_loss": False,
    "prefer_form": "sigmoid", "objective": shares_of, "neftune_noise_alpha": 5, "label_smoothing_factor": 0.1,
    "torch_compile": True, "use_liger_kernel": True, "alpha": -1.0, "max_length": -1, "overlong": "cut",
    "decoding_alpha": -3, "per_device_train_batch_size": 0, "batch_size": "8",
    "auto_find_batch_size": True, "train_sampling_strategy": "group_by_length",
    "save_total_limit": 0, "balance": 1.0, "parallelism_config": ParallelismConfig(cp_size=2),
}  # fmt: skip
OF_CONFIG = {
    **{f"D2EConfig({name}=…)": {name: value} for name, value in ARGUMENTS.items()},
    "two unknown arguments": {"beta": 0.1, "learning_rat": 0.1},
    "an unknown objective": {"objective": "techer"},
    "a lambda as objective": {"objective": lambda: 0},
    "tensor parallelism": {"parallelism_config": ParallelismConfig(tp_size=4)},
    "a batch that micro-batches do not divide": {"batch_size": 12, "per_device_train_batch_size": 7},
    "a batch that accumulation contradicts": {"batch_size": 10, "gradient_accumulation_steps": 4},
    "the usual batch that accumulation contradicts": {"batch_size": 64, "gradient_accumulation_steps": 4},
    "tokens beside accumulation": {"micro_batch_tokens": 300, "gradient_accumulation_steps": 2},
    "rows in order, which are drawn": {"train_sampling_strategy": "sequential", "rows_per_context": 2},
}
PREFIX = PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
OF_TRAINER: Mapping[str, dict[str, Any]] = {
    "tokenizer of older versions": {"given": {"tokenizer": "x"}},
    "calbacks": {"given": {"calbacks": []}},
    "compute_loss_func": {"given": {"compute_loss_func": print}},
    "model_init": {"given": {"model_init": tiny_model}},
    "an adapter by name": {"given": {"peft_config": "lora"}},
    "an adapter of prompts": {"given": {"peft_config": PREFIX}},
    "a model with an adapter of prompts": {"model": get_peft_model(tiny_model(), PREFIX)},
    "a tokenizer by name": {"given": {"processing_class": "gpt2"}},
    "an answer that is a number": {"rows": [{**GOOD, "answer": 3}]},
    "a row of tokens without a view": {"rows": [GOOD, {"original": [1], "answer": [2]}]},
    "rows of tokens without views": {"rows": [{"original": [1], "answer": [1]}]},
    "rows of TRL's tokens": {"rows": [{"input_ids": [1], "labels": [1]}]},
    "a text that is a number": {"rows": [{"question": "how many?", "answer": 3}]},
    "rows of texts": {"rows": [{"text": "Why?\n### Response: So."}]},
    "a data frame": {"rows": pandas.DataFrame(ROWS)},
    "pairs without a prompt": {"rows": [{"chosen": "a", "rejected": "b"}]},
    "rows with the same id": {"rows": [{**row, "id": "same"} for row in ROWS]},
    "a probe with the same id": {"given": {"probe_dataset": [{**row, "id": "same"} for row in ROWS]}},
    "rows too long": {"max_length": 30},
    "prefer without pairs": {"objective": "prefer"},
    "balance without subsets": {"balance": 0.5},
    "balance with one subset": {"balance": 0.3, "rows": [{**ROWS[0], "subset": "aligned"}, ROWS[1]]},
    "balance of tokens": {"balance": 0.5, "rows": [GOOD] * 2},
    "a function of no script": {"objective": "__main__:gone"},
    "an objective of two arguments": {"objective": f"{__name__}:shares_of"},
    "the best model without held-out rows": {"load_best_model_at_end": True},
    "columns as sets": {"given": {"eval_dataset": {key: [row[key] for row in ROWS] for key in ROWS[0]}}},
    "a probe without conflict rows": {"given": {"probe_dataset": [{**ROWS[0], "subset": "aligned"}]}},
    "a probe of tokens": {"rows": [GOOD] * 2, "given": {"probe_dataset": ROWS}},
}
ADAPTED = LoraConfig(r=2, target_modules="all-linear")
BAD_TOKENS: Mapping[str, dict[str, Any]] = {
    "no answer tokens": {"answer": []},
    "a negative id": {"original": [1, -2]},
    "an id beyond the vocabulary": {"imagined": [10**6]},
    "a fraction": {"refined": [1.5]},
    "too few marks": {"content": [True]},
}


def of_tokens(changed: dict[str, Any], make: Callable[[Any], Any]) -> Callable[[Path], Any]:
    start = {**GOOD, "refined": [1.0]} if "refined" in changed else GOOD  # a column of a dataset has one type
    return lambda tmp: trainer(tmp, make([start, {**GOOD, **changed}]))


def refused(tmp: Path, keys: str) -> str:
    recipe = write_recipe(make_world(tmp, train=3, bench=0), tmp / "run")
    return refusal_of("train", recipe, *keys.split())


def of_another_model(tmp: Path) -> D2ETrainer:
    save_tiny_model(tmp / "model")
    tokenizer = tiny_tokenizer()
    words = tokenizer.get_vocab()
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["model"]["vocab"] = {text: len(words) - 1 - i for text, i in state["model"]["vocab"].items()}
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)), eos_token="<|end|>")
    other.chat_template = tokenizer.chat_template
    return trainer(tmp / "run", model=str(tmp / "model"), given={"processing_class": other})


def with_sets(tmp: Path) -> D2ETrainer:
    made = trainer(tmp, given={"eval_dataset": {"near": ROWS[:2]}})
    made.compute_metrics = argmax
    return made


CALLS: dict[str, Callable[[Path], Any]] = {
    **{name: lambda tmp, given=given: D2EConfig(str(tmp), **given) for name, given in OF_CONFIG.items()},
    "two arguments of TRL": lambda tmp: D2EConfig.of(SFTConfig(str(tmp), loss_type="dft", router_aux_loss_coef=0.1)),
    "arguments that are a path": lambda tmp: D2ETrainer(tiny_model(), "runs/mine"),
    "no model": lambda tmp: D2ETrainer(args=D2EConfig(str(tmp), **SHORT), train_dataset=ROWS),
    "a model that is a number": lambda tmp: trainer(tmp, model=3),
    "a full device as the layout is chosen": lambda tmp: trainer(
        tmp, model=failing(torch.OutOfMemoryError("CUDA out of memory"))
    ),
    "a frozen model": lambda tmp: trainer(tmp, model=tiny_model().requires_grad_(False)).train(),
    "the tokenizer of another model": of_another_model,
    "a model without a name or tokenizer": lambda tmp: trainer(tmp, given={"processing_class": None}),
    **{name: lambda tmp, given=given: trainer(tmp, **given) for name, given in OF_TRAINER.items()},
    "an adapter on an adapter": lambda tmp: trainer(
        tmp, model=get_peft_model(tiny_model(), ADAPTED), given={"peft_config": ADAPTED}
    ),
    "an adapter of another name": lambda tmp: trainer(tmp, model=get_peft_model(tiny_model(), ADAPTED, "mine")),
    **{name: of_tokens(changed, list) for name, changed in BAD_TOKENS.items()},
    **{
        f"{name}, in a dataset": of_tokens(BAD_TOKENS[name], datasets.Dataset.from_list)
        for name in ("no answer tokens", "a fraction")
    },
    "a set that does not exist": lambda tmp: with_sets(tmp).predict("naer"),
    "nothing to predict": lambda tmp: with_sets(tmp).predict(None),
    "metrics of logits": lambda tmp: with_sets(tmp).evaluate(ROWS[:1]),
    "metrics that are no dict": lambda tmp: trainer(tmp, given={"compute_metrics": lambda _: None}).predict(ROWS),
    "tokens to predict": lambda tmp: trainer(tmp).predict([GOOD]),
    "rows without answers to predict": lambda tmp: trainer(tmp).predict([{"question": "What rose?"}]),
    **{
        f"d2e train {keys}": lambda tmp, keys=keys: refused(tmp, keys)
        for keys in (
            "data.dev=none.jsonl", "train.batch_size=8 --processes 3 --launch ddp",
            "model.weights=random model.lora={}", "data.max_length=100", "data.balance=0.5", "data.balance=0",
        )
    },
    "a negative length": lambda tmp: answer_samples(tiny_model(), tiny_tokenizer(), ROWS, max_length=-1),
    "a prompt set that is a number": lambda tmp: answer_samples(tiny_model(), tiny_tokenizer(), ROWS, prompt_set=3),  # type: ignore[arg-type]
    "a decoder that is a function": lambda tmp: DecodingConfig(decoder=shares_of),  # type: ignore[arg-type]
}  # fmt: skip

test_message = messages_of(__file__, CALLS)


def test_parallelism_of_the_launcher_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_SIZE", "2")
    D2EConfig(str(tmp_path))  # not asked for
    monkeypatch.setenv("ACCELERATE_USE_PARALLELISM_CONFIG", "true")
    with pytest.raises(UserError, match="sequence parallelism over 2 processes is not supported: it divides a row's"):
        D2EConfig(str(tmp_path))


def test_a_configuration_of_trl_is_taken_over_where_it_means_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = D2EConfig.of(
        SFTConfig(str(tmp_path), learning_rate=0.5, max_length=77, use_cpu=True, completion_only_loss=True)
    )
    expected = (0.5, 77, "auto", False)
    assert (args.learning_rate, args.max_length, args.packing, args.assistant_only_loss) == expected
    whole = D2EConfig.of(SFTConfig(str(tmp_path), max_length=None, assistant_only_loss=True, use_cpu=True))
    assert whole.assistant_only_loss
    assert whole.recipe.data.max_length > 10**6
    assert 'end_of_turn="template"' in capsys.readouterr().err
    done = {"packing": True, "padding_free": True, "shuffle_dataset": True, "dataset_num_proc": 2}
    packed = D2EConfig.of(SFTConfig(str(tmp_path), use_cpu=True, **done), end_of_turn="template")
    assert (packed.packing, packed.recipe.data.end_of_turn) == ("auto", "template")
    assert not capsys.readouterr().err


def test_no_maximum_length_trains_on_rows_above_the_default(tmp_path: Path) -> None:
    long = [{**ROWS[0], "context": "Rain fell for days. " * 300}] * 2
    made = trainer(tmp_path, long, max_length=None, max_steps=1, objective="sft", per_device_train_batch_size=1)
    assert max(len(row["original"]) for row in made.train_dataset) > 1024
    assert made.train().global_step == 1


def test_arguments_of_trl_that_are_none_are_left_out(tmp_path: Path) -> None:
    assert trainer(tmp_path, given={"tokenizer": None, "ref_model": None}).processing_class is not None


def test_two_trainers_of_one_model_compute_their_own_objectives(tmp_path: Path) -> None:
    model = tiny_model()
    earlier, later = (trainer(tmp_path / name, model=model, objective=name) for name in ("sft", "d2e"))
    alone = trainer(tmp_path / "alone", objective="sft").evaluate(ROWS[:2])["eval_loss"]
    assert earlier.evaluate(ROWS[:2])["eval_loss"] == alone != later.evaluate(ROWS[:2])["eval_loss"]
    assert later.train().global_step == earlier.train().global_step == 2


def test_rows_of_tensors_are_tokens(tmp_path: Path) -> None:
    tensors = [{name: torch.tensor(value) for name, value in GOOD.items()}] * 2
    assert trainer(tmp_path, tensors).train().global_step == 2


def test_rows_without_contexts_always_trigger_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"question": "What rose?", "answer": "the river"}] * 2
    for objective in ("sft", "d2e"):
        trainer(tmp_path / objective, rows, objective=objective, log_level="error").train()
        printed = " ".join(capsys.readouterr().err.split())
        assert ("no training row has a context, so the objective" in printed) == (objective == "d2e")


def test_an_evaluation_shows_the_values_of_the_users_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"eval_dataset": ROWS[:2], "compute_metrics": lambda answer: {"mine": 0.25, "eval_rows": len(answer[0])}}
    trainer(tmp_path, given=given, disable_tqdm=False, eval_steps=2).train()
    assert ", mine 0.25, rows 2\n" in capsys.readouterr().out + capsys.readouterr().err
