"""What is wrong with a set of hosts, from what probes on them saw. Pure.

``launch check`` shows what `launcher.checking.findings` says of each `Sight` and `Pair`; before a launch
`launcher.checking.quick` says what agents' facts alone tell.
"""
