"""Runs a Plan on torch.distributed and proves it equal to one device."""
