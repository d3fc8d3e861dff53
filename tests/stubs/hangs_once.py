"""A task that prints steps. In the first attempt it never ends, and worker/1 hangs after its first step."""

import itertools
import os
import time

first = os.environ["LAUNCH_ATTEMPT"] == "1"


def hang_here():
    time.sleep(600)


for step in itertools.count() if first else range(3):
    print("attempt", os.environ["LAUNCH_ATTEMPT"], "step", step, flush=True)
    if first and os.environ["TASK_INDEX"] == "1":
        hang_here()
    time.sleep(0.1)
