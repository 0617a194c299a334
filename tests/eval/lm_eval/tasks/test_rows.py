"""The rows of PIPER as tasks of the harness: their documents and scores."""

from __future__ import annotations

from pathlib import Path

import pytest
from lm_eval.tasks import TaskManager

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.util.errors import UserError
from eval.commands.lm_eval import TASKS
from eval.lm_eval.tasks.rows import document, load
from tests.tiny import make_sample


def test_all_fifteen_rows_are_in_the_group() -> None:
    manager = TaskManager(include_path=str(TASKS), include_defaults=False)
    names = [name for name in manager.all_subtasks if name.startswith("piper_")]
    with_options = [name for name in names if name.startswith("piper_choice_")]
    assert len(names) - len(with_options) == 15
    assert {name.replace("piper_choice_", "piper_") for name in with_options} < set(names)
    assert {"piper", "piper_choice"} <= set(manager.all_groups)


def test_choices_stand_behind_the_marker_and_gold_is_their_place() -> None:
    options, prompts = ["sun", "moon", "sea"], load_prompt_set("default")
    scq, mcq, nli, qa = (
        document(make_sample(1, **fields), prompts)
        for fields in (
            {"format": "scq", "options": options, "answers": ["moon"]},
            {"format": "mcq", "options": options, "answers": ["sea", "sun"]},
            {"format": "nli", "answers": ["negative"]},
            {},
        )
    )
    assert (scq["choices"], scq["gold"]) == (["(A) sun", "(B) moon", "(C) sea"], 1)
    assert f"{scq['marker']} {scq['choices'][scq['gold']]}" == scq["response"]
    assert (mcq["choices"], mcq["gold"], mcq["solved"]) == (scq["choices"], [0, 2], "(A) sun; (C) sea")
    assert (nli["choices"], nli["gold"]) == (["positive", "negative"], 1)
    assert (qa["choices"], qa["gold"]) == ([], None)


def test_a_folder_without_the_benchmark_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no test rows of tempreason"):
        load(dataset="tempreason", relation="temporal", data=str(tmp_path))
