"""Rows of two of the harness's tasks, on disk."""

from pathlib import Path

from d2e_sft.data.sample import write_samples
from tests.tiny import make_sample

ROWS = {
    "piper_temporal_tempreason": ("tempreason", "temporal"),
    "piper_counterfactual_ifqa": ("ifqa", "counterfactual"),
}


def save_rows(folder: Path) -> Path:
    """Four test and five training samples of each."""
    for split, count in (("test", 4), ("train", 5)):
        write_samples(
            [
                make_sample(number, id=f"{split}{number}", dataset=dataset, relation=relation, split=split)
                for dataset, relation in ROWS.values()
                for number in range(count)
            ],
            folder / f"{split}.parquet",
        )
    return folder
