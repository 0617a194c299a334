"""Debiased decoding inside vLLM: two ordinary requests a sample, paired in the engine's batch (PIPER, section 3.3).

    pairing.py     which rows of a step belong together, what their logits become, how a pair samples (torch only)
    rows.py        where a step's rows are, as either of vLLM's model runners tells it (torch only)
    processor.py   the plug-in that vLLM loads
    requests.py    the two requests of a pair, its answer from their outputs, and when to submit it again
    engine.py      model names → engines; what an engine must be like; the sentinel; the proof of the plug-in
    offline.py, batch.py               generate and answer_samples on vllm.LLM
    likelihood.py  the log-probabilities of options, plainly
    online.py, gate.py, stream.py      pairs as a stream, on vLLM's AsyncLLM
    serve.py, chat.py                  `d2e serve`

Nothing else in the project imports this package unless vLLM was asked for.
"""
