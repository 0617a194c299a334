"""Entity states of CREPE's steps by a model that was trained on OpenPI's rows (section 5.3 of CREPE's paper).

Each step is asked about in the words of the training rows, with the steps before it and without examples.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from d2e_sft.data.conversation import prompt_turns
from d2e_sft.util.table import Table
from eval.run.task import Conversation
from eval.systems.asker import Asker
from eval.systems.conversations import wording
from eval.systems.openpi2.downstream import entity_states
from eval.systems.openpi2.downstream.crepe import crepe_procedures
from eval.systems.openpi2.task import Task, sampling
from eval.systems.system import SystemCall, SystemResult

_TOKENS = 400  # 23,681 changes in 3,216 training steps: seven a step, of about 15 tokens


class CrepeStates(Task[Any, Any]):
    """What the steps of CREPE's procedures change; kept for `--bench crepe`, nothing is scored."""

    def run(self, call: SystemCall, asker: Asker) -> SystemResult:
        own: Any = wording("openpi2/prompts/tracking")["trained"]
        row = prompt_turns(own["prompt"], own["system"], own["question"])
        steps = {key: one.steps for key, one in crepe_procedures(call).items()}
        chats = [
            Conversation(
                "openpi2",
                f"{key}/{count}",
                row.messages(" ".join(texts[:count])),
                row.messages(""),
                group="crepe-states",
            )
            for key, texts in steps.items()
            for count in range(1, len(texts) + 1)
        ]
        outputs = iter(asker.ask("crepe-states", chats, max_new_tokens=_TOKENS, **sampling(call)))
        said = {key: [next(outputs) for _ in texts] for key, texts in steps.items()}
        changes, other = entity_states.read_changes(said)
        found = {
            "procedures": len(steps),
            "steps": len(chats),
            "changes": sum(len(step) for one in changes.values() for step in one),
            "entities_a_step": entity_states.entities_a_step(changes),
        }
        rows = [(name.replace("_", " "), f"{value:,.1f}".removesuffix(".0")) for name, value in found.items()]
        table = Table.of(("predicted states", ""), rows, "Entity states of CREPE's steps, not scored")
        result = entity_states.with_other_lines(SystemResult({"crepe_states": found}, [table]), other)
        return replace(result, files={"entities-all.json": entity_states.crepe_entities_file(changes)})
