"""The agent: runs on each host, starts tasks, passes on what they print, ends them. Standard library only."""
