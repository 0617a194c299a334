"""English text: sentences, words and stems, kinds of phrases, causal questions, excerpts and events."""
