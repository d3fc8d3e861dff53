"""The agent: the program on each host that starts tasks, passes on their output, and stops them.

`main` contains its entry points, and `agent` its loop. `connection` is its end of the connection to the
launcher, and `passed_streams` accepts the programs that make one. `questions` asks about the host in child
processes, because an answer may take long. These modules are sent to hosts: they may import nothing but the
standard library of Python 3.8, `launcher.common` and each other.
"""
