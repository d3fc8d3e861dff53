"""Text with line numbers: YAML as nodes that know their line, and every fault of a file at once.

``yaml_nodes`` is the only module that imports PyYAML (30 ms); import it where YAML is really read.
"""
