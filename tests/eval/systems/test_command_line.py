"""The systems from the command line to scores, and how a model is asked."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.data.chat_template import ChatEncoder, Form
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.model.loading import load_model
from d2e_sft.util.errors import UserError
from eval.run.options import EvalOptions, resolve_options
from eval.run.passes import EvaluatedModel
from eval.run.processes import join_processes
from eval.run.task import TaskItem
from eval.score.predictions import read_predictions
from eval.systems.asking import Asker
from eval.systems.reading import read_json_lines
from tests.command import call, d2e, refusal_of
from tests.eval.systems.cases import CASES, save_gold
from tests.eval.systems.files import save
from tests.factories import bench_rows, predictions, scores_of
from tests.tiny import save_tiny_model

LIKELIHOOD = ("--answer", "likelihood")


class Bench:
    """A system's data and run folder; calls commands and reads what they leave."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model, self.system, self.run = folder, model, "", folder / "run"

    def of(self, system: str) -> "Bench":
        """Use this system."""
        self.system, self.data = system, self.folder / "data" / system
        for name in CASES:
            if name.split()[0] == system:
                save_gold(self.folder / "data", name)
        return self

    def evaluate(self, *options: str, status: int = 0) -> str:
        """Run `d2e eval` with options (`NAME=VALUE` for `--set`), and return what it prints."""
        where = ["--bench", self.system, "--data", self.data, "--out", self.run]
        where += [] if "likelihood" in options else ["--max-new-tokens", "4"]
        called = call("eval", self.model, *where, *_set(options))
        assert called.status == status, called.err
        return called.out + called.err

    def score(self, *options: str, predictions: Path | None = None) -> tuple[dict[str, Any], str]:
        """Run `d2e score` and return the scores and what it prints to stderr."""
        files = ("--predictions", predictions or self.run, "--gold", self.data)
        called = call("score", self.system, *files, "--json", "-", *_set(options))
        return json.loads(called.out), called.err

    def scores(self, variant: str = "") -> dict[str, Any]:
        return scores_of(self.run, f"{self.system}{variant}")


def _set(options: tuple[str, ...]) -> list[str]:
    return [part for option in options for part in (["--set", option] if "=" in option else [option])]


@pytest.fixture
def bench(tmp_path: Path, model: Path) -> Bench:
    return Bench(tmp_path, model)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model without a chat template."""
    folder = save_tiny_model(tmp_path / "base", seed=3, positions=16_384)
    (folder / "chat_template.jinja").unlink()
    return folder


@pytest.mark.parametrize(
    ("system", "options", "variant", "files"),
    [
        *(
            ("crepe", (f"prompt={prompt}", "shots=1", "--alpha", "0.5"), f"-prompt={prompt}-shots=1", {"": ""})
            for prompt in ("text", "cot", "code_two_step")
        ),
        ("boxes", (), "", {"answers_by_box.jsonl": "", "predictions.tsv": ""}),
        ("boxes", ("prompt=trained", "--alpha", "0.5"), "-prompt=trained", {"": ""}),
        ("boxes", ("--form", "completion", "demonstrations=none"), "-demonstrations=none-completion", {"": ""}),
        ("boxes", ("states_per_numops=1",), "-states_per_numops=1", {"": ""}),
        ("wiqa", ("--alpha", "0.5"), "", {"wiqa_predictions.jsonl": ""}),
        ("wiqa", ("prompt=trained", "--alpha", "0.5"), "-prompt=trained", {"wiqa_predictions.jsonl": ""}),
        (
            "openpi2",
            ("--alpha", "0.5", "--max-samples", "1"),
            "",
            {f"{task}.json": f"task={task}" for task in ("schemata", "states", "complete")},
        ),
    ],
)
def test_a_run_leaves_predictions_that_score_the_same(
    bench: Bench, system: str, options: tuple[str, ...], variant: str, files: dict[str, str]
) -> None:
    assert bench.of(system).evaluate(*options)
    scores = bench.scores(variant)
    assert (scores["system"], "password" in scores["options"]) == (system, False)
    for name, option in files.items():
        file = bench.run / "eval" / f"{system}{variant}" / name if name else None
        again, told = bench.score(*filter(None, [option]), predictions=file)
        shared = again.keys() & scores.keys()
        assert len(shared) >= 2
        assert {key: again[key] for key in shared} == {key: scores[key] for key in shared}
        assert "carries other gold" not in told


def test_another_subset_is_refused_and_a_subset_is_scored_by_its_own_procedures(bench: Bench) -> None:
    options = ("prompt=text", "shots=0")
    bench.of("crepe").evaluate(*options, "--max-samples", "1")
    assert bench.scores("-prompt=text-shots=0")["counts"]["procedures"] == 1
    assert "--set missing=leave_out" in refusal_of("score", "crepe", bench.run, "--gold", bench.data)
    assert bench.score("missing=leave_out")[0]["macro_f1"] == bench.scores("-prompt=text-shots=0")["macro_f1"]
    error = bench.evaluate(*options, status=1)
    assert "prompts (--max-samples 1 --seed 0) → " in error
    assert "prompts (all)" in error
    assert "sha256" not in error
    bench.evaluate(*options, "--overwrite")
    bench.evaluate(*options, "--max-samples", "2")  # both procedures are the same prompts as all


def test_yes_and_no_are_scored_by_likelihood(bench: Bench) -> None:
    bench.of("crepe").evaluate("prompt=yes_no", "--alpha", "0.5", *LIKELIHOOD)
    assert bench.scores("-prompt=yes_no-likelihood")["unparsed"]["pairs"] == 0
    rows = predictions(bench.run, "crepe-prompt=yes_no-likelihood", "answers")
    assert len(rows) == 8
    assert all([option["option"] for option in row["likelihoods"]] == ["yes", "no"] for row in rows)


@pytest.mark.parametrize(
    ("system", "options"),
    [
        ("boxes", ("prompt=one_box",)),
        ("boxes", ("prompt=trained",)),
        ("crepe", ("prompt=code_nested", "shots=1")),
        ("crepe", ("prompt=chat", "shots=1")),
        ("openpi2", ()),
        ("wiqa", ()),
    ],
)
def test_a_base_model_continues_texts(bench: Bench, base: Path, system: str, options: tuple[str, ...]) -> None:
    bench.model = base
    options = (*options, "--alpha", "0.5", "--max-samples", "1")
    refused = bench.of(system).evaluate(*options, status=1)
    assert "has no chat template" in refused
    assert "--form completion" in refused
    bench.evaluate(*options, "--form", "completion")
    variant = "".join(f"-{option}" for option in options if "=" in option) + "-completion"
    assert (bench.scores(variant)["form"], bench.scores(variant)["alpha"]) == ("completion", 0.5)
    bench.evaluate(*options, "--form", "completion", "--without-context")


def test_predictions_of_boxes_may_name_their_lines_or_follow_the_gold_file(bench: Bench) -> None:
    texts = ["the cup", "the hat and the pen", "nothing", "nothing", "the pen", "the hat"]

    def scored(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return bench.score(predictions=save(bench.folder / "p.jsonl", rows))[0]

    bench.of("boxes")
    assert scored([{"prediction": text} for text in texts])["state_accuracy"]["mean"] == 1
    some = scored([{"line": 5, "prediction": "the pen"}, {"line": 2, "prediction": "nothing"}])
    assert (some["questions"], some["accuracy"]["mean"]) == (2, 0.5)
    assert (some["states"], some["state_accuracy"]) == (0, None), "a part of a state is no whole one"
    assert scored([{"line": n, "prediction": texts[n - 1]} for n in (1, 2, 3, 4)])["states"] == 1


ROWS = bench_rows()


@pytest.fixture
def asker(world: Path, tmp_path: Path) -> Callable[..., Asker]:
    """Askers of the tiny model that all write to one folder; arguments are `EvalOptions`."""

    def make(**options: Any) -> Asker:
        model = str(world / "model")
        chosen = EvalOptions(**{"alpha": 0.5, "max_new_tokens": 6, "batch_size": 3, **options})
        config = resolve_options(model, chosen)
        return Asker(EvaluatedModel(model, config, join_processes(config.engine)), tmp_path / "answers")

    return make


def conversations(count: int = len(ROWS)) -> list[TaskItem]:
    wording = load_prompt_set("default")
    return [
        TaskItem(
            dataset=row.dataset,
            id=row.id,
            messages=wording.messages(row, "original"),
            imagined=wording.messages(row, "imagined"),
            group=row.format,
        )
        for row in ROWS[:count]
    ]


@pytest.mark.parametrize(("alpha", "without_context"), [(0.0, False), (0.5, False), (0.0, True)])
def test_answers_are_those_of_an_evaluation_with_the_same_prompts(
    world: Path, tmp_path: Path, asker: Callable[..., Asker], alpha: float, without_context: bool
) -> None:
    flags = ["--without-context"] if without_context else []
    where = ("--bench", world / "bench", "--out", tmp_path / "run", "--alpha", alpha, "--max-new-tokens", 6)
    assert d2e("eval", world / "model", *where, "--batch-size", 3, *flags) == 0
    file = "without_context.jsonl" if without_context else "predictions.jsonl"
    expected = [row.output for row in read_predictions(tmp_path / "run" / "eval" / "bench" / file)]
    outputs = asker(alpha=alpha, without_context=without_context).ask("answers", conversations())
    assert outputs == expected
    assert len(set(outputs)) > 1


def test_what_is_not_subtracted_does_not_matter(asker: Callable[..., Asker]) -> None:
    asker(alpha=0.0).ask("one", conversations())
    changed = [replace(chat, imagined=chat.messages) for chat in conversations()]
    assert asker(alpha=0.0).ask("one", changed)


def test_sampled_answers_depend_on_the_seed(asker: Callable[..., Asker]) -> None:
    ask = asker().ask
    first = ask("run-0", conversations(), temperature=1.0, seed=0)
    assert ask("run-1", conversations(), temperature=1.0, seed=1) != first
    assert ask("run-2", conversations(), temperature=1.0, seed=0) == first
    with pytest.raises(UserError, match="--seed: 0 → 5"):
        ask("run-0", conversations(), temperature=1.0, seed=5)


@pytest.mark.parametrize(("kind", "form"), [("llama", "chat"), ("t5", "chat"), ("llama", "completion")])
def test_the_likeliest_option_is_that_of_a_forward_pass(tmp_path: Path, kind: str, form: Form) -> None:
    folder = save_tiny_model(tmp_path / "model", kind, seed=5)
    options = EvalOptions(answer="likelihood", dtype="float32", batch_size=3, form=form)
    config = resolve_options(str(folder), options)
    chats = [replace(chat, options=("yes", "no way")) for chat in conversations(6)]
    own = Asker(EvaluatedModel(str(folder), config, join_processes(config.engine)), tmp_path / "answers")
    chosen = own.choose("answers", chats)
    loaded = load_model(str(folder), dtype="float32")
    model, tokenizer = loaded.model.eval(), loaded.tokenizer
    if form == "chat":
        prompts = ChatEncoder(tokenizer, encoder_decoder=kind == "t5").ids([chat.messages for chat in chats])
    else:
        texts = ["\n\n".join(turn["content"] for turn in chat.messages) + "\nAnswer:" for chat in chats]
        prompts = tokenizer(texts)["input_ids"]
    lines = read_json_lines(tmp_path / "answers" / "answers.jsonl")
    for prompt, said, (_, line) in zip(prompts, chosen, lines, strict=True):
        sums = []
        for option in ("yes", "no way"):
            # As the official script for T5 scores: the labels end with the end of the text, where there is a decoder.
            written = f" {option}" if form == "completion" else option
            labels = tokenizer(written, add_special_tokens=kind == "t5", return_tensors="pt").input_ids
            if kind == "t5":
                loss = model(input_ids=torch.tensor([prompt]), labels=labels).loss * labels.shape[1]
            else:
                both = torch.cat([torch.tensor([prompt]), labels], 1)
                target = both.clone()
                target[:, : len(prompt)] = -100
                loss = model(input_ids=both, labels=target).loss * labels.shape[1]
            sums.append(-loss.item())
        assert [option["logprob"] for option in line["likelihoods"]] == pytest.approx(sums, abs=1e-3)
        assert said == line["output"] == ("yes", "no way")[sums.index(max(sums))]
