"""Record of a training in its run folder: the rows, and the recipe that repeats it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from transformers import TrainerCallback

from d2e_sft.config.functions import MOVE_FUNCTION, OF_SCRIPT
from d2e_sft.config.objectives import is_own
from d2e_sft.config.recipe import RECIPE_FILE, Recipe
from d2e_sft.config.sections import LoraSection
from d2e_sft.data.built import taggers, tags_of_another
from d2e_sft.data.data_record import DATA_FILE, TOKENS, record_data
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.rows import refuse_repeated_ids, samples_of
from d2e_sft.data.sample import EventSample, write_bad_rows, write_samples
from d2e_sft.model.storage.seal import renew_seal
from d2e_sft.train.checks import count_processes, count_steps, loads_whole_steps, notes_on_steps, shared_micro_batch
from d2e_sft.train.evaluation import trackers_with_tables
from d2e_sft.train.prepare import slow_precision
from d2e_sft.train.rows import describe_rows, warn_without_contexts
from d2e_sft.train.run_folder import ROWS_FILE, SKIPPED_FILE
from d2e_sft.train.samples import of_both_subsets
from d2e_sft.util.errors import UserError, describe_validation_error
from d2e_sft.util.files import write_whole
from d2e_sft.util.terminal import say, warn

if TYPE_CHECKING:
    from d2e_sft.train.trainer import D2ETrainer

# Settings of an adapter that follow from the model.
_OF_ANY_ADAPTER = {
    *("task_type", "peft_type", "base_model_name_or_path", "inference_mode", "revision", "auto_mapping"),
    "peft_version",
}


class RecordRun(TrainerCallback):
    """Writes `recipe.yaml`, `data.json` and the rows into the run folder as training begins, on the main process.

    So `d2e eval`, `compare`, `report` and `push` know the run, and `d2e train RUN/recipe.yaml train.output_dir=OTHER`
    repeats it, unless its rows were tokens, which are not written. Experiment trackers get the recipe, too.

    Args:
        rows, held_out, probe: As given to the trainer; the path of a file is recorded, other rows are written.
        derives: Complete the trainer's recipe, which is that of its arguments, with the model and the rows.

    Attributes:
        probe: Its samples; None without one.
        left_out: What the recipe cannot express.
    """

    def __init__(self, trainer: D2ETrainer, rows: Any, held_out: Any, probe: Any, *, derives: bool) -> None:
        self.trainer, self.derives = trainer, derives
        self.probe: list[EventSample] | None = None
        if probe is not None:
            samples = samples_of(probe, "probe_dataset")
            refuse_repeated_ids(samples, "probe_dataset")
            self.probe = of_both_subsets(samples, "probe_dataset", trainer.recipe)
        self.left_out: list[str] = []
        self.written: dict[str, list[EventSample]] = {}
        if derives:
            self._complete(trainer.recipe, rows, held_out, probe)

    @property
    def train_file(self) -> str | None:
        """The file of training rows, unless training writes it."""
        file = self.trainer.recipe.data.train
        return None if Path(file).name in self.written else file

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write and announce, once the model is on its device; after the trackers' own callbacks."""
        if not state.is_world_process_zero:
            return
        recipe, run, inputs = self.trainer.recipe, Path(args.output_dir), self.trainer.inputs
        run.mkdir(parents=True, exist_ok=True)
        for name, samples in self.written.items():
            write_samples(samples, run / name)
        bad_rows = [row for rows in (inputs.training, inputs.held_out) if rows is not None for row in rows.bad_rows]
        write_bad_rows(bad_rows, run / SKIPPED_FILE)
        digest = self.trainer.tokens_sha256
        data = record_data(recipe, len(inputs.train_dataset), digest, processes=args.world_size)
        if inputs.training is not None:
            data.wording = load_prompt_set(recipe.data.prompt_set).names_for(inputs.training.samples)
        write_whole(run / DATA_FILE, data.model_dump_json(indent=2) + "\n")
        recipe.save(run)  # last: a folder with a recipe is a run that can be resumed
        renew_seal(run, RECIPE_FILE)  # the seal of a model that an earlier call saved here
        self._announce(len(inputs.train_dataset), args.world_size)
        if self.left_out:
            say(f"{run / RECIPE_FILE} leaves out: {', '.join(self.left_out)}, which a run of it does not repeat")
        if self.derives and recipe.d2e.objective.startswith(OF_SCRIPT):
            say(f"{run / RECIPE_FILE} names a function of this script: {MOVE_FUNCTION}, so that others can load it")
        for tracker in trackers_with_tables(args.report_to):
            tracker.config.update({"recipe": recipe.model_dump()}, allow_val_change=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the log history of a training from Python; `d2e train` does so after the model."""
        if self.derives:
            self.trainer.save_state()

    def _complete(self, recipe: Recipe, rows: Any, held_out: Any, probe: Any) -> None:
        """Add the model, the files of rows and the steps of a strategy to the recipe of the arguments."""
        trainer, args, inputs, train = self.trainer, self.trainer.args, self.trainer.inputs, recipe.train
        model = inputs.loaded.model
        recipe.model.name = trainer.model_name or type(model).__name__
        recipe.model.lora = self._lora(getattr(model, "peft_config", {}).get("default"))
        recipe.data.train = str(self._file(rows, ROWS_FILE.format("train"), inputs.training))
        recipe.data.dev = self._file(held_out, ROWS_FILE.format("dev"), inputs.held_out)
        recipe.data.probe = self._file(probe, ROWS_FILE.format("probe"), self.probe)
        drop_last = args.dataloader_drop_last
        per_epoch = count_steps(recipe, len(inputs.train_dataset), args.world_size, drop_last=drop_last).per_epoch

        def every(kind: str) -> int | None:
            steps = {"epoch": per_epoch, "steps": getattr(args, f"{kind}_steps")}
            value = steps.get(getattr(args, f"{kind}_strategy").value)
            return value if isinstance(value, int) else None

        train.save_steps, train.eval_steps = every("save"), every("eval")
        if args.evaluates_by_default and not args.load_best_model_at_end:
            train.eval_steps = None  # which evaluates after each epoch in a recipe, too
        # A recipe refuses keys about evaluations without held-out rows, and about a best model that is not saved.
        without_effect = ["eval_steps", "load_best_model_at_end", "early_stopping_patience"]
        if recipe.data.dev or recipe.data.probe:
            without_effect = [] if train.eval_steps and train.save_steps else ["load_best_model_at_end"]
        self.left_out = [
            *args.left_out,
            *(f"train.{key}" for key in without_effect if getattr(train, key)),
            *self.left_out,
        ]
        for key in without_effect:
            setattr(train, key, type(train).model_fields[key].default)
        try:
            Recipe(**dict(recipe))  # what depends on several sections
        except ValidationError as error:
            raise UserError(f"D2EConfig: {describe_validation_error(error)}") from None

    def _file(self, rows_or_file: Any, name: str, rows: Any) -> str | None:
        """Return the file of rows, which is written if they were not given as one; tokens only have a name."""
        if rows_or_file is None or (rows is None and isinstance(rows_or_file, Mapping)):
            return None
        if isinstance(rows_or_file, str | Path):
            return str(rows_or_file)
        file = Path(self.trainer.args.output_dir) / name
        if rows is None:
            return str(file.with_suffix(TOKENS))
        self.written[name] = rows if isinstance(rows, list) else [*rows.samples, *rows.dropped]
        return str(file)

    def _lora(self, adapter: Any) -> LoraSection | None:
        """Return an adapter's configuration as a recipe has it; settings that a recipe has no key for are left out."""
        if adapter is None:
            return None
        settings = adapter.to_dict()
        usual = type(adapter)(**{"total_step": 1} if "total_step" in settings else {}).to_dict()  # AdaLoRA asks for it
        keys = {name: settings[name] for name in LoraSection.model_fields if settings.get(name) is not None}
        keys |= {name: sorted(value) for name, value in keys.items() if isinstance(value, set)}
        unsupported = settings.keys() - LoraSection.model_fields.keys() - _OF_ANY_ADAPTER
        self.left_out = [f"peft_config.{name}" for name in sorted(unsupported) if settings[name] != usual.get(name)]
        try:
            return LoraSection.model_validate(keys)
        except ValidationError as error:
            self.left_out += [f"peft_config.{item['loc'][0]}" for item in error.errors()]
            return LoraSection()

    def _announce(self, samples: int, processes: int) -> None:
        recipe, inputs, train = self.trainer.recipe, self.trainer.inputs, self.trainer.recipe.train
        lines = [f"training samples: {samples}, given as tokens"]
        if inputs.training is not None:
            lines = describe_rows(recipe, "training", inputs.training)
            warn_without_contexts(recipe, inputs.training.samples)
        if inputs.held_out is not None:
            lines += describe_rows(recipe, "dev", inputs.held_out)
        if self.probe is not None:
            limit = recipe.data.max_probe_samples
            cap = f" (data.max_probe_samples={limit})" if limit is not None else ""
            lines.append(f"probe: {len(self.probe)} samples of {recipe.data.probe}{cap}")
        read = [] if inputs.training is None else inputs.training.samples
        if warning := tags_of_another(taggers([*read, *(self.probe or ())]), recipe.model.name):
            warn(warning)
        reference = f"reference: {recipe.d2e.other_model}; " if recipe.d2e.other_model else ""
        alpha = f"α={recipe.d2e.effective_alpha:g}"
        if is_own(recipe.d2e.objective):  # which gets alpha, whatever is subtracted at decoding
            alpha = f"options.alpha={recipe.d2e.alpha:g}, decoded with {alpha}"
        lines.append(
            f"{reference}views: {', '.join(recipe.d2e.views)}; {alpha}; batch {train.batch_size} on "
            f"{count_processes(processes)}; {train.precision}"
        )
        size = shared_micro_batch(train, processes)
        if size < train.per_device_train_batch_size and not loads_whole_steps(recipe):
            lines.append(
                f"micro-batches of {size}, not train.per_device_train_batch_size={train.per_device_train_batch_size}: "
                f"each process gets {train.batch_size // processes} samples of a batch"
            )
        say("\n".join([*lines, self.trainer.layout.describe()]))
        if warning := slow_precision(recipe):
            warn(warning)
        drop_last = self.trainer.args.dataloader_drop_last
        for note in notes_on_steps(recipe, count_steps(recipe, samples, processes, drop_last=drop_last)):
            warn(note)
