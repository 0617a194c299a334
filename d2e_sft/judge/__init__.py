"""The language-model judge: prompts in, checked readings out, every reply kept so that none is paid for twice.

`judge.py` is the engine that all jobs share; `openai_backend.py` and `local_backend.py` answer its prompts. The jobs
themselves live with what they judge, in `data_builders` and in `eval`. Rules only is no back end: `make_judge` then
gives None, and a job applies its own rule.
"""
