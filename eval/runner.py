"""Decode a benchmark with a model, score it, and keep both the predictions and the scores.

A run folder says itself how it wants to be decoded: its recipe gives α and the prompt set, which an option can
override. Anything else (a Hub name, a plain checkpoint) is decoded with α = 0 unless told otherwise.
"""

from __future__ import annotations

import json
import platform
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from tqdm import tqdm

import d2e_sft
from d2e_sft.decoding import decode_prompts, stop_token_ids
from d2e_sft.errors import UserError
from d2e_sft.files import sha256_of
from d2e_sft.loading import LoadedModel, load_model
from d2e_sft.prompts import PromptSet, load_prompt_set
from d2e_sft.recipe import RECIPE_FILE, EvalSection, ModelSection, Recipe, View, load_recipe
from d2e_sft.sample import BAD_ROWS_FILE, BadRow, EventSample, read_samples, write_bad_rows
from d2e_sft.views import ViewEncoder, pad_id
from eval.predictions import write_predictions
from eval.scores import score_predictions
from eval.scoring import score_output


@dataclass(frozen=True)
class EvalOptions:
    """How to decode and score; None means: as the run's recipe says, else the default of `EvalSection`.

    Attributes:
        max_samples: at most so many samples of each dataset × relation × format, drawn with `seed`.
    """

    alpha: float | None = None
    prompt_set: str | None = None
    batch_size: int | None = None
    max_new_tokens: int | None = None
    max_samples: int | None = None
    seed: int = 0
    skip_bad: bool = False

    def with_defaults_of(self, recipe: Recipe | None) -> EvalOptions:
        """The options with every None replaced, `max_samples` aside, which may stay None: all samples."""
        own = EvalSection() if recipe is None else recipe.eval
        trained = own.alpha if own.alpha is not None else recipe.d2e.effective_alpha if recipe is not None else 0.0
        return replace(
            self,
            alpha=trained if self.alpha is None else self.alpha,
            prompt_set=self.prompt_set or (recipe.data.prompt_set if recipe is not None else "default"),
            batch_size=self.batch_size or own.batch_size,
            max_new_tokens=self.max_new_tokens or own.max_new_tokens,
            max_samples=self.max_samples or own.max_samples,
        )


def evaluate_model(model: str, bench: str | Path, *, run: Path, options: EvalOptions) -> dict[str, Any]:
    """Decode and score a benchmark; writes `run/eval/<bench>/{predictions.jsonl,scores.json}`.

    Args:
        model: a run folder, one of its checkpoints, another checkpoint folder, a Hub name or `builtin:…`.
        bench: a folder that `d2e data build` wrote (its test rows are used), or one file of EventSample rows.
        run: the run folder that keeps the results.

    Returns:
        the content of `scores.json`.

    Raises:
        UserError: no such model or benchmark, bad rows, or a prompt that exceeds the model's context.
    """
    recipe = recipe_of(model)
    options = options.with_defaults_of(recipe)
    name, file = locate_bench(bench)
    bad_rows: list[BadRow] = []
    samples = read_samples(file, bad_rows=bad_rows if options.skip_bad else None)
    chosen = choose_per_group(samples, options.max_samples, options.seed)
    assert options.prompt_set is not None
    prompt_set = load_prompt_set(options.prompt_set)
    section = recipe.model if recipe is not None else ModelSection()
    loaded = load_model(model, dtype=section.dtype, attention=section.attention)
    target = run / "eval" / name
    target.mkdir(parents=True, exist_ok=True)  # before the work, so that a folder that cannot be made costs none
    write_bad_rows(bad_rows, target / BAD_ROWS_FILE)
    started = time.perf_counter()
    outputs = decode_samples(loaded, chosen, prompt_set, options)
    seconds = time.perf_counter() - started
    predictions = [
        score_output(sample, text, prompt_set.marker(sample.format))
        for sample, text in zip(chosen, outputs, strict=True)
    ]
    scores = {
        "model": model,
        "alpha": options.alpha,
        "prompt_set": prompt_set.name,
        "max_new_tokens": options.max_new_tokens,
        "bench": {"name": name, "file": str(file), "sha256": sha256_of(file)},
        "subset": None
        if len(chosen) == len(samples)
        else {"per_group": options.max_samples, "seed": options.seed, "of": len(samples)},
        "bad_rows": len(bad_rows),
        "seconds": round(seconds, 2),
        "environment": _environment(loaded),
        **score_predictions(predictions, seed=options.seed),
    }
    write_predictions(predictions, target / "predictions.jsonl")
    (target / "scores.json").write_text(json.dumps(scores, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return scores


def recipe_of(model: str) -> Recipe | None:
    """The recipe that a run folder, or one of its `checkpoint-N` folders, was trained with; None for other models."""
    folder = Path(model)
    holders = [folder, folder.parent] if folder.name.startswith("checkpoint-") else [folder]
    files = [holder / RECIPE_FILE for holder in holders]
    return next((load_recipe(file) for file in files if file.is_file()), None)


def locate_bench(bench: str | Path) -> tuple[str, Path]:
    """The name and the file of a benchmark given as a folder or a file.

    Raises:
        UserError: there is no such file, or no `test.parquet` in the folder.
    """
    path = Path(bench)
    if path.is_dir():
        for ending in ("parquet", "jsonl"):
            if (path / f"test.{ending}").is_file():
                return path.resolve().name, path / f"test.{ending}"
        raise UserError(
            f"{path}: holds neither test.parquet nor test.jsonl",
            "build it with `d2e data build … --out " + str(path) + "`",
        )
    if not path.is_file():
        raise UserError(
            f"benchmark {str(bench)!r}: no such file or folder", "give a folder written by `d2e data build`"
        )
    return f"{path.resolve().parent.name}-{path.stem}", path


def choose_per_group(samples: Sequence[EventSample], limit: int | None, seed: int) -> list[EventSample]:
    """At most `limit` samples of each dataset × relation × format, drawn with a seed, in file order."""
    if limit is None:
        return list(samples)
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for i, sample in enumerate(samples):
        groups[sample.dataset, sample.relation, sample.format].append(i)
    generator = random.Random(seed)
    chosen = [i for indices in groups.values() for i in generator.sample(indices, min(limit, len(indices)))]
    return [samples[i] for i in sorted(chosen)]


def decode_samples(
    loaded: LoadedModel, samples: Sequence[EventSample], prompt_set: PromptSet, options: EvalOptions
) -> list[str]:
    """The text that the model generates for each sample, with a progress bar."""
    model, tokenizer = loaded.model, loaded.tokenizer
    alpha = options.alpha or 0.0
    views: tuple[View, ...] = ("original", "imagined") if alpha > 0 else ("original",)
    encoder = ViewEncoder(tokenizer, prompt_set, views, encoder_decoder=model.config.is_encoder_decoder)
    prompts = {view: [encoder.prompt_ids(sample, view) for sample in samples] for view in views}
    assert options.max_new_tokens is not None
    assert options.batch_size is not None
    _check_lengths(model, samples, prompts["original"], options.max_new_tokens)
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    with tqdm(total=len(samples), desc=f"decoding (α={alpha:g})", unit="sample") as bar:
        answers = decode_prompts(
            model,
            prompts["original"],
            prompts.get("imagined"),
            batch_size=options.batch_size,
            on_batch=lambda indices, _: bar.update(len(indices)),
            alpha=alpha,
            max_new_tokens=options.max_new_tokens,
            stop_ids=stop_token_ids(model, encoder.end_of_turn),
            pad_id=pad_id(tokenizer),
        )
    return [tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]


def _check_lengths(model: Any, samples: Sequence[EventSample], prompts: list[list[int]], new_tokens: int) -> None:
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is None:
        return
    longest = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    if len(prompts[longest]) + new_tokens > limit:
        count = sum(len(prompt) + new_tokens > limit for prompt in prompts)
        raise UserError(
            f"{count} of {len(samples)} samples exceed the model's {limit} positions (the longest, "
            f"{samples[longest].id!r}, has {len(prompts[longest])} prompt tokens, plus {new_tokens} new ones)",
            "lower --max-new-tokens, shorten the contexts, or use a model with a longer context",
        )


def _environment(loaded: LoadedModel) -> dict[str, Any]:
    device = next(loaded.model.parameters()).device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "d2e_sft": d2e_sft.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": f"{device.type} ({name})",
        "threads": torch.get_num_threads(),
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
    }
