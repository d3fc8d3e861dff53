"""The real launcher with simulated hosts, up to the size of a large cluster."""
