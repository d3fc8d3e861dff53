"""A training whose workers keep in step by PyTorch's `DistributedDataParallel`.

    goodput_torch.py FOLDER STEPS

`bench.goodput` starts it. Its steps, their length and the checkpoints must be those of ``goodput_tf.py``.
"""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

#: The length of a step in seconds.
STEP_S = 0.05
#: The number of steps between two checkpoints.
SAVE_STEPS = 20
#: The time limit for a collective operation. Processes that have started again sometimes wait for each other
#: in Gloo's first connections, and the default is half an hour.
TIMEOUT = datetime.timedelta(seconds=10)


def main(folder: str, steps: int) -> None:
    """Train until this number of steps, from the last checkpoint on, and note each step in the folder."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    number = dist.get_rank()
    layer = torch.nn.Linear(256, 256, bias=False)
    kept, at = os.path.join(folder, "checkpoint"), 0
    if os.path.exists(kept):
        state = torch.load(kept)
        layer.load_state_dict(state["layer"])
        at = state["at"]
    dist.barrier()  # all have read it before the first writes the next one
    model = DistributedDataParallel(layer)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    images = torch.ones(64, 256)
    while at < steps:
        end = time.monotonic() + STEP_S
        optimizer.zero_grad()
        ((model(images) - 1.0) ** 2).mean().backward()
        optimizer.step()
        at += 1
        note(folder, number, at)
        if at % SAVE_STEPS == 0 and number == 0:
            torch.save({"layer": layer.state_dict(), "at": at}, kept + ".new")
            os.replace(kept + ".new", kept)
        time.sleep(max(0.0, end - time.monotonic()))
    dist.destroy_process_group()


def note(folder: str, number: int, step: int) -> None:
    """Note the pid of this task and its last step, for the bench."""
    path = os.path.join(folder, f"task.{number}")
    with open(path + ".new", "w") as file:
        file.write(f"{os.getpid()} {step}")
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
