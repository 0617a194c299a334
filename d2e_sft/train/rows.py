"""The rows that a recipe trains and is evaluated on: read, chosen, and encoded as token views."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tqdm import tqdm

from d2e_sft.config.recipe import Overlong, Recipe, View
from d2e_sft.data.bad_rows import BAD_ROWS_FILE, BadRow
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.rows import file_of
from d2e_sft.data.sample import EventSample, read_samples
from d2e_sft.data.views import EncodedSample, EncodedSamples, ViewEncoder, encode_samples
from d2e_sft.model.collation import Row
from d2e_sft.model.loading import LoadedModel
from d2e_sft.model.positions import check_positions
from d2e_sft.util.errors import UserError

if TYPE_CHECKING:  # training on tokens does without
    import datasets


@dataclass(frozen=True)
class TokenRows:
    """The samples of a file and what became of them as tokens."""

    in_file: int  # samples, before any were chosen
    encoded: EncodedSamples
    bad_rows: list[BadRow]  # of the file, which data.skip_bad skipped
    without_context: int  # of the chosen samples

    @property
    def samples(self) -> list[EventSample]:
        """Those that are trained on."""
        return self.encoded.samples

    @cached_property
    def dataset(self) -> datasets.Dataset:
        """Their tokens, as columns `answer`, `content`, one a view, `trained` and `weight` where some row has any."""
        several = any(item.trained for item in self.encoded.kept)
        weighted = any(item.weight != 1 for item in self.encoded.kept)
        import datasets

        return datasets.Dataset.from_list([dataset_row(item, several, weighted) for item in self.encoded.kept])


def read_rows(
    recipe: Recipe, split: Literal["training", "dev"], loaded: LoadedModel, *, progress: bool, refuse: bool = True
) -> TokenRows:
    """The recipe's rows of `data.train` or `data.dev` as token views.

    Args:
        loaded: the model that they are for, with its tokenizer.
        progress: show it.
        refuse: as for `encode_samples`.

    Raises:
        UserError: as `read_samples`, `encode_samples` and `check_positions`.
    """
    data, bad_rows = recipe.data, list[BadRow]()
    file, limit = (data.train, data.max_samples) if split == "training" else (data.dev, data.max_dev_samples)
    assert file is not None
    samples = read_samples(
        file_of(file, "train" if split == "training" else "dev"), bad_rows=bad_rows if data.skip_bad else None
    )
    rows = encode_rows(
        choose_samples(samples, limit, recipe.train.seed),
        loaded,
        views=recipe.d2e.views,
        prompt_set=data.prompt_set,
        max_length=data.max_length,
        overlong=data.overlong,
        name=file,
        refuse=refuse,
        progress=lambda rows: tqdm(rows, desc="tokenising", disable=not progress),
    )
    return replace(rows, in_file=len(samples), bad_rows=bad_rows)


def encode_rows(
    samples: Sequence[EventSample],
    loaded: LoadedModel,
    *,
    views: Sequence[View],
    prompt_set: str,
    max_length: int,
    overlong: Overlong,
    name: str,
    refuse: bool = True,
    progress: Callable[[Sequence[EventSample]], Any] = lambda samples: samples,
) -> TokenRows:
    """Samples as token views of a model.

    Args:
        name: of the rows, for messages; the others as for `encode_samples`.

    Raises:
        UserError: as `encode_samples` and `check_positions`.
    """
    config = loaded.model.config
    wording, encoder_decoder = load_prompt_set(prompt_set), config.is_encoder_decoder
    encoder = ViewEncoder(loaded.tokenizer, wording, views, encoder_decoder=encoder_decoder)
    try:
        encoded = encode_samples(
            samples, encoder, max_length=max_length, overlong=overlong, refuse=refuse, progress=progress
        )
    except UserError as error:
        raise UserError(f"{name}: {error.message}", error.remedy) from None
    check_positions(config, max(item.longest for item in encoded.kept))
    return TokenRows(len(samples), encoded, [], sum(not sample.context for sample in samples))


def announce_rows(recipe: Recipe, split: Literal["training", "dev"], rows: TokenRows) -> None:
    """Print how many rows of a file are used, and what became of the others."""
    limit, encoded = recipe.data.max_length, rows.encoded
    file = recipe.data.train if split == "training" else recipe.data.dev
    counts = {
        f"longer than {limit} tokens and dropped": len(encoded.dropped),
        f"longer than {limit} tokens, so their contexts were cut": len(encoded.truncated),
        f"bad rows skipped, kept in {Path(recipe.train.output_dir) / BAD_ROWS_FILE}": len(rows.bad_rows),
        "without a context, so that the imagined view is the original": rows.without_context,
    }
    print(f"{split} samples: {len(encoded.kept)} of {rows.in_file} in {file}", flush=True)
    for what, count in counts.items():
        if count:
            print(f"  {count} {what}", flush=True)
    weights = [item.weight for item in encoded.kept]
    if any(weight != 1 for weight in weights):
        mean = sum(weights) / len(weights)
        print(f"  weights from {min(weights):g} to {max(weights):g}, on average {mean:.4g}", flush=True)


def dataset_row(encoded: EncodedSample, with_trained: bool = False, with_weight: bool = False) -> Row:
    """One row of a training dataset: what the collators take."""
    row: Row = {str(view): prompt for view, prompt in encoded.prompts.items()}
    row |= {"answer": encoded.answer, "content": encoded.content}
    if with_trained:
        row["trained"] = encoded.trained or [True] * len(encoded.answer)
    if with_weight:
        row["weight"] = encoded.weight
    return row


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
