"""Pure arithmetic: parameters, FLOPs, memory, kernels, collectives and step time, in columns."""
