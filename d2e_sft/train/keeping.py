"""What a `D2ETrainer` keeps: a run folder, whole models, and checkpoints that are checked before they are used."""

import math
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub.constants import ENDPOINT
from huggingface_hub.errors import HTTPError
from transformers import EarlyStoppingCallback, TrainerState
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.trainer_utils import TrainOutput

from d2e_sft.config.recipe import RECIPE_FILE
from d2e_sft.data.data_record import check_resumed_data, tokens_digest, trained_wording
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.model.storage.seal import SEAL_FILE, check_seal
from d2e_sft.train.checkpoints import (
    check_states,
    explaining_full_disk,
    other_models,
    remove_leftovers,
    save_model_whole,
)
from d2e_sft.train.evaluation import EvaluatingTrainer
from d2e_sft.train.run_folder import (
    TRAINER_STATE,
    check_resumable,
    clear_run,
    contains_run,
    is_complete,
    refuse_run,
    refuse_to_clear,
    resuming_point,
)
from d2e_sft.train.safeguards import StepGuard
from d2e_sft.util.errors import UserError
from d2e_sft.util.startup import bars_if_slow, without_notes
from d2e_sft.util.terminal import say, warn

_CARD = "README.md"


class KeepingTrainer(EvaluatingTrainer):
    """transformers' Trainer with a run folder in which a kill leaves whole models and checkpoints only."""

    guard: StepGuard
    model_name: str
    is_fsdp_enabled: bool
    finished = False  # the last call of `train` found a finished run, and loaded it
    depends_on = cached_property(other_models)  # computed at the first step, before the models can change

    @cached_property
    def tokens_sha256(self) -> str:
        return tokens_digest(self.inputs.train_dataset)

    def prepare_folder(self, resume: str | bool | None) -> str | None:
        """Check that a training may start in its folder, or clear it; return the checkpoint to resume from.

        It is the run folder itself if the run is finished, which then stays as it is. Raises UserError if a run is
        neither continued nor cleared, or the checkpoint is damaged or another run's.
        """
        run = Path(self.args.output_dir)
        source = run if resume is True or not resume else Path(resume).parent
        size, processes = len(self.inputs.train_dataset or ()), self.args.world_size
        if resume is True and self.record is not None and is_complete(self.recipe):
            check_resumed_data(self.recipe, size, self.tokens_sha256, processes=processes, run=run)
            check_seal(run)
            say(f"{run}: is finished; nothing is left to train")
            return str(run)
        if resume and source.resolve() == run.resolve():
            pass  # continued
        elif self.args.overwrite_output_dir and (contains_run(run) or (run / RECIPE_FILE).is_file()):
            refuse_to_clear(self.model_name, None if self.record is None else self.record.train_file, run)
            clear_run(run)
        else:
            refuse_run(run)
        remove_leftovers(run)
        if not resume:
            return None
        if self.record is not None and (resume is True or (source / RECIPE_FILE).is_file()):
            longer = check_resumable(self.recipe, source)
            for change in longer:
                warn(f"{change}: from here on the learning rate follows the schedule of the longer training")
            check_resumed_data(self.recipe, size, self.tokens_sha256, processes=processes, run=source)
            if longer:  # if it is killed, it is not finished
                (run / TRAINER_STATE).unlink(missing_ok=True)
        if resume is True:
            if (checkpoint := resuming_point(run)) is None:
                say(f"{run} has no complete checkpoint: training starts from the beginning", err=True)
            return None if checkpoint is None else str(checkpoint)
        if not Path(resume).is_dir():
            raise UserError(
                f"resume_from_checkpoint={resume!r}: no such folder; expected a checkpoint-N",
                remedy="True takes the last whole checkpoint of output_dir",
            )
        if (Path(resume) / SEAL_FILE).is_file():
            check_seal(Path(resume))
        check_states(Path(resume))
        return str(resume)

    def load_finished(self) -> TrainOutput:
        """Load the weights and the log of a finished run; return what its training returned."""
        run = self.args.output_dir
        whole: AbstractContextManager[Any] = nullcontext()
        if is_deepspeed_zero3_enabled():
            import deepspeed

            whole = deepspeed.zero.GatheredParameters([*self.model.parameters()], modifier_rank=0)
        shards, self.is_fsdp_enabled = self.is_fsdp_enabled, False  # only a training shards the model
        with whole:
            self._load_from_checkpoint(run)
        self.is_fsdp_enabled = shards
        self.state = TrainerState.load_from_json(f"{run}/{TRAINER_STATE}")
        self.state.is_local_process_zero = self.is_local_process_zero()
        self.state.is_world_process_zero = self.is_world_process_zero()
        metrics = next((dict(entry) for entry in reversed(self.state.log_history) if "train_loss" in entry), {})
        return TrainOutput(self.state.global_step, metrics.get("train_loss", math.nan), metrics)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write model and tokenizer so that a kill leaves either a whole model or none; raises like `train`."""
        if _internal_call:  # a part of a checkpoint, which is checked and sealed as a whole
            super().save_model(output_dir, _internal_call=True)
            return
        write, target, run = super().save_model, Path(output_dir or self.args.output_dir), Path(self.args.output_dir)
        if self.finished and target == run and (self.is_deepspeed_enabled or self.is_fsdp_enabled):
            return  # they save what a training has wrapped; the folder has this model
        self.guard.check_weights()
        with explaining_full_disk(self, target), bars_if_slow(shown=not self.args.disable_tqdm):
            save_model_whole(self, target, lambda folder: write(folder, _internal_call=True))

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        """Create the repository to push to, as transformers does; UserError if the Hub refuses or is out of reach."""
        from d2e_sft.hub.client import hub_errors

        with hub_errors(f"push_to_hub={self.args.hub_model_id or self.args.output_dir}", ENDPOINT):
            super().init_hf_repo(*args, **kwargs)

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Upload the run folder, as transformers does; raises like `init_hf_repo`."""
        from d2e_sft.hub.client import hub_errors

        try:
            return super().push_to_hub(*args, **kwargs)
        except HTTPError:  # not every RuntimeError, which may come from gathering the model
            with hub_errors(f"push_to_hub={self.hub_model_id}", ENDPOINT):
                raise

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the card of `d2e export`, in the place of the drafts of transformers and peft."""
        if self.is_world_process_zero():
            from d2e_sft.hub.card import PLACEHOLDER, model_card

            run, recipe, is_adapter = Path(self.args.output_dir), self.recipe, hasattr(self.model, "peft_config")
            wording = load_prompt_set(trained_wording(str(run), recipe.data.prompt_set), recipe.data.form)
            card = model_card(run, recipe, wording, adapter=is_adapter, licence=kwargs.get("license"))
            card = card.replace(PLACEHOLDER, self.hub_model_id or PLACEHOLDER)
            (run / _CARD).write_text(card, encoding="utf-8")

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        is_best = super()._determine_best_metric(metrics, trial)
        # A best model is saved at once: `save_steps` may be larger than `eval_steps`.
        self.control.should_save |= is_best and self.args.load_best_model_at_end
        return bool(is_best)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # A head that is tied to the embeddings is stored once, as them.
        tied = getattr(self.model, "all_tied_weights_keys", {})
        load_result.missing_keys[:] = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        # FSDP2 gathers a head that is tied to the embeddings once more.
        for name, source in getattr(self.model, "all_tied_weights_keys", {}).items():
            if state_dict and source in state_dict:
                state_dict.pop(name, None)
        card = Path(output_dir or self.args.output_dir) / _CARD
        has_card = card.exists()
        with without_notes():
            super()._save(output_dir, state_dict)
        if not has_card:
            card.unlink(missing_ok=True)  # peft's draft

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # The Trainer checks max_steps only after a step: a resumed run that had ended would take one more.
        stopped_early = any(
            callback.early_stopping_patience_counter >= callback.early_stopping_patience
            for callback in self.callback_handler.callbacks
            if isinstance(callback, EarlyStoppingCallback)
        )
        if self.state.global_step >= self.state.max_steps or stopped_early:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)
