"""The agent: runs on each host, starts tasks, passes on what they print, ends them. Standard library only.

`agent` is its loop. `connection` is its end of the connection to the launcher, and `passed_streams` accepts
the programs that make one. `questions` asks about the host in children, because answers may take long.
"""
