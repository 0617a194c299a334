"""Record of a training in its run folder: the rows, and the recipe that repeats it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import TrainerCallback

from d2e_sft.config.functions import MOVE_FUNCTION, OF_SCRIPT
from d2e_sft.config.recipe import RECIPE_FILE, Recipe
from d2e_sft.data.built import taggers, tags_of_another
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.rows import samples_of
from d2e_sft.data.sample import EventSample, write_samples
from d2e_sft.model.storage.seal import renew_seal
from d2e_sft.train.arguments.as_recipe import lora_section, to_recipe
from d2e_sft.train.checks import count_processes, count_steps, loads_whole_steps, notes_on_steps, shared_micro_batch
from d2e_sft.train.data_record import DATA_FILE, TOKENS, record_data
from d2e_sft.train.evaluation.callbacks import trackers_with_tables
from d2e_sft.train.rows import describe_rows, warn_without_contexts
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_whole
from d2e_sft.util.terminal import say, warn

TRAIN_ROWS, DEV_ROWS, PROBE_ROWS = "train_rows.parquet", "dev_rows.parquet", "probe_rows.parquet"


class RecordRun(TrainerCallback):
    """Writes `recipe.yaml`, `data.json` and the rows into the run folder as training begins, on the main process.

    So `d2e eval`, `compare`, `report` and `push` know the run, and `d2e train RUN/recipe.yaml train.output_dir=OTHER`
    repeats it, unless its rows were tokens, which are not written. Experiment trackers get the recipe, too.

    Args:
        rows, held_out, probe: as given to the trainer; the path of a file is recorded, other rows are written.
        recipe: recorded as it is; None derives one, and lists the arguments without a recipe key.

    Attributes:
        recipe: the run's.
        probe: its samples; None without one.
        derives: whether the recipe is derived from the arguments: the training is called from Python.
        given_file: the file of training rows, if they were given as one.
    """

    def __init__(self, trainer: Any, rows: Any, held_out: Any, probe: Any, recipe: Recipe | None) -> None:
        self.trainer, self.inputs = trainer, trainer.inputs
        self.probe = None if probe is None else samples_of(probe, "probe_dataset")
        self.unsaid: list[str] = []
        self._written: dict[str, list[EventSample]] = {}
        self.derives = recipe is None
        self.given_file = str(rows) if isinstance(rows, str | Path) else None
        self.recipe = recipe or self._derived(rows, held_out, probe)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write and announce, once the model is on its device; after the trackers' own callbacks."""
        if not state.is_world_process_zero:
            return
        recipe, run, inputs = self.recipe, Path(args.output_dir), self.inputs
        run.mkdir(parents=True, exist_ok=True)
        for name, samples in self._written.items():
            write_samples(samples, run / name)
        data = record_data(recipe, inputs.train_dataset, processes=args.world_size)
        if inputs.training is not None:
            data.wording = load_prompt_set(recipe.data.prompt_set).names_for(inputs.training.samples)
        write_whole(run / DATA_FILE, data.model_dump_json(indent=2) + "\n")
        recipe.save(run)  # last: a folder with a recipe is a run that can be resumed
        renew_seal(run, RECIPE_FILE)  # of a model that an earlier call saved here
        self._announce(len(inputs.train_dataset), args.world_size)
        if self.unsaid:
            say(f"{run / RECIPE_FILE} leaves out: {', '.join(self.unsaid)}, which a run of it does not repeat")
        if self.derives and recipe.d2e.objective.startswith(OF_SCRIPT):
            say(f"{run / RECIPE_FILE} names a function of this script: {MOVE_FUNCTION}, so that others can load it")
        for tracker in trackers_with_tables(args.report_to):
            tracker.config.update({"recipe": recipe.model_dump()}, allow_val_change=True)

    @contextmanager
    def files_aside(self) -> Iterator[Recipe]:
        """The recipe with files in a temporary folder: the rows given now, which a resumed run must have, too."""
        recipe = self.recipe.model_copy(deep=True)
        with TemporaryDirectory() as folder:
            for name, samples in self._written.items():
                write_samples(samples, Path(folder) / name)
                setattr(recipe.data, name.partition("_")[0], str(Path(folder) / name))
            try:
                yield recipe
            except UserError as error:
                raise UserError(error.message.replace(f"{folder}{os.sep}", ""), error.remedy) from None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the log history of a training from Python; `d2e train` does so after the model."""
        if self.derives:
            self.trainer.save_state()

    def _derived(self, rows: Any, held_out: Any, probe: Any) -> Recipe:
        inputs = self.inputs
        lora, unsaid = lora_section(getattr(inputs.loaded.model, "peft_config", {}).get("default"))
        files = {
            "train": self._file(rows, TRAIN_ROWS, inputs.training),
            "dev": self._file(held_out, DEV_ROWS, inputs.held_out),
            "probe": self._file(probe, PROBE_ROWS, self.probe),
        }
        model = {"name": inputs.name or type(inputs.loaded.model).__name__, "lora": lora}
        args, rows = inputs.args, inputs.train_dataset
        per_epoch = count_steps(args, len(rows), args.world_size).per_epoch if hasattr(rows, "__len__") else None
        recipe, more = to_recipe(args, model, files, per_epoch)
        self.unsaid = [*more, *unsaid]
        return recipe

    def _file(self, given: Any, name: str, found: Any) -> str | None:
        """The file of rows, which is written if they were not given as one; tokens only have a name."""
        if given is None or (found is None and isinstance(given, Mapping)):
            return None
        if isinstance(given, str | Path):
            return str(given)
        file = Path(self.inputs.args.output_dir or ".") / name
        if found is None:
            return str(file.with_suffix(TOKENS))
        self._written[name] = found if isinstance(found, list) else [*found.encoded.samples, *found.encoded.dropped]
        return str(file)

    def _announce(self, samples: int, processes: int) -> None:
        recipe, inputs = self.recipe, self.inputs
        lines = [f"training samples: {samples}, given as tokens"]
        if inputs.training is not None:
            lines = describe_rows(recipe, "training", inputs.training)
            instead = "set objective='sft'" if self.derives else "train with --method sft"
            warn_without_contexts(recipe, inputs.training.samples, remedy=f"give rows a context, or {instead}")
        if inputs.held_out is not None:
            lines += describe_rows(recipe, "dev", inputs.held_out)
        if self.probe is not None:
            limit = recipe.data.max_probe_samples
            cap = f" (data.max_probe_samples={limit})" if limit is not None else ""
            lines.append(f"probe: {len(self.probe)} samples of {recipe.data.probe}{cap}")
        read = [] if inputs.training is None else inputs.training.samples
        if other := tags_of_another(taggers([*read, *(self.probe or ())]), recipe.model.name):
            warn(other)
        train = recipe.train
        named = f"reference: {recipe.d2e.other_model}; " if recipe.d2e.other_model else ""
        lines.append(
            f"{named}views: {', '.join(recipe.d2e.views)}; α={recipe.d2e.effective_alpha:g}; batch {train.batch_size} "
            f"on {count_processes(processes)}; {train.precision}"
        )
        size = shared_micro_batch(train, processes)
        if size < train.per_device_train_batch_size and not loads_whole_steps(train):
            lines.append(
                f"micro-batches of {size}, not train.per_device_train_batch_size={train.per_device_train_batch_size}: "
                f"each process gets {train.batch_size // processes} samples of a batch"
            )
        say("\n".join([*lines, self.trainer.layout.describe()]))
        for note in notes_on_steps(train, count_steps(train, samples, processes)):
            warn(note)
