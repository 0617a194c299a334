"""Debiased decoding inside vLLM: two ordinary requests a sample, paired in the engine's batch (PIPER paper, section 3.3).

    pairing.py     which rows of a step belong together, and what their logits become (torch only)
    draws.py       temperature, top-k, top-p and min-p for a pair, drawn once for both rows (torch only)
    processor.py   the plug-in that vLLM loads: pairing behind its logits-processor interfaces
    progress.py    a pair's answer from the outputs of its two requests, and when to submit it again (no imports)
    requests.py    token ids and options → vLLM's prompts and sampling parameters
    engine.py      model names → engines; what an engine must be like; the proof that it runs the plug-in
    offline.py     decode_pairs and generate_debiased on vllm.LLM
    online.py      one pair as a stream, on vllm.AsyncLLM
    serve.py, chat.py, limits.py   `d2e serve`

Nothing else in the project imports this package unless vLLM was asked for.
"""
