"""Run a DeepSpeed script on CPU without compiling DeepSpeed's shared-memory operator (minutes)."""

import runpy
import sys

import deepspeed

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

if __name__ == "__main__":
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    runpy.run_path(script, run_name="__main__")
