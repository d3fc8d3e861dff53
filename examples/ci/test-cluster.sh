#!/bin/sh
# Test a cluster program as if on three machines: each task has its own container, name, file system and limits.
#
#     pip install PATH/TO/tf-launcher && ./test-cluster.sh
#
# The exit code is that of the job; nothing is left at the Docker engine, however it ends.
set -eu
cd "$(dirname "$0")"

# Your own image and program; the image needs a Python 3.8 or later, and what the program imports.
image=${IMAGE:-python:3.11-slim}

exec launch --docker "$image" --ps 1 --workers 2 \
    --memory 512m --cpus 1 --timeout 5m --report "${REPORT:-cluster-report.json}" \
    greet.py
