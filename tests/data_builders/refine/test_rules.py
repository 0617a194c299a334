"""The extractive refiner keeps relevant sentences, verbatim and in order."""

from __future__ import annotations

import random
from typing import Any

import pytest

from d2e_sft.data.sample import EventSample
from data_builders.refine.relevance import labelled_datasets
from data_builders.refine.rules import RefinerOptions, refine, refine_samples
from data_builders.text.sentences import split_sentences
from tests.tiny import make_sample

STORY = "Mia packed a bag. The train was late. She read a novel. A stranger sold her coffee. She arrived at noon."
RED = "Red one. Red two. Red three. Red four. Red five."
DIALOGUE = "A: Hello. Nice day.\nB: My roof leaks. It rains in.\nA: Call a roofer."
ANSWERED = "Ann sold her boat. It rained. The price was two coins."
COINS = "Coins fell. Snow fell. Ann found coins in her boat."
DEFAULT = RefinerOptions()


def _sample(number: int = 0, **changes: object) -> EventSample:
    fields: dict[str, object] = {
        "context": "A storm came. The negative film was lost.",
        "refined_context": None,
        "question": "What came?",
        "answers": ["negative"],
    }
    return make_sample(number, **(fields | changes))


def _nli(context: str, question: str) -> dict[str, object]:
    return {"context": context, "question": question, "format": "nli"}


def _boat(context: str, answer: str) -> dict[str, object]:
    return {"context": context, "question": "What became of the boat?", "answers": [answer]}


@pytest.mark.parametrize(
    ("sample", "options", "refined"),
    [
        (
            _nli(STORY, "Mia buys coffee before the train arrives"),
            {},
            "Mia packed a bag. The train was late. A stranger sold her coffee.",
        ),
        (_nli("The dam broke.", "Why was it dry?"), {}, "The dam broke."),
        (_nli(STORY, "Xylophone?"), {}, STORY),  # no word of the question: the whole context
        # Turns stay whole.
        (_nli(DIALOGUE, "'roof leaks' causes 'Call a roofer'."), {}, DIALOGUE.split("\n", 1)[1]),
        (_nli(RED, "red"), {"max_share": 0.4}, "Red one. Red two."),
        (_nli(RED, "red"), {"max_share": 0.01}, "Red one."),  # at least one
        (_nli(STORY, "stranger coffee train"), {"threshold": 1}, "A stranger sold her coffee."),
        # The answer counts as query, unless it is a label.
        ({"question": "What else?"}, {}, "The negative film was lost."),
        ({"question": "A storm", "format": "nli"}, {}, "A storm came."),
        # An accepted answer stays.
        (_boat(ANSWERED, "coins"), {"max_share": 0.3, "keep_answer": False}, "Ann sold her boat."),
        (_boat(ANSWERED, "Coins"), {"max_share": 0.3}, "Ann sold her boat. The price was two coins."),
        (_boat(ANSWERED, "was  TWO coins"), {"max_share": 0.3}, "The price was two coins."),  # in any spelling
        (_boat(ANSWERED, "rain"), {"max_share": 0.3}, "Ann sold her boat."),  # a part of a word is no answer
        (_boat(ANSWERED, "It rained. The price"), {"max_share": 0.3}, ANSWERED),  # over two sentences
        (_boat(COINS, "coins"), {"max_share": 0.1}, "Ann found coins in her boat."),  # the most relevant occurrence
        # So do all spans that the source names.
        (
            {
                "context": "A fire broke out. Cats slept. The roof fell. Dogs slept.",
                "question": "What happened?",
                "answers": ["fire broke out; roof fell"],
                "meta": {"spans": ["fire broke out", "roof fell"]},
            },
            {"max_share": 0.1},
            "A fire broke out. The roof fell.",
        ),
    ],
)
def test_sentences_that_share_words_with_the_question_or_have_the_answer_are_kept(
    sample: dict[str, object], options: dict[str, Any], refined: str
) -> None:
    assert refine(_sample(**sample), RefinerOptions(keep_events=False, **options)).refined_context == refined


def test_random_contexts_give_a_subsequence_of_their_sentences() -> None:
    rng = random.Random(3)
    words = ["river", "stone", "cloud", "march", "garden", "window", "paper", "music"]
    for _ in range(300):
        sentences = [
            " ".join(rng.choices(words, k=rng.randint(1, 6))).capitalize() + rng.choice(".!?")
            for _ in range(rng.randint(1, 8))
        ]
        context = " ".join(sentences)
        asked = _sample(**_nli(context, " ".join(rng.choices(words, k=3))))
        kept = split_sentences(refine(asked, DEFAULT).refined_context or "")
        remaining = iter(sentences)
        assert kept
        assert all(sentence in remaining for sentence in kept)


def test_options_that_all_rows_of_a_dataset_share_are_labels_not_query() -> None:
    likely = ("more likely", "less likely")
    label = {"format": "scq", "context": "Rain is likely. A storm came.", "question": "A storm"}
    rows = [_sample(i, options=likely, answers=[likely[i]], **label) for i in range(2)]
    assert [row.refined_context for row in refine_samples(rows, DEFAULT)] == ["A storm came."] * 2
    # Options are content if there is a single row, or if another row of the dataset has others.
    assert refine(rows[0], DEFAULT).refined_context == rows[0].context
    other = _sample(2, options=("more likely", "a flood"), answers=["a flood"], **label)
    assert refine_samples([*rows, other], DEFAULT)[0].refined_context == rows[0].context
    # The judge's fallback refines row by row.
    assert refine(rows[0], DEFAULT, labelled_datasets(rows)).refined_context == "A storm came."


def test_an_existing_refined_context_stays() -> None:
    sample = _sample(refined_context="exact")
    assert refine(sample, DEFAULT) is sample


def test_a_model_is_for_embeddings_only() -> None:
    assert RefinerOptions(scorer="embedding", model="me/mine", pooling="last").model == "me/mine"
    with pytest.raises(ValueError, match=r"refine\.model with refine\.scorer=overlap"):
        RefinerOptions(model="me/mine")
