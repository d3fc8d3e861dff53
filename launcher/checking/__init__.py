"""`launch check`: asks the hosts, and says what would break a job."""
