"""A task that cannot live beside another attempt of itself. Its word is when it ends with 0 (epoch seconds).

It holds its port and an abstract socket, and so does a child in a session of its own: the next attempt exits
with 97 while either of the last attempt lives. It prints ``up PID PORT``.
"""

import os
import signal
import socket
import sys
import time

address = os.environ["TASK_ADDRESS"]
port = int(address.rpartition(":")[2])
name = socket.socket(socket.AF_UNIX)
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    name.bind(f"\0alone-{address}")
    server.bind(("0.0.0.0", port))
    server.listen()
except OSError as error:
    print(f"another attempt lives: {error}", flush=True)
    os._exit(97)
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    time.sleep(600)
print(f"up {os.getpid()} {port}", flush=True)
while time.time() < float(sys.argv[1]):
    time.sleep(0.05)
os._exit(0)
