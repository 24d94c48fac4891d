"""A Layout on real ranks: meshes, collectives, wrapping, pipelines, one training step."""
