"""Log-likelihood requests: plainly those of the harness's own `hf` model, debiased those of a direct computation."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from d2e_sft.data.sample import write_samples
from d2e_sft.model.loading import load_model
from d2e_sft.util.errors import UserError
from eval.commands.lm_eval import TASKS
from eval.lm_eval.model import D2ELM, ContinuationEncoder
from tests.command import d2e
from tests.factories import predictions, scores_of
from tests.tiny import make_sample, save_tiny_model, tiny_tokenizer

LONG = "It rained on the hill. " * 60
# Options that share a beginning, end in blanks, are empty or too long; and a prompt with one option.
PAIRS = [
    ("Why did it rain?", " because of clouds"),
    ("Why did it rain?", " because"),
    ("Why did it rain? ", "clouds"),
    ("", "clouds"),
    ("<|end|>Who came?", " nobody"),
    (LONG, " and then"),
    ("Who came?", " nobody"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), seed=1)


def requests(pairs: list[tuple[str, ...]], docs: list[dict[str, Any]] | None = None) -> list[Instance]:
    docs = docs or [{}] * len(pairs)
    return [
        Instance("loglikelihood", doc, pair, place) for place, (doc, pair) in enumerate(zip(docs, pairs, strict=True))
    ]


@pytest.fixture(scope="module")
def of_harness(folder: Path) -> HFLM:
    return HFLM(pretrained=load_model(str(folder)).model.eval(), tokenizer=tiny_tokenizer(), batch_size=3)


def test_plain_log_likelihoods_are_those_of_the_harness(folder: Path, of_harness: HFLM) -> None:
    ours = D2ELM(str(folder), alpha=0, batch_size=2).loglikelihood(requests(PAIRS), disable_tqdm=True)
    theirs = of_harness.loglikelihood(requests(PAIRS), disable_tqdm=True)
    for (mine, greedy), (expected, expected_greedy) in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(expected, rel=1e-5)
        assert greedy == expected_greedy


def test_whole_texts_are_scored_in_the_harnesses_windows_and_always_plainly(
    folder: Path, of_harness: HFLM, caplog: pytest.LogCaptureFixture
) -> None:
    texts: list[tuple[str, ...]] = [("It rained.",), (LONG,), ("a",)]
    assert len(LONG) > 1024, "more than one window"
    theirs = of_harness.loglikelihood_rolling(requests(texts), disable_tqdm=True)
    for alpha in (0.0, 0.5):
        ours = D2ELM(str(folder), alpha=alpha).loglikelihood_rolling(requests(texts), disable_tqdm=True)
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert "3 of 3 prompts have no context to remove" in caplog.text


def test_with_a_context_to_remove_they_are_debiased(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    lm, tokenizer = D2ELM(str(folder), alpha=0.5), tiny_tokenizer()
    doc = {"prompt": "It rained. Why?", "prompt_without_context": "Why?"}
    prompt = "Answer briefly.\n\nIt rained. Why?"
    pairs: list[tuple[str, ...]] = [(prompt, " clouds"), (prompt, " sun"), ("Who?", " you")]
    with caplog.at_level(logging.WARNING):
        scores = lm.loglikelihood(requests(pairs, [doc, doc, {}]), disable_tqdm=True)
    assert "1 of 3 prompts have no context to remove and are decoded plainly" in caplog.text
    for (_, text), (logprob, _) in zip(pairs[:2], scores, strict=False):
        tokens = tokenizer(text)["input_ids"]
        logits = []
        for view in (prompt, "Answer briefly.\n\nWhy?"):
            ids = tokenizer(view)["input_ids"]
            with torch.no_grad():
                logits.append(lm.model(torch.tensor([[*ids, *tokens]])).logits[0, len(ids) - 1 : -1].double())
        expected = (logits[0] - 0.5 * logits[1]).log_softmax(-1)[range(len(tokens)), tokens].sum()
        assert logprob == pytest.approx(expected.item(), rel=1e-5)
    [plain] = D2ELM(str(folder), alpha=0).loglikelihood(requests(pairs[2:]), disable_tqdm=True)
    assert scores[2] == pytest.approx(plain)


def test_a_text_without_a_token_or_with_too_many_is_refused() -> None:
    encoder = ContinuationEncoder(tiny_tokenizer(), 8)
    with pytest.raises(UserError, match="log-likelihood of '': has no token"):
        encoder.encode("Why?", "Why?", "")
    with pytest.raises(UserError, match="has 9 tokens, and the model takes 8"):
        encoder.encode("Why?", "Why?", "123456789")


def test_a_prompt_that_is_too_long_loses_its_beginning_in_either_view() -> None:
    encoder = ContinuationEncoder(tiny_tokenizer(), 8)
    one = encoder.encode("0123456789", "56789", "ab")
    assert tiny_tokenizer().decode(one.original) == "3456789"
    assert tiny_tokenizer().decode(one.imagined) == "56789"
    assert one.truncated
    assert not encoder.encode("0123456", "0123456", "ab").truncated


# task → its rows' dataset, relation and format, the number of correct options, and the response form
CHOICES = {
    "piper_choice_causal_ecare": ("ecare", "causal", "scq", 1, "The correct option is:"),
    "piper_choice_temporal_mctaco": ("mctaco", "temporal", "mcq", 2, "The correct options are:"),
}


def test_piper_choice_gives_the_accuracies_of_d2e_eval(folder: Path, tmp_path: Path) -> None:
    options = ["rain", "a long, long drought", "snow"]
    for split, count in (("train", 4), ("test", 7)):
        rows = [
            make_sample(i, dataset=dataset, relation=relation, format=kind, options=options, split=split,
                        id=f"{split}{i}", answers=(options * 2)[i % 3 :][:correct])
            for dataset, relation, kind, correct, _ in CHOICES.values()
            for i in range(count)
        ]  # fmt: skip
        write_samples(rows, tmp_path / f"{split}.parquet")
    out, name = tmp_path / "run", f"{tmp_path.name}-likelihood"
    common = ("--bench", tmp_path, "--out", out, "--answer", "likelihood", "--alpha", 0.5)
    assert d2e("eval", folder, *common) == 0
    manager = TaskManager(include_path=str(TASKS), include_defaults=False, metadata={"data": str(tmp_path)})
    lm = D2ELM(str(folder), alpha=0.5, batch_size=2)
    how: dict[str, Any] = {"task_manager": manager, "apply_chat_template": True, "bootstrap_iters": 0}
    results = simple_evaluate(model=lm, tasks=list(CHOICES), **how)
    shown = simple_evaluate(model=lm, tasks=list(CHOICES), num_fewshot=2, fewshot_as_multiturn=True, limit=1, **how)
    assert shown is not None
    groups = {group["dataset"]: group for group in scores_of(out, name)["groups"]}
    for task, (dataset, _, kind, _, form) in CHOICES.items():
        for theirs, ours in (("acc,none", "acc"), ("acc_norm,none", "acc_norm")):
            assert results["results"][task][theirs] == pytest.approx(groups[dataset][ours]["mean"])
        rows = [row for row in predictions(out, name) if row["dataset"] == dataset]
        for sample, row in zip(results["samples"][task], rows, strict=True):
            scored = [float(response[0][0]) for response in sample["resps"]]
            assert scored == pytest.approx([option["logprob"] for option in row["likelihoods"]], rel=1e-5)
        prompt = shown["samples"][task][0]["arguments"][0][0]
        assert prompt.count(f"{form} (") == 2
        assert prompt.count("; (") == (2 if kind == "mcq" else 0), "a demonstration names all the correct options"
        assert prompt.endswith(form)
