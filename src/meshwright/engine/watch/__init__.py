"""What a run says of itself: records, report, profiler traces, the flight recorder."""
