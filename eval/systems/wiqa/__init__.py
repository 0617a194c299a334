"""WIQA (Tandon et al., EMNLP 2019): what does a change in a process lead to: more, less, or no effect?"""
