"""What a training from Python leaves beside the model: its rows, and the recipe that repeats it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from transformers import TrainerCallback

from d2e_sft.config.sections import LoraSection
from d2e_sft.data.rows import samples_of
from d2e_sft.data.sample import EventSample, read_samples, write_samples
from d2e_sft.train.arguments.inputs import UserInputs
from d2e_sft.train.data_record import record_data
from d2e_sft.train.probe import of_both_subsets
from d2e_sft.train.rows import announce_rows

TRAIN_ROWS, DEV_ROWS, PROBE_ROWS = "train_rows.parquet", "dev_rows.parquet", "probe_rows.parquet"
_OF_ANY_ADAPTER = {
    "task_type",
    "peft_type",
    "base_model_name_or_path",
    "inference_mode",
    "revision",
    "auto_mapping",
    "peft_version",
}


class RecordRun(TrainerCallback):
    """Writes `recipe.yaml`, `data.json` and the rows into the run folder as training begins, on the main process.

    So `d2e eval`, `compare`, `report` and `push` know the run, and `d2e train RUN/recipe.yaml train.output_dir=OTHER`
    repeats it. What no key of a recipe can say is told. At its end the log is written, too.

    Attributes:
        recipe: that of the run.
    """

    def __init__(self, trainer: Any, inputs: UserInputs, rows: Any, held_out: Any, probe: Any = None) -> None:
        """Args: rows, held_out, probe: as the user gave them; the path of a file is kept, other rows are written."""
        assert inputs.training is not None
        self.probe = probe if probe is None or isinstance(probe, str | Path) else samples_of(probe, "probe_dataset")
        self.trainer, self.inputs, self.rows, self.held_out = trainer, inputs, rows, held_out
        run = Path(inputs.args.output_dir or ".")
        lora, unsaid = lora_section(inputs.adapter)
        dev = _file(held_out, run / DEV_ROWS) if inputs.held_out is not None else None
        self.recipe, more = inputs.args.to_recipe(
            model={"name": inputs.name or type(inputs.loaded.model).__name__, "lora": lora},
            data={
                "train": _file(rows, run / TRAIN_ROWS),
                "dev": dev,
                "probe": None if probe is None else _file(probe, run / PROBE_ROWS),
            },
        )
        self.unsaid = [*more, *unsaid]

    def probe_samples(self) -> list[EventSample]:
        """The aligned and conflict samples of the probe.

        Raises:
            UserError: its rows are no samples, or lack one of the two subsets.
        """
        assert self.probe is not None
        samples = self.probe if isinstance(self.probe, list) else read_samples(self.probe)
        return of_both_subsets(samples, "probe_dataset")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write and tell, once the model is where it is trained."""
        if not state.is_world_process_zero:
            return
        recipe, run, inputs = self.recipe, Path(args.output_dir), self.inputs
        run.mkdir(parents=True, exist_ok=True)
        for found, given, file in (
            (inputs.training, self.rows, run / TRAIN_ROWS),
            (inputs.held_out, self.held_out, run / DEV_ROWS),
        ):
            if found is not None and not isinstance(given, str | Path):
                write_samples([*found.encoded.samples, *found.encoded.dropped], file)
        if isinstance(self.probe, list):
            write_samples(self.probe, run / PROBE_ROWS)
        recipe.save(run)
        assert inputs.training is not None
        record_data(recipe, inputs.training.dataset, processes=args.world_size, resume=False).save(run)
        announce_rows(recipe, "training", inputs.training)
        if inputs.held_out is not None:
            announce_rows(recipe, "dev", inputs.held_out)
        print(self.trainer.layout.describe(), flush=True)
        if self.unsaid:
            print(f"{run / 'recipe.yaml'} has no key for: {', '.join(self.unsaid)}", flush=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the log history, as a recipe's run does."""
        self.trainer.save_state()


def lora_section(adapter: Any) -> tuple[LoraSection | None, list[str]]:
    """An adapter's configuration as a recipe has it, and the settings that a recipe has no key for."""
    if adapter is None:
        return None, []
    given, usual = adapter.to_dict(), type(adapter)().to_dict()
    said = {name: _listed(given[name]) for name in LoraSection.model_fields if name in given}
    unsaid = [
        f"peft_config.{name}"
        for name, value in given.items()
        if name not in LoraSection.model_fields and name not in _OF_ANY_ADAPTER and value != usual.get(name)
    ]
    try:
        return LoraSection.model_validate({name: value for name, value in said.items() if value is not None}), unsaid
    except ValidationError as error:
        return LoraSection(), [*unsaid, *(f"peft_config.{item['loc'][0]}" for item in error.errors())]


def _listed(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else dict(value) if isinstance(value, Mapping) else value


def _file(rows: Any, written: Path) -> str:
    return str(rows) if isinstance(rows, str | Path) else str(written)
