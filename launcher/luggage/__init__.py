"""Files that travel with a job: to the hosts before it, and back after it."""
