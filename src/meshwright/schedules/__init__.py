"""Pipeline schedules: ordered operations per rank, their validator, and stage balancing."""
