"""What is wrong with a set of hosts, from what probes on them saw. Pure."""
