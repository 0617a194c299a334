"""Functions of the task files: samples as documents, and their scores."""

import os
from pathlib import Path
from typing import Any

from datasets import Dataset

from d2e_sft.data.prompts import PromptSet, candidate_responses, load_prompt_set
from d2e_sft.data.sample import EventSample, read_samples
from d2e_sft.util.errors import UserError
from eval.score.scoring import score_output

DATA_VARIABLE = "D2E_PIPER"
_LEFT_OUT = ("meta", "conversation", "rejected")  # not used by tasks
_FIELDS = tuple(EventSample.model_fields)


def load(
    *, dataset: str, relation: str, data: str | None = None, prompt_set: str = "default", **_: Any
) -> dict[str, Dataset]:
    """The documents of one row of the benchmark, by split; UserError if the folder lacks the benchmark or such a row.

    `data` is a folder of `d2e data build --suite piper` (`--metadata data=…`, or the variable D2E_PIPER; else
    data/piper). Its training rows, if any, are used for demonstrations.
    """
    folder = Path(data or os.environ.get(DATA_VARIABLE) or "data/piper")
    wording = load_prompt_set(prompt_set)
    splits = {}
    for split in ("train", "test"):
        file = folder / f"{split}.parquet"
        samples = read_samples(file) if file.is_file() else []
        chosen = [sample for sample in samples if (sample.dataset, sample.relation) == (dataset, relation)]
        splits[split] = Dataset.from_list([document(sample, wording) for sample in chosen])
    if not len(splits["test"]):
        raise UserError(
            f"{folder}: has no test rows of {dataset} ({relation})",
            "build the benchmark with `d2e data build --suite piper --out data/piper`, and give its folder with "
            f"--metadata data=FOLDER or {DATA_VARIABLE}=FOLDER",
        )
    return splits


def document(sample: EventSample, wording: PromptSet) -> dict[str, Any]:
    """A sample with the texts of its prompt; `prompt_without_context` is the imagined view's `prompt`.

    `choices` are its candidates as written in the response form after the `marker`, and `solved` is that part of the
    correct response. `gold` is the place of the correct choice; a list of places for mcq, None for qa.
    """
    system, user = wording.messages(sample, "original")
    imagined = wording.messages(sample, "imagined")[1]
    response, marker = wording.response(sample), wording.marker(sample.format)
    *choices, solved = (
        text.strip().removeprefix(marker).strip() for text in (*candidate_responses(wording, sample), response)
    )
    places = [sample.candidates.index(answer) for answer in sample.answers] if choices else [None]
    return {
        **{name: value for name, value in sample.model_dump(mode="json").items() if name not in _LEFT_OUT},
        "system": system["content"],
        "prompt": user["content"],
        "prompt_without_context": imagined["content"],
        "response": response,
        "marker": marker,
        "choices": choices,
        "solved": solved,
        "gold": sorted(places) if sample.format == "mcq" else places[0],
    }


def score(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Exact match, token-level F1 and their mean for one output, as in `d2e eval`."""
    sample = EventSample.model_validate({name: doc[name] for name in _FIELDS if name in doc})
    prediction = score_output(sample, results[0], doc["marker"])
    return {"exact_match": prediction.exact_match, "f1": prediction.f1, "em_f1_mean": prediction.mean}
