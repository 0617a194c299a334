"""Scenarios as rows of the published files: every box after every number of operations.

There are two formats. For prompting (`few_shot`) an empty box `contains nothing`, and the mask replaces the words
after `contains`. For fine-tuning T5 (`t5`) it `is empty`, and the mask also replaces `contains`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from d2e_sft.data.sample import Split
from data_builders.boxes.scenarios import Drawn, Variant, draw_scenarios, scenario_random, whole_scenarios
from data_builders.boxes.wording import MASK, in_words_of_t5
from data_builders.boxes.world import OBJECTS, BoxWorld

RowFormat = Literal["few_shot", "t5"]
_WORLD = BoxWorld(boxes=7, max_objects=3, expected_objects=2.0, operations=12, objects=OBJECTS)


def official_rows(
    variant: Variant, *, scenarios: int, seed: int, row_format: RowFormat
) -> Iterator[tuple[Split, dict[str, Any]]]:
    """Yield (split, row) for each question, in the published order: by scenario, number of operations and box.

    `sample_id` counts scenarios over all splits, as in the published files. The build option `boxes.scenarios=N` makes
    training rows of the same scenarios.
    """
    rng = scenario_random(seed)
    wanted = whole_scenarios(scenarios)
    for drawn in draw_scenarios(_WORLD, wanted, rng, variant=variant):
        for row in _rows(drawn, row_format):
            yield drawn.split, row
        wanted[drawn.split].taken += 1


def _rows(drawn: Drawn, row_format: RowFormat) -> Iterator[dict[str, Any]]:
    scenario, wording = drawn.scenario, drawn.wording
    text = wording.state(enumerate(scenario.states[0]))
    if row_format == "t5":
        text = in_words_of_t5(text)
    kinds: list[Counter[str]] = [Counter(move=0, remove=0, put=0) for _ in scenario.states[0]]
    sentences = ["", *wording.sentences(scenario)]
    for after, state in enumerate(scenario.states):
        if after:
            operation = scenario.operations[after - 1]
            text = f"{text} {sentences[after]}"
            for box in {operation.source, operation.target} - {-1}:
                kinds[box][operation.kind] += 1
        for box, contents in enumerate(state):
            begin, answer = f"{text} {wording.name(box)} contains", wording.say(contents)
            if row_format == "t5":
                begin = f"{text} {wording.name(box)}"
                answer = wording.clause(contents)
            yield {
                "sentence": f"{begin} {answer}.",
                "sentence_masked": f"{begin} {MASK} .",
                "masked_content": f"{MASK} {answer}",
                "sample_id": drawn.number,
                "numops": kinds[box].total(),
                "numops_by_op": dict(kinds[box]),
            }
