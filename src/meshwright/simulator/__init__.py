"""Simulation of one step: timelines, collectives chunk by chunk, memory over time, pictures."""
