"""`d2e serve` without vLLM: OpenAI-compatible routes on decoding in this process, one batch at a time.

context.py     a request's context: its fields, its two prompts, its decoder (vLLM's server uses it, too)
limits.py      the key, and limits on bodies and the queue (vLLM's server uses it, too)
openai.py      OpenAI's requests and answers, and what of them is not supported
prompts.py     requests → prompts as tokens
job.py         a prompt in the queue, and the pieces of its answer
queue.py       the thread that decodes
app.py         the routes
start.py       the options, the address, and loading the model
"""
