from typing import Any

from d2e_sft.data.conversation import ContextRule, LossChoice, chat_rows, read_turns
from d2e_sft.data.sample import EventSample

TURNS = [
    {"role": "user", "content": "<context>Goods are returned within 30 days. Bring the receipt.</context> How long?"},
    {"role": "assistant", "content": "Within 30 days."},
    {"role": "user", "content": "And what do I bring?"},
    {"role": "assistant", "content": "The receipt."},
]


def chat_sample(loss: LossChoice = "last", **changes: Any) -> EventSample:
    """A sample of format chat: two questions on a policy, the second one answered."""
    row = chat_rows(read_turns(TURNS), ContextRule(), loss)[-1]
    fields: dict[str, Any] = {
        "id": "c1",
        "dataset": "chats",
        "split": "train",
        "relation": "none",
        "format": "chat",
        "context": row.context,
        "refined_context": "Bring the receipt.",
        "question": row.question,
        "answers": [row.answer],
        "conversation": row.conversation,
    }
    return EventSample(**{**fields, **changes})
