"""Training and held-out rows as token views, under a length rule: which fit, which are cut, and which are dropped."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from d2e_sft.config.objectives import View, is_own
from d2e_sft.config.recipe import Overlong, Recipe
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import BadRow, EventSample, RejectedFrom
from d2e_sft.data.views import EncodedSample, ViewEncoder
from d2e_sft.model.collation import Row
from d2e_sft.model.loading import LoadedModel, check_positions
from d2e_sft.train.run_folder import SKIPPED_FILE
from d2e_sft.train.samples import Balance, ReadSamples, Split, read_split
from d2e_sft.util.errors import UserError
from d2e_sft.util.progress import Progress
from d2e_sft.util.terminal import warn


@dataclass
class TokenRows:
    """Samples and their tokens, after a length rule; `whole` are all samples, encoded without the rule.

    `in_file` counts the samples of the file, before any were chosen.
    """

    kept: list[EncodedSample] = field(default_factory=list)
    samples: list[EventSample] = field(default_factory=list)
    dropped: list[EventSample] = field(default_factory=list)
    truncated: list[EventSample] = field(default_factory=list)
    whole: list[EncodedSample] = field(default_factory=list)
    in_file: int = 0
    bad_rows: list[BadRow] = field(default_factory=list)

    @cached_property
    def dataset(self) -> list[Row]:
        """Return tokens: one list per view, `answer`, `content`, and `trained` if some row has it; and the `subset`.

        `context` is the number of its context in its format, or 0 without one.
        """
        has_masks = any(item.trained or item.rejected_trained for item in self.kept)
        rows, numbers = list[Row](), dict[tuple[str, str], int]()
        for sample, item in zip(self.samples, self.kept, strict=True):
            key = (sample.format, sample.context)
            number = numbers.setdefault(key, len(numbers) + 1) if sample.context else 0
            rows.append({**dataset_row(item, has_masks), "context": number, "subset": sample.subset})
        return rows


def encode_samples(
    samples: Sequence[EventSample],
    encoder: ViewEncoder,
    *,
    max_length: int,
    overlong: Overlong = "error",
    refuse: bool = True,
    progress: Callable[[Sequence[EventSample]], Any] = lambda samples: samples,
) -> TokenRows:
    """Encode samples under a length rule; answers are never cut. UserError for those too long, or if none is left.

    Args:
        max_length: Tokens of the longest view, answer included.
        overlong: `error`, `drop`, or `truncate_context` (cut the end of the context).
        refuse: False puts samples that are too long into `dropped`, whatever the rule.
        progress: Wraps the iteration, for a progress bar.
    """
    result = TokenRows(in_file=len(samples))
    longest = 0
    for sample in progress(samples):
        encoded = encoder.encode(sample)
        result.whole.append(encoded)
        if encoded.longest > max_length and overlong == "truncate_context":
            encoded = encoder.encode(sample, max_length=max_length)
            result.truncated.append(sample)
        if encoded.longest <= max_length:
            result.kept.append(encoded)
            result.samples.append(sample)
        else:
            result.dropped.append(sample)
            longest = max(longest, encoded.longest)
    too_long = result.dropped
    if too_long and overlong != "drop" and refuse:
        condition = "even without context" if overlong == "truncate_context" else "in their longest view"
        raise UserError(
            f"{len(too_long)} of {len(samples)} samples exceed data.max_length={max_length} tokens {condition} "
            f"(the longest has {longest}; the first is {too_long[0].id!r} of {too_long[0].dataset!r})",
            remedy=f"raise data.max_length to {longest}, or set data.overlong=drop or data.overlong=truncate_context",
        )
    if not result.kept:
        raise UserError(
            f"all {len(samples)} samples exceed data.max_length={max_length} tokens; nothing is left",
            remedy=f"raise data.max_length; the longest has {longest} tokens",
        )
    return result


def read_rows(
    recipe: Recipe,
    split: Split,
    loaded: LoadedModel,
    *,
    progress: bool,
    refuse: bool = True,
    read: ReadSamples | None = None,
) -> TokenRows:
    """Return the recipe's rows of `data.train` or `data.dev` as token views; `read` are those already read."""
    data = recipe.data
    file = data.train if split == "training" else str(data.dev)
    if split == "dev" and progress and Path(file).resolve() == Path(data.train).resolve():
        warn(f"data.dev={file} is also data.train, so nothing is held out")
    read = read or read_split(recipe, split)
    rows = encode_rows(read.chosen, loaded, recipe, name=file, refuse=refuse, progress=progress)
    rows.in_file, rows.bad_rows = read.in_file, read.bad_rows
    return rows


def encode_rows(
    samples: Sequence[EventSample],
    loaded: LoadedModel,
    recipe: Recipe,
    *,
    name: str,
    refuse: bool = True,
    progress: bool = True,
) -> TokenRows:
    """Encode samples as token views of a model; the recipe has the views, the wording and the length rule.

    `name` is that of the rows in error messages; for `refuse` see `encode_samples`.
    """
    config, data = loaded.model.config, recipe.data
    wording, encoder_decoder = load_prompt_set(data.prompt_set, data.form), config.is_encoder_decoder
    encoder = ViewEncoder(
        loaded.tokenizer, wording, recipe.d2e.views, encoder_decoder=encoder_decoder, ends=data.end_of_turn
    )
    encoder.prefers = recipe.d2e.prefers
    try:
        rows = encode_samples(
            samples,
            encoder,
            max_length=data.max_length,
            overlong=data.overlong,
            refuse=refuse,
            progress=lambda items: Progress(items, desc="tokenising", unit="sample", disable=not progress),
        )
    except UserError as error:
        raise UserError(f"{name}: {error.message}", error.remedy) from None
    check_positions(config, max(item.longest for item in rows.kept))
    return rows


def describe_rows(recipe: Recipe, split: Split, rows: TokenRows) -> list[str]:
    """Lines that say how many rows of a file are used, and why others are not."""
    data, without_context = recipe.data, [row for row in rows.samples if not row.context]
    none = "without a context, so that the imagined view is the original"
    if data.without_context:
        none = "whose contexts are left out (data.without_context)"
    counts = {
        f"longer than {data.max_length} tokens{' and dropped' * (data.overlong == 'drop')}": len(rows.dropped),
        f"longer than {data.max_length} tokens, so their contexts are cut": len(rows.truncated),
        f"bad rows skipped, kept in {Path(recipe.train.output_dir) / SKIPPED_FILE}": len(rows.bad_rows),
        none: len(without_context),
    }
    file, limit, key = data.train, data.max_samples, "data.max_samples"
    if split == "dev":
        file, limit, key = str(data.dev), data.max_dev_samples, "data.max_dev_samples"
    cap = f" ({key}={limit})" if len(rows.whole) < rows.in_file else ""
    lines = [f"{split} samples: {len(rows.kept)} of {rows.in_file} in {file}{cap}"]
    subsets = ({"subset": sample.subset} for sample in rows.samples)
    if split == "training" and (balance := Balance.of(data.balance, subsets)) is not None:
        lines.append(f"  {balance.describe()}")
    lines += _unrefined_lines([item.prompts for item in rows.kept], custom=is_own(recipe.d2e.objective))
    lines += [f"  {count} {reason}" for reason, count in counts.items() if count]
    return lines + _pair_lines(recipe, rows)


def warn_without_contexts(recipe: Recipe, samples: Iterable[EventSample]) -> None:
    """Warn if the objective subtracts the view without the context, and no training row has a context."""
    objective = recipe.d2e.objective
    subtracts = "imagined" in recipe.d2e.views and not is_own(objective)
    if subtracts and not any(sample.context for sample in samples):
        warn(
            f"no training row has a context, so the objective {objective} has nothing to subtract; give rows a "
            "context (in messages, between <context> and </context>), or train with d2e.objective=sft"
        )


def _pair_lines(recipe: Recipe, rows: TokenRows) -> list[str]:
    """Say how many rows have a rejected answer and from where, and how the others are trained."""
    if not recipe.d2e.prefers:
        return []
    words: dict[RejectedFrom, str] = {
        "rejected": "the column rejected",
        "habit": "the habit",
        "swap": "the answer before the swap",
    }
    by_source = Counter(sample.rejected_answers[0] for sample in rows.samples if sample.rejected_answers)
    count, weight = len(rows.samples) - by_source.total(), recipe.d2e.sft_weight
    sources = ", ".join(f"{by_source[name]} {text}" for name, text in words.items() if by_source[name])
    lines = [f"  pairs: {by_source.total()}; the rejected answer is {sources or 'missing everywhere'}"]
    effect = f"trained by the cross entropy only (d2e.sft_weight={weight:g})" if weight else "with no effect"
    return [*lines, f"  {count} without a rejected answer, {effect}"] if count else lines


def _unrefined_lines(prompts: Sequence[Mapping[View, list[int]]], *, custom: bool) -> list[str]:
    """Say in which share of the rows the refined view is the original one, if there are such rows."""
    equal = sum(views.get("refined") == views["original"] for views in prompts)
    if not equal:
        return []
    share, effect = f"{100 * equal / len(prompts):.0f} % of the rows", "" if custom else ": the KL term is 0 there"
    return [f"  refined = original in {share} ({equal:,} of {len(prompts):,}){effect}"]


def with_column(rows: Any, name: str, values: Sequence[Any]) -> Any:
    """Return the rows, a dataset or a list, with one more column."""
    if hasattr(rows, "add_column"):  # a datasets.Dataset
        return rows.add_column(name, list(values))
    return [{**row, name: value} for row, value in zip(rows, values, strict=True)]


def check_pairs(rows: Iterable[Row]) -> None:
    """UserError if none of the training rows, as tokens, has a rejected answer."""
    if not any(row.get("rejected") for row in rows):
        raise UserError(
            "d2e.objective=prefer: no training row has a rejected answer; expected a column `rejected`, a habit that "
            "is wrong, or swapped rows",
            "write `rejected`, tag habits (d2e data tag), build with --swap, or train with d2e.objective=sft",
        )


def dataset_row(encoded: EncodedSample, with_trained: bool = False) -> Row:
    """One row of a training dataset, as collators take it."""
    row: Row = {str(view): prompt for view, prompt in encoded.prompts.items()}
    row |= {"answer": encoded.answer, "content": encoded.content}
    if with_trained:
        row["trained"] = encoded.trained or [True] * len(encoded.answer)
    if encoded.rejected is not None:
        row["rejected"] = encoded.rejected
        if with_trained:
            row["rejected_trained"] = encoded.rejected_trained or [True] * len(encoded.rejected)
    return row
