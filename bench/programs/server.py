"""A task of TensorFlow: ``server.py FOLDER``.

`bench.preload` lets launch start it. It starts its server, notes its pid and the time in the folder, and
waits.
"""

import json
import os
import sys
import time

import tensorflow as tf

_TIME_LIMIT = 300.0

config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
server = tf.distribute.Server(config["cluster"], job_name=task["type"], task_index=task["index"])
name = f"{sys.argv[1]}/up.{task['index']}.{os.environ['LAUNCH_ATTEMPT']}"
with open(f"{name}.new", "w", encoding="ascii") as file:
    file.write(f"{os.getpid()} {time.monotonic()}")
os.rename(f"{name}.new", name)
end = time.monotonic() + _TIME_LIMIT
while time.monotonic() < end and not os.path.exists(f"{sys.argv[1]}/go"):
    time.sleep(0.02)
os._exit(0)
