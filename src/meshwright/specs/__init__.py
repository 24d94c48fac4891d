"""The nouns of meshwright: models, devices, clusters, jobs, layouts, estimates and plans."""
