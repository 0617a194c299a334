"""D²E-SFT: debiasing and distillation enhanced fine-tuning for event reasoning."""

__version__ = "0.1.0"
