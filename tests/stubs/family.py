"""A program with a family that is hard to end. Its words are what it does, in this order.

========  ==================================================================
ignore    ignores SIGTERM, SIGINT, SIGHUP, SIGQUIT and SIGABRT from here on
child     starts a child in its own process group
setsid    starts a child in a session of its own
daemon    starts a daemon: its parent has ended, the session is its own
cleared   starts a daemon whose environment is empty
stopped   starts a child that stops itself (SIGSTOP)
tree      starts a child with a child with a child, each in a session of its own
stop      stops itself
exit=N    exits with N
sleep     sleeps for ever
========  ==================================================================

Every process writes a file named after its pid into the folder ``PIDS``, the main one also
``ready-ROLE-INDEX`` once all the family is there.
"""

import os
import signal
import sys
import time

FOLDER = os.environ["PIDS"]
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGABRT)


def note(name, text=b""):
    """Leave a file of this name."""
    file = os.open(f"{FOLDER}/{name}", os.O_CREAT | os.O_WRONLY)
    os.write(file, text)
    os.close(file)


def note_me():
    """By pid, and by when it was started: pids are used again."""
    with open("/proc/self/stat", "rb") as file:
        note(os.getpid(), file.read().rpartition(b")")[2].split()[19])


def fork(child):
    """Run ``child`` in a child; return when it has reported that it is there.

    What only starts a daemon has ended then, and stays a zombie.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        child(writing)
        os._exit(0)
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    if child in (daemon, cleared):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def stay(writing):
    """Be a process of the family: say so, and sleep."""
    note_me()
    os.write(writing, b"x")
    os.close(writing)
    time.sleep(600)


def in_session(writing):
    os.setsid()
    stay(writing)


def daemon(writing):
    """The double fork: what stays has another parent, and leads no session."""
    os.setsid()
    if os.fork() == 0:
        stay(writing)


def cleared(writing):
    os.setsid()
    if os.fork() == 0:
        note_me()
        os.set_inheritable(writing, True)
        code = f"import os, time; os.write({writing}, b'x'); os.close({writing}); time.sleep(600)"
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code], {})


def stopped(writing):
    note_me()
    os.write(writing, b"x")
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)


def tree(writing):
    os.setsid()
    fork(tree_below)
    stay(writing)


def tree_below(writing):
    os.setsid()
    fork(in_session)
    stay(writing)


def ignore():
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)


CHILDREN = {"child": stay, "setsid": in_session, "daemon": daemon, "cleared": cleared, "stopped": stopped,
            "tree": tree}  # fmt: skip


def main(words):
    note_me()
    last = next((word for word in words if word in ("stop", "sleep") or word.startswith("exit")), None)
    for word in words:
        if word == last:
            note(f"ready-{os.environ['JOB_NAME']}-{os.environ['TASK_INDEX']}")
        if word in CHILDREN:
            fork(CHILDREN[word])
        elif word == "ignore":
            ignore()
        elif word == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif word == "sleep":
            time.sleep(600)
        else:
            os._exit(int(word.partition("=")[2]))


main(sys.argv[1:])
