"""StrategyQA (Geva et al., TACL 2021) as CREPE's authors trained GPT-3 on it: steps of reasoning, then the answer.

The file has 2,061 pairs of prompt and completion. A prompt has facts and a yes-or-no question. A completion has the
question's published parts, each with what a reading model answered (often wrong), then the right answer.
"""

import re

from data_builders.raw.source import source
from data_builders.sources.reading import keep_first, reader
from data_builders.sources.rows import BadRowError, Draft, Form, RawRow, Text

_PROMPT = re.compile(r"Context:\s*(\S.*)\nQuestion:\s*(\S.*)\nTake it step by step:")
_COMPLETION = re.compile(r"#1 .*\nTherefore, the answer to the original question is (True|False)\.?", re.DOTALL)


class _Pair(RawRow):
    prompt: Text
    completion: Text


def _draft(row: _Pair) -> Draft:
    match = _PROMPT.fullmatch(row.prompt)
    if match is None:
        raise BadRowError.at("prompt", row.prompt, "lines 'Context: …', 'Question: …' and 'Take it step by step:'")
    if _COMPLETION.fullmatch(row.completion) is None:
        raise BadRowError.at("completion", row.completion, "lines from '#1 …' to the answer, True or False")
    context, question = map(str.strip, match.groups())
    return row.draft(relation="none", context=context, question=question, answers=[row.completion.rstrip(".")])


_REPEATED = keep_first("repeated rows", "the same question would be trained on twice", lambda row: row.question)
STRATEGYQA = source(__file__, reader(Form(_Pair, _draft), [_REPEATED]))
