"""The language-model judge: prompts in, checked verdicts out; every reply is kept, so that none is paid for twice.

    options.py, cli_options.py             options of a judge and of an endpoint; the same on the command line
    messages.py, templates.py              prompts and replies; a job's prompts and their verdicts
    judge.py                               the engine that all jobs share
    openai_backend.py, local_backend.py    answer its prompts
    http_client.py                         bounds and reads the answers of an endpoint
    cache.py, usage.py                     replies on disk; their cost

The jobs are in `data_builders` and `eval`, next to what they judge. With rules only, `make_judge` returns None, and a
job applies its own rule.
"""
