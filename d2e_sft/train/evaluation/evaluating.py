"""Evaluation by a `D2ETrainer`: means over answer tokens, and generated answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import EvalPrediction, Trainer
from transformers.trainer_utils import denumpify_detensorize

from d2e_sft.config.recipe import D2ESection
from d2e_sft.data.sample import EventSample
from d2e_sft.train.evaluation.answers import Answers
from d2e_sft.train.evaluation.held_out import HeldOut, HeldOutLoader, check_best_metric
from d2e_sft.train.samples import choose_samples
from d2e_sft.util.errors import UserError, did_you_mean


class EvaluatingTrainer(Trainer):
    """transformers' Trainer with evaluations of rows in several views.

    `predict(rows)` decodes the rows. Its `predictions` are the answers as text, in the rows' order. Its `label_ids`
    are the accepted answers of each row, and its metrics have `test_em` and `test_f1`, too. With `compute_metrics`,
    `evaluate` does the same, and the function gets both as an `EvalPrediction`. `decoding_alpha` and `max_new_tokens`
    of `D2EConfig` say how answers are decoded.
    """

    inputs: Any  # UserInputs
    d2e: D2ESection
    held_out: HeldOut
    eval_dataset: Any
    control: Any

    def get_eval_dataloader(self, eval_dataset: Any = None) -> HeldOutLoader:
        """This process's share of held-out rows, in order; rows that are not tokens yet are tokenised."""
        return self._loader(eval_dataset, "eval_dataset")

    def get_test_dataloader(self, test_dataset: Any) -> HeldOutLoader:
        """The same for the rows of `predict`, or for the name of a held-out set."""
        return self._loader(test_dataset, "test_dataset")

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Like transformers'; without held-out rows it evaluates the probe only.

        Raises UserError, during training, if `metric_for_best_model` is not among the values.
        """
        if self.held_out.began is not None:  # one of several held-out sets
            return super().evaluate(*args, **options)
        with self.held_out.timed():
            if self.eval_dataset is None and self.held_out.measures and not args and not options.get("eval_dataset"):
                metrics = {f"eval_{name}": value for name, value in self.held_out.measured().items()}
                self.log(metrics)
                self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
            else:
                metrics = super().evaluate(*args, **options)
        if self.is_in_train:
            check_best_metric(self.args.metric_for_best_model, metrics)
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
        wanted = description == "Prediction" or self.compute_metrics is not None
        generates = wanted and not (prediction_loss_only or self.args.prediction_loss_only)
        samples = _samples_of(dataloader) if generates else []
        with self.held_out.counting(dataloader):
            output = super().evaluation_loop(dataloader, description, True, ignore_keys, metric_key_prefix)
            values: dict[str, Any] = self.held_out.values(self.accelerator)
        answers = Answers.generated(self, samples) if generates else None
        if metric_key_prefix == "eval" and dataloader.dataset is self.eval_dataset:
            values |= self.held_out.measured()
        if not (generates or self.args.prediction_loss_only or "em" in values):
            values |= self._sampled_scores(dataloader)
        if answers is not None:
            values |= answers.scores() | self._own_metrics(answers)
            output = output._replace(predictions=answers.texts, label_ids=answers.references)
        start = f"{metric_key_prefix}_"
        output.metrics.update({start + name.removeprefix(start): value for name, value in values.items()})
        return output

    def _loader(self, rows: Any, name: str) -> HeldOutLoader:
        """Rows, the trainer's own for None, or the set with this name."""
        sets = self.eval_dataset if isinstance(self.eval_dataset, dict) else {None: self.eval_dataset}
        own, named = None if rows is None or rows is self.eval_dataset else rows, [one for one in sets if one]
        unknown = isinstance(own, str) and own not in sets and not Path(own).suffix
        if unknown or (own is None and sets.get(None) is None):
            other = f", or the name of a set in eval_dataset: {', '.join(named)}" if named else ""
            near = did_you_mean(str(own), named) if own else ""
            raise UserError(f"{name}: got {own!r}; expected rows, or a file of them{other}.{near}")
        if isinstance(own, str | None) and own in sets:
            found, samples = self.held_out.loader(sets[own], self), self.inputs.samples.get(own)
        elif self.d2e.needs_reference:
            raise UserError(
                f"{name}: d2e.prefer_reference={self.d2e.prefer_reference} is used before training, on the "
                "trainer's own rows only",
                remedy="give the trainer eval_dataset={'NAME': rows}, and call evaluate('NAME') or predict('NAME')",
            )
        else:
            encoded, tokens = self.inputs.encoded(rows, name)
            found, samples = self.held_out.loader(tokens, self), encoded and encoded.samples
        found.samples = samples
        return found

    def _sampled_scores(self, loader: HeldOutLoader) -> dict[str, float]:
        """`em` and `f1` of `sample_predictions` of the rows, if they are not tokens."""
        args, samples = self.args, loader.samples if isinstance(loader, HeldOutLoader) else None
        if not samples or not args.sample_predictions:
            return {}
        return Answers.generated(self, choose_samples(samples, args.sample_predictions, args.seed)).scores()

    def _own_metrics(self, answers: Answers) -> dict[str, Any]:
        """The values of the user's `compute_metrics`."""
        if self.compute_metrics is None:
            return {}
        try:
            values: Any = self.compute_metrics(EvalPrediction(predictions=answers.texts, label_ids=answers.references))
        except AttributeError as error:
            if not str(error).startswith("'list' object has no attribute"):
                raise
            raise UserError(
                f"compute_metrics: {error}; it gets answers as texts, and the accepted answers of each row",
                "compare predictions[i], a text, with label_ids[i], a list of texts; there are no logits",
            ) from error
        if not isinstance(values, Mapping):
            raise UserError(f"compute_metrics: returned a {type(values).__name__}; expected a dict, name → value")
        found: dict[str, Any] = denumpify_detensorize(dict(values))
        self.held_out.own.update(found)
        return found


def _samples_of(loader: HeldOutLoader) -> list[EventSample]:
    """The samples to decode; UserError if the rows were given as tokens."""
    if loader.samples is None:
        raise UserError(
            "predict and compute_metrics need rows with `question`, `answer` and `context`; these are tokens",
            remedy="give such rows, or leave compute_metrics out",
        )
    return loader.samples
