"""Prints output of one kind: ``printer.py KIND NUMBER``.

=========  ================================================================
endless    NUMBER MiB without a newline
lines      NUMBER lines, numbered and of different lengths
progress   a progress bar that rewrites its line NUMBER times
backspace  the same with backspaces
binary     every byte there is, NUMBER times
mebibytes  NUMBER MiB of lines of 100 bytes; then its seconds, in file TOOK
=========  ================================================================
"""

import os
import sys
import time


def say(data):
    """Write all of it."""
    while data:
        data = data[os.write(1, data) :]


def endless(number):
    block = b"x" * (1 << 20)
    for _ in range(number):
        say(block)


def lines(number):
    me = os.environ["TASK_INDEX"]
    text = [f"{me}:{n}:{'y' * (n * 7 % 150)}:end\n" for n in range(number)]
    say("".join(text).encode())


def progress(number):
    for n in range(number):
        say(b"\r%d/%d done" % (n + 1, number))
        time.sleep(0.0005)
    say(b"\n")


def backspace(number):
    say(b"step ")
    for n in range(number):
        word = b"%06d" % (n + 1)
        say(word + b"\b" * len(word) if n + 1 < number else word)
    say(b"\n")


def binary(number):
    say(bytes(range(256)) * number + b"\n")


def mebibytes(number):
    began = time.monotonic()
    line = b"z" * 99 + b"\n"
    for _ in range(number):
        say(line * 10486)
    with open(os.environ["TOOK"], "w") as file:
        file.write(str(time.monotonic() - began))


globals()[sys.argv[1]](int(sys.argv[2]))
