"""What the launcher shares with its programs on hosts: Python 3.8 and its standard library only."""
