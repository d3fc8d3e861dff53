"""Install packages into an environment by uv, with pip's settings: ``python .ci/install.py .venv six``.

After the folder come arguments that ``uv pip install`` and ``pip install`` share. uv takes a quarter of pip's
time of a processor, and downloads side by side. If it fails, perhaps at a package index that only pip can
use, pip installs.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys

#: Settings of pip, and variables of uv.
SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "constraint": "UV_CONSTRAINT",
    "build-constraint": "UV_BUILD_CONSTRAINT",
}
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
UV = os.path.join(sys.prefix, "bin", "uv")


def settings() -> dict[str, str]:
    """What pip is configured for, as variables of uv."""
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # the best of all indexes
    listed = subprocess.run([*PIP, "config", "list"], check=True, capture_output=True, text=True).stdout
    # Lines as global.cert='/etc/ca.crt'. Those of variables begin with :env:, come first, and count more.
    for line in sorted(listed.splitlines()):
        name, _, value = line.partition("=")
        if variable := SETTINGS.get(name.rpartition(".")[2]):
            separator = "," if variable == "UV_FIND_LINKS" else " "
            found.setdefault(variable, separator.join(ast.literal_eval(value).split()))
    return found


def main(folder: str, *words: str) -> int:
    if not os.path.exists(UV) and (code := subprocess.run([*PIP, "install", "--quiet", "uv"]).returncode):
        return code
    uv = [UV, "pip", "install", "--quiet", "--python", folder, *words]
    if subprocess.run(uv, env={**os.environ, **settings()}).returncode:
        print("uv can't install that: now pip tries", flush=True)
        return subprocess.run([*PIP, "--python", folder, "install", *words]).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
