"""What is sent of an answer while its tokens come."""

from __future__ import annotations

from typing import Any

import pytest

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding import Output, PromptPair
from d2e_sft.server.job import Job, Piece, Prompt


class Texts:
    """Decodes a token as one of the given texts."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "".join(self._texts[token] for token in tokens)


STOP = "\n\nQuestion:"
ANSWERS = [  # the decoded text, what is sent of it, and why it ends
    (f"Paris{STOP} Who?", "Paris", "stop"),
    (STOP, "", "stop"),
    ("Paris\n\nQuestions", "Paris\n\nQuestions", "stop"),
    ("Oui", "Oui", "stop"),
]


@pytest.mark.parametrize(("text", "sent", "finish"), ANSWERS)
def test_nothing_of_a_stop_text_is_sent_wherever_the_tokens_part(text: str, sent: str, finish: str) -> None:
    cuts = [
        [text[:place], text[place:middle], text[middle:]] for middle in range(len(text)) for place in range(middle)
    ]
    for texts in [list(text), ["Paris", "\n\n", "Qu", "estion", text.removeprefix("Paris\n\nQuestion")], *cuts]:
        if "".join(texts) != text:
            continue
        pieces: list[Piece] = []
        asked = Prompt(PromptPair([5], None), DecodingConfig(max_new_tokens=99), (1,), (STOP, "never said"))
        job, output = Job(asked, 0, pieces.append), Output(0, Texts(texts))
        for token in range(len(texts)):
            output.tokens.append(token)
            if not job.ended:
                job.take(output)
        output.ended = True
        if not job.ended:
            job.take(output)
        assert "".join(piece.text for piece in pieces) == sent, texts
        assert [piece.finish for piece in pieces if piece.finish] == [finish]
