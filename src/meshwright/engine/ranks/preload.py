"""What the fork server imports before it forks ranks. No torch operation runs here.

An operation would start threads, and a forked child must not inherit a half of them.
"""

import os
from importlib import import_module

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
# Of a lost peer the parent says one sentence; gloo's own lines would come beside it.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

for _name in ("torch._dynamo", "meshwright.engine.proof.runs", "meshwright.engine.train"):
    import_module(_name)
