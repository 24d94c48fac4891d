"""Measured runs, the scorecard of the cost model, and calibration."""
