"""Evaluation by a `D2ETrainer`: means over answer tokens, generated answers, and a few samples written down."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from transformers import EvalPrediction, Trainer
from transformers.integrations import TensorBoardCallback, is_deepspeed_zero3_enabled
from transformers.trainer_utils import IntervalStrategy, SaveStrategy, denumpify_detensorize

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.config.recipe import Recipe
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.decoding import answer_samples
from d2e_sft.objective.metrics import ObjectiveMetrics
from d2e_sft.train.checks import count_steps
from d2e_sft.train.config import D2EConfig
from d2e_sft.train.inputs import Inputs
from d2e_sft.train.run_folder import PREDICTIONS_FILE
from d2e_sft.train.samples import choose_samples
from d2e_sft.util.answers import exact_match, token_f1
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import write_whole
from d2e_sft.util.option_match import find_options, score_options
from d2e_sft.util.table import Table
from d2e_sft.util.terminal import quietly

Measure = Callable[[], dict[str, float]]  # values by name, without `eval_`


class ProcessBatches(Sampler[list[int]]):
    """One process's batches of row indices: every `processes`-th batch, equally many on each process.

    A process with fewer batches repeats one, since all must run the same number of forward passes (FSDP, ZeRO-3). The
    repeats come after its `own` batches and are not counted.
    """

    def __init__(self, rows: int, size: int, rank: int, processes: int) -> None:
        batches = [list(range(start, min(start + size, rows))) for start in range(0, rows, size)]
        mine = batches[rank::processes]
        self.own = len(mine)
        self.batches = [*mine, *[batches[0]] * (-(-len(batches) // processes) - len(mine))]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class HeldOutLoader(DataLoader[Any]):
    """Batches of held-out rows, with the samples of all rows; None if the rows were given as tokens."""

    samples: list[EventSample] | None = None


class _Texts(list[Any]):
    """What `compute_metrics` is given: a list, which numpy refuses to take for an array of logits or labels."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise UserError(
            "compute_metrics: it gets answers as texts, and the accepted answers of each row; there are no logits",
            "compare predictions[i], a text, with label_ids[i], a list of texts",
        )

    def __getattr__(self, name: str) -> Any:
        if name in ("argmax", "shape", "astype", "reshape", "size", "dtype"):
            self.__array__()
        raise AttributeError(name)


class EvaluatingTrainer(Trainer):
    """transformers' Trainer with evaluations of rows in several views.

    `predict(rows)` decodes the rows. Its `predictions` are the answers as text, in the rows' order. Its `label_ids`
    are the accepted answers of each row, and its metrics have `test_em` and `test_f1`, too. With `compute_metrics`,
    `evaluate` does the same, and the function gets both as an `EvalPrediction`. `decoding_alpha` and `max_new_tokens`
    of `D2EConfig` say how answers are decoded. `measures` are computed at each evaluation of the trainer's own rows.
    """

    inputs: Inputs
    recipe: Recipe
    record: Any  # RecordRun, None without training rows
    eval_dataset: Any
    control: Any

    def prepare_evaluations(self, term_weights: Mapping[str, float]) -> None:
        """Set up the sums of evaluations; `term_weights` are those of the objective."""
        self.measures: list[Measure] = []
        self.own_values = set[str]()
        self._new_sums = partial(ObjectiveMetrics, self.recipe.d2e, term_weights, self.args.device)
        self._held_out_sums: ObjectiveMetrics | None = None
        self._batches_left = 0
        self._began: tuple[float, float] | None = None  # the evaluation under way, by the clock and by CPU time
        self._evaluated = (0.0, 0.0)

    def when_to_evaluate(self, args: D2EConfig, probe: Any) -> IntervalStrategy:
        """When to evaluate; by default after each epoch if there is anything to evaluate on.

        That is expressed in steps: an epoch ends after its last checkpoint, so a resumed run would miss an evaluation.
        Without held-out rows `args.eval_strategy` becomes "no", since the Trainer would refuse to be built; the caller
        sets it once the Trainer is there. Raises UserError for a probe with training rows that are tokens, or without
        evaluations for arguments that need them.
        """
        inputs, nothing = self.inputs, self.inputs.eval_dataset is None and probe is None
        if probe is not None and inputs.training is None:
            raise UserError(
                "probe_dataset: it needs training rows with `question`, `answer` and `context`, and these are tokens",
                remedy="give train_dataset as such rows",
            )
        if args.evaluates_by_default and inputs.training is not None and not nothing:
            args.eval_strategy = IntervalStrategy.STEPS
            steps = count_steps(
                self.recipe, len(inputs.train_dataset), args.world_size, drop_last=args.dataloader_drop_last
            )
            args.eval_steps = steps.per_epoch
            if args.load_best_model_at_end:  # what is best must be saved
                args.save_strategy, args.save_steps = SaveStrategy.STEPS, args.eval_steps
        strategy = IntervalStrategy(args.eval_strategy)
        needing = [name for name in ("load_best_model_at_end", "early_stopping_patience") if getattr(args, name)]
        if needing and inputs.train_dataset is not None and (nothing or strategy == IntervalStrategy.NO):
            raise UserError(
                f"train.{needing[0]}={getattr(args, needing[0])} needs evaluations, and this training has none",
                remedy="give held-out rows as eval_dataset; for rows of tokens also set eval_steps",
            )
        if probe is not None and inputs.eval_dataset is None:
            args.eval_strategy = IntervalStrategy.NO
        return strategy

    @contextmanager
    def timed_evaluation(self) -> Iterator[None]:
        """Count the time inside as evaluation instead of training."""
        clock, cpu = self._began = time.perf_counter(), time.process_time()
        try:
            yield
        finally:  # a user's metrics may raise, and training may continue after that
            self._began, before = None, self._evaluated
            self._evaluated = (before[0] + time.perf_counter() - clock, before[1] + time.process_time() - cpu)

    def trained_seconds(self) -> tuple[float, float]:
        """Seconds without evaluations, by the clock and by CPU time of this process, since an arbitrary start."""
        clock, cpu = self._began or (time.perf_counter(), time.process_time())
        return clock - self._evaluated[0], cpu - self._evaluated[1]

    def get_eval_dataloader(self, eval_dataset: Any = None) -> HeldOutLoader:
        """This process's share of held-out rows, in order; rows that are not tokens yet are tokenised."""
        return self._loader(eval_dataset, "eval_dataset")

    def get_test_dataloader(self, test_dataset: Any) -> HeldOutLoader:
        """The same for the rows of `predict`, or for the name of a held-out set."""
        return self._loader(test_dataset, "test_dataset")

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Like transformers'; the probe is evaluated once, also without held-out rows or with several sets of them.

        Raises UserError, during training, if `metric_for_best_model` is not among the values.
        """
        if self._began is not None:  # one of several held-out sets
            return super().evaluate(*args, **options)
        probes = self.measures and not args and not options.get("eval_dataset")
        with self.timed_evaluation():
            metrics = {} if probes and self.eval_dataset is None else super().evaluate(*args, **options)
            if probes and (self.eval_dataset is None or isinstance(self.eval_dataset, dict)):
                probed = {f"eval_{name}": value for name, value in self._measured().items()}
                self.log(probed)
                self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, probed)
                metrics |= probed
        metric = self.args.metric_for_best_model
        if self.is_in_train and metric is not None and f"eval_{metric.removeprefix('eval_')}" not in metrics:
            known = [name.removeprefix("eval_") for name, value in metrics.items() if isinstance(value, int | float)]
            raise UserError(
                f"train.metric_for_best_model={metric}: an evaluation has no such value.{did_you_mean(metric, known)} "
                f"Expected one of {', '.join(known)}"
            )
        return metrics

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Like transformers', with means over answer tokens instead of over batches, and with generated answers."""
        predicting, only_loss = description == "Prediction" or self.compute_metrics, self.args.prediction_loss_only
        generates = predicting and not (prediction_loss_only or only_loss)
        samples: list[EventSample] | None = getattr(dataloader, "samples", None)
        if generates and samples is None:
            raise UserError(
                "predict and compute_metrics need rows with `question`, `answer` and `context`; these are tokens",
                remedy="give such rows, or leave compute_metrics out",
            )
        sampler, self._held_out_sums = dataloader.batch_sampler, self._new_sums()
        self._batches_left = sampler.own if isinstance(sampler, ProcessBatches) else len(dataloader)
        try:
            output = super().evaluation_loop(dataloader, description, True, ignore_keys, metric_key_prefix)
            means, _ = self._held_out_sums.compute(self.accelerator)
            values: dict[str, Any] = {"loss": self._held_out_sums.loss_of(means), **means}
        finally:
            self._held_out_sums = None
        of_trainer = metric_key_prefix == "eval" and dataloader.dataset is self.eval_dataset
        if samples and self.recipe.train.sample_predictions and not only_loss and (of_trainer or not generates):
            values |= self._sample_predictions(samples, keep=of_trainer and self.record is not None)
        if of_trainer:
            values |= self._measured()
        if generates and samples is not None:
            answers = self._answers(self.decode(samples, self.recipe.decoding), samples)
            values |= scores_of(*answers, samples) | self._own_metrics(*answers)
            output = output._replace(predictions=answers[0], label_ids=answers[1])
        start = f"{metric_key_prefix}_"
        output.metrics.update({start + name.removeprefix(start): value for name, value in values.items()})
        return output

    def count_held_out(self, sums: dict[str, Tensor], targets: Tensor, counts: Sequence[int]) -> None:
        """Count a micro-batch, unless it is a repeat that only keeps step with other processes."""
        if self._held_out_sums is not None and self._batches_left > 0:
            self._held_out_sums.update(sums, targets, counts)
            self._batches_left -= 1

    def decode(self, samples: Sequence[EventSample], decoding: DecodingConfig) -> list[str]:
        """Decode samples in the precision of training; one text per sample.

        Processes share the samples and exchange their texts. Under ZeRO-3 and FSDP each decodes all of them in step,
        since weights are gathered from all.
        """
        processes, rank, data = self.accelerator.num_processes, self.accelerator.process_index, self.recipe.data
        if self.is_fsdp_enabled or is_deepspeed_zero3_enabled():
            processes, rank = 1, 0
        wording = load_prompt_set(data.prompt_set, data.form)
        with self.compute_loss_context_manager(), quietly(self.args.disable_tqdm):
            mine = answer_samples(
                self.model,
                self.processing_class,
                samples[rank::processes],
                decoding,
                prompt_set=wording,
                max_length=data.max_length,
            )
        # ZeRO-3 keeps weights that it prefetched for a next token.
        getattr(self.model_wrapped, "empty_partition_cache", lambda: None)()
        if processes == 1:
            return mine
        texts = [""] * len(samples)
        for place, part in enumerate(gather_object([mine])):
            texts[place::processes] = part
        return texts

    def _measured(self) -> dict[str, float]:
        return {name: value for measure in self.measures for name, value in measure().items()}

    def _loader(self, rows: Any, name: str) -> HeldOutLoader:
        """Load rows, the trainer's own for None, or the set with this name."""
        sets = self.eval_dataset if isinstance(self.eval_dataset, dict) else {None: self.eval_dataset}
        key, d2e = None if rows is None or rows is self.eval_dataset else rows, self.recipe.d2e
        if isinstance(key, str | None) and sets.get(key) is not None:
            return self._loader_of(sets[key], self.inputs.samples.get(key))
        if key is None or (isinstance(key, str) and not Path(key).suffix):
            names = [set_name for set_name in sets if set_name]
            hint = f", or the name of a set in eval_dataset: {', '.join(names)}" if names else ""
            suggestion = did_you_mean(str(key), names) if key else ""
            raise UserError(f"{name}: got {key!r}; expected rows, or a file of them{hint}.{suggestion}")
        if d2e.needs_reference:
            raise UserError(
                f"{name}: d2e.prefer_reference={d2e.prefer_reference} is used before training, on the trainer's own "
                "rows only",
                remedy="give the trainer eval_dataset={'NAME': rows}, and call evaluate('NAME') or predict('NAME')",
            )
        encoded, tokens = self.inputs.encoded(rows, name)
        return self._loader_of(tokens, None if encoded is None else encoded.samples)

    def _loader_of(self, tokens: Any, samples: list[EventSample] | None) -> HeldOutLoader:
        rank, processes = self.accelerator.process_index, self.accelerator.num_processes
        batches = ProcessBatches(len(tokens), self.args.eval_batch_size, rank, processes)
        # Its own generator: without one an iteration draws from the global one, as dropout does.
        generator = torch.Generator()
        loader = HeldOutLoader(tokens, batch_sampler=batches, collate_fn=self.data_collator, generator=generator)
        loader.samples = samples
        return loader

    def _answers(self, texts: Sequence[str], samples: Sequence[EventSample]) -> tuple[list[str], list[list[str]]]:
        """Return the answers without the response form ("The answer is:"), and each sample's accepted answers."""
        wording = load_prompt_set(self.recipe.data.prompt_set, self.recipe.data.form)
        answers, references = [], []
        for text, sample in zip(texts, samples, strict=True):
            start, response = wording.answer_start(sample), wording.response(sample)
            form = response[:start].strip()
            answers.append((text.rpartition(form)[2] if form else text).strip())
            references.append(list(dict.fromkeys([response[start:], *sample.answers])))  # a choice has a letter, too
        return answers, references

    def _sample_predictions(self, samples: Sequence[EventSample], *, keep: bool) -> dict[str, float]:
        """Return `em` and `f1` of a few of the samples, the same at every evaluation.

        If they are kept, a row of RUN/_held_out_predictions.jsonl and of the trackers' tables has the step, the
        sample's keys, its first accepted answer, and the model's: `plain`, and `debiased` if it is decoded with α > 0.
        """
        train, decoding = self.recipe.train, self.recipe.decoding
        samples = choose_samples(samples, train.sample_predictions, train.seed)
        texts = {"debiased" if decoding.needs_imagined else "plain": self.decode(samples, decoding)}
        if keep and "plain" not in texts:
            texts = {"plain": self.decode(samples, replace(decoding, alpha=0.0)), **texts}
        if keep and self.state.is_world_process_zero:
            self._keep_predictions(samples, texts)
        return scores_of(*self._answers(list(texts.values())[-1], samples), samples)

    def _keep_predictions(self, samples: Sequence[EventSample], texts: Mapping[str, list[str]]) -> None:
        step, file = self.state.global_step, Path(self.args.output_dir) / PREDICTIONS_FILE
        keys = {"id", "dataset", "relation", "format", "question"}
        rows = [
            {
                "step": step,
                **sample.model_dump(include=keys),
                "answer": sample.answers[0],
                **{name: of_name[i] for name, of_name in texts.items()},
            }
            for i, sample in enumerate(samples)
        ]
        # Rows of this and later steps were written before a resumption. Not splitlines(): a text may contain a line
        # separator that JSON leaves as it is.
        before = file.read_text(encoding="utf-8").split("\n") if file.exists() else []
        kept = [line for line in before if line and json.loads(line)["step"] < step]
        lines = [*kept, *(json.dumps(row, ensure_ascii=False) for row in rows)]
        write_whole(file, "\n".join(lines) + "\n")
        self._log_table("held_out_predictions", rows)

    def _log_table(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """Send a table to wandb and trackio, and as Markdown to tensorboard, whose callbacks send none."""
        step, columns, values = self.state.global_step, list(rows[0]), [list(row.values()) for row in rows]
        for tracker in trackers_with_tables(self.args.report_to):
            tracker.log({name: tracker.Table(columns=columns, data=values), "train/global_step": step})
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, TensorBoardCallback) and callback.tb_writer is not None:
                callback.tb_writer.add_text(name, Table.of(columns, values).markdown(), step)

    def _own_metrics(self, texts: list[str], references: list[list[str]]) -> dict[str, Any]:
        if self.compute_metrics is None:
            return {}
        given = EvalPrediction(predictions=_Texts(texts), label_ids=_Texts(references))
        values: Any = self.compute_metrics(given)
        if not isinstance(values, Mapping):
            raise UserError(f"compute_metrics: returned a {type(values).__name__}; expected a dict, name → value")
        values = denumpify_detensorize(dict(values))
        self.own_values.update(values)
        return dict(values)


def scores_of(
    texts: Sequence[str], references: Sequence[list[str]], samples: Sequence[EventSample]
) -> dict[str, float]:
    """Return the mean exact match (`em`) and token-level F1 (`f1`), from 0 to 1.

    In rows with options the chosen options are compared, as in `d2e eval`.
    """
    scores = []
    for text, accepted, sample in zip(texts, references, samples, strict=True):
        if sample.options:
            chosen = find_options(text, sample.options, several=sample.format == "mcq")
            scores.append(score_options(chosen or (text,), sample.answers, sample.options))
        else:
            scores.append((exact_match(text, accepted), token_f1(text, accepted)))
    return {
        name: sum(values) / len(scores) for name, values in zip(("em", "f1"), zip(*scores, strict=True), strict=True)
    }


def trackers_with_tables(report_to: Sequence[str]) -> list[Any]:
    """Modules of the trackers that have tables and a configuration; both are used alike."""
    return [import_module(name) for name in ("wandb", "trackio") if name in report_to]
