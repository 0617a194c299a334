"""The rows that a recipe trains on: read, chosen, and encoded as token views."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from tqdm import tqdm

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import BAD_ROWS_FILE, BadRow, EventSample, check_readable, read_samples
from d2e_sft.data.views import EncodedSample, ViewEncoder, encode_samples
from d2e_sft.model.collation import Row
from d2e_sft.util.errors import UserError


@dataclass(frozen=True)
class TokenRows:
    """Samples and, as columns `answer` and one a view, their tokens."""

    samples: list[EventSample]
    dataset: datasets.Dataset


def check_files(recipe: Recipe) -> None:
    """See that the recipe's files are there, which is quicker than loading a model first.

    Raises:
        UserError: one is missing, or a folder.
    """
    for file in (recipe.data.train, recipe.data.dev):
        if file is not None:
            check_readable(Path(file))


def training_rows(
    recipe: Recipe, tokenizer: Any, bad_rows: list[BadRow], *, encoder_decoder: bool = False, main: bool = True
) -> TokenRows:
    """The recipe's training rows as token views.

    Args:
        bad_rows: takes the rows that `data.skip_bad` skips.
        encoder_decoder: the model is one, see `ViewEncoder`.
        main: show progress and counts.

    Raises:
        UserError: as `read_samples` and `encode_samples`.
    """
    data = recipe.data
    return _token_rows("training", data.train, data.max_samples, recipe, tokenizer, bad_rows, encoder_decoder, main)


def held_out_rows(
    recipe: Recipe, tokenizer: Any, bad_rows: list[BadRow], *, encoder_decoder: bool = False, main: bool = True
) -> TokenRows | None:
    """The rows of `data.dev`, as `training_rows`; None where the recipe names none."""
    data = recipe.data
    if data.dev is None:
        return None
    if main and Path(data.dev).resolve() == Path(data.train).resolve():
        print(f"warning: data.dev={data.dev} is what is trained on, so nothing is held out", file=sys.stderr)
    return _token_rows("dev", data.dev, data.max_dev_samples, recipe, tokenizer, bad_rows, encoder_decoder, main)


def _token_rows(
    kind: str,
    file: str,
    limit: int | None,
    recipe: Recipe,
    tokenizer: Any,
    bad_rows: list[BadRow],
    encoder_decoder: bool,
    main: bool,
) -> TokenRows:
    data, bad_before = recipe.data, len(bad_rows)
    samples = read_samples(file, bad_rows=bad_rows if data.skip_bad else None)
    chosen = choose_samples(samples, limit, recipe.train.seed)
    encoder = ViewEncoder(
        tokenizer, load_prompt_set(data.prompt_set), recipe.d2e.views, encoder_decoder=encoder_decoder
    )
    try:
        result = encode_samples(
            chosen,
            encoder,
            max_length=data.max_length,
            overlong=data.overlong,
            progress=lambda rows: tqdm(rows, desc="tokenising", disable=not main),
        )
    except UserError as error:
        raise UserError(f"{file}: {error.message}", error.remedy) from None
    if main:
        counts = {
            f"longer than {data.max_length} tokens and dropped": len(result.dropped),
            f"longer than {data.max_length} tokens, so their contexts were cut": len(result.truncated),
            f"bad rows skipped, kept in {Path(recipe.train.output_dir) / BAD_ROWS_FILE}": len(bad_rows) - bad_before,
            "without a context, so that the imagined view is the original": sum(not s.context for s in chosen),
        }
        print(f"{kind} samples: {len(result.kept)} of {len(samples)} in {file}", flush=True)
        for what, count in counts.items():
            if count:
                print(f"  {count} {what}", flush=True)
    return TokenRows(result.samples, datasets.Dataset.from_list([dataset_row(item) for item in result.kept]))


def dataset_row(encoded: EncodedSample) -> Row:
    """One row of a training dataset: what the collators take."""
    return {**{str(view): prompt for view, prompt in encoded.prompts.items()}, "answer": encoded.answer}


def choose_samples(samples: Sequence[EventSample], limit: int | None, seed: int) -> list[EventSample]:
    """At most `limit` samples, the same number from each dataset where they have enough; seeded, in file order."""
    if limit is None or limit >= len(samples):
        return list(samples)
    groups: dict[str, list[int]] = defaultdict(list)
    for i, sample in enumerate(samples):
        groups[sample.dataset].append(i)
    generator = random.Random(seed)
    for indices in groups.values():
        generator.shuffle(indices)
    chosen: list[int] = []
    # Round by round, so that a short dataset's share goes to the others.
    while len(chosen) < limit:
        for indices in groups.values():
            if indices and len(chosen) < limit:
                chosen.append(indices.pop())
    return [samples[i] for i in sorted(chosen)]
