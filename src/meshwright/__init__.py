"""meshwright: plan, prove and run the parallel training of large models."""

__version__ = "0.1.0"
