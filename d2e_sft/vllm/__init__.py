"""Debiased decoding inside vLLM: two ordinary requests per sample, paired in the engine's batch (PIPER, equation 6).

    pairing.py     rows of a step → pairs and their logits; how a pair samples (without vLLM)
    processor.py   the plug-in that vLLM loads
    requests.py    the two requests of a pair, its answer from their outputs, and when to submit it again
    engine.py      model names → engines; checks of an engine; the sentinel
    offline.py     many pairs and options on vllm.LLM
    server/        `d2e serve`, on vLLM's AsyncLLM

The rest of the project imports this package only if vLLM is used.
"""
