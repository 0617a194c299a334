"""The language-model judge: prompts in, checked readings out, every reply kept so that none is paid for twice.

    options.py, cli_options.py             what a judge and an endpoint are; the same on the command line
    messages.py, templates.py              what goes to a back end and comes back; a job's prompts and their verdict
    judge.py                               the engine that all jobs share
    openai_backend.py, local_backend.py    answer its prompts
    bounded.py, workers.py                 no server keeps a run busy for ever
    retry.py, cache.py, usage.py           when to send again; replies on disk; what they have cost

The jobs themselves live with what they judge, in `data_builders` and in `eval`. Rules only is no back end:
`make_judge` then gives None, and a job applies its own rule.
"""
