"""What people already run, as a model, a cluster, a job and a layout. Files are read, never run."""
