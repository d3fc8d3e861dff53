"""Ways to reach hosts: one module a transport, and what they share."""
