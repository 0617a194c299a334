"""Debiased decoding inside vLLM: two ordinary requests a sample, paired in the engine's batch (PIPER, section 3.3).

    pairing.py     which rows of a step belong together, and what their logits become (torch only)
    draws.py       temperature, top-k, top-p and min-p for a pair, drawn once for both rows (torch only)
    rows.py        where a step's rows are, as either of vLLM's model runners tells it (torch only)
    progress.py    a pair's answer from the outputs of its two requests, and when to submit it again (plain Python)
    options.py     sampling options that do not fit a pair (plain Python)
    sentinel.py    the token that ends a row which finds itself alone
    processor.py   the plug-in that vLLM loads
    requests.py    token ids and options → vLLM's prompts and sampling parameters
    engine.py      model names → engines; what an engine must be like; the proof that it runs the plug-in
    offline.py, batch.py               decode_pairs and generate_debiased on vllm.LLM
    online.py, gate.py, stream.py      pairs as a stream, on vLLM's AsyncLLM
    serve.py, chat.py, limits.py       `d2e serve`

Nothing else in the project imports this package unless vLLM was asked for.
"""
