"""What the URL of a file or folder says, without looking whether it exists."""

import re
from importlib.util import find_spec
from typing import Optional, Tuple
from urllib.parse import unquote, urlsplit

from launcher.common.text import login_in

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
#: The module that fsspec needs for a scheme, the package that has it, and the extra of tf-launcher.
_PACKAGES = {
    "hdfs": ("hdfs_native", "hdfs-native", "hdfs"),
    "viewfs": ("hdfs_native", "hdfs-native", "hdfs"),
    "webhdfs": ("requests", "requests", "hdfs"),
    "s3": ("s3fs", "s3fs", "s3"),
    "s3a": ("s3fs", "s3fs", "s3"),
    "gs": ("gcsfs", "gcsfs", "gcs"),
    "gcs": ("gcsfs", "gcsfs", "gcs"),
    "http": ("aiohttp", "aiohttp", "http"),
    "https": ("aiohttp", "aiohttp", "http"),
}
#: What hdfs-native reads and writes.
HDFS = ("hdfs", "viewfs")
#: Stores of objects, in which a file appears as a whole when it is complete, and nothing is renamed.
OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss")
WEB_SCHEMES = ("http", "https")
#: What files can be written to.
WRITABLE = ("hdfs", "viewfs", "webhdfs", "s3", "s3a", "gs", "gcs", "file")
HIDDEN = "***"
#: A query in a text.
_QUERY = re.compile(r"\?[\w.%-]+=[^\s'\")]*")


def is_url(name: str) -> bool:
    """Return whether a name begins with a scheme, as in ``hdfs://``."""
    return _URL.match(name) is not None


def scheme_of(url: str) -> str:
    """Return the scheme of a URL in small letters, such as ``hdfs``. It is empty for a path."""
    found = _URL.match(url)
    return found.group(1).lower() if found else ""


def split_target(text: str) -> Tuple[str, str]:
    """Split ``PATH:URL`` at the first colon that a URL follows. Without one, the second text is empty."""
    path, *url = re.split(r":(?=[A-Za-z][A-Za-z0-9+.-]*://)", text, maxsplit=1)
    return path, "".join(url)


def local_path(url: str) -> Optional[str]:
    """Return the path of a ``file://`` URL, or None for any other URL."""
    if scheme_of(url) != "file":
        return None
    # What precedes the first slash is this machine. Names may contain what has a meaning in other URLs.
    return "/" + unquote(url.partition("://")[2].partition("/")[2])


def joined(url: str, *names: str) -> str:
    """Return the URL of something below a folder.

    Args:
        url: The URL of the folder, with or without a slash at its end.
        names: The names of folders in it, and of the file.
    """
    return "/".join([url.rstrip("/"), *names])


def shown(url: str) -> str:
    """Return a URL as messages show it: without a password and a query, which may be a secret, too."""
    return redacted(url, url)


def redacted(text: str, url: str) -> str:
    """Return a text without the secrets of a URL, which may occur in it.

    Args:
        text: A message, possibly of another library.
        url: The URL.
    """
    secrets = []
    if login := login_in(url):
        password = login.partition(":")[2]
        secrets += [login, password, unquote(password)]
    # In a pattern for another store than a web server, a question mark stands for a character.
    if scheme_of(url) in WEB_SCHEMES:
        secrets.append(url.partition("?")[2].partition("#")[0])
    for secret in secrets:
        # What is so short occurs by chance.
        if len(secret) > 1:
            text = text.replace(secret, HIDDEN)
    # Libraries write the query in other ways, or have one of their own, such as the token of WebHDFS.
    return _QUERY.sub(f"?{HIDDEN}", text) if scheme_of(url) in (*WEB_SCHEMES, "webhdfs") else text


def url_fault(url: str) -> str:
    """Return why a URL can be none, or an empty text."""
    try:
        parts = urlsplit(url)
        if scheme_of(url) in OBJECT_STORES:
            # A library would take the password as a bucket, and repeat parts of it.
            key = "expected a bucket; keys belong into variables or files" if login_in(url) else ""
            return key if parts.netloc else "names no bucket"
        parts.port  # noqa: B018 - it is read to be checked
    except ValueError:  # Its text may contain a password.
        return "expected a URL, as in hdfs://namenode:8020/data"
    if scheme_of(url) in HDFS and ("#" in url or "?" in url):
        # hdfs-native takes them for the end of the name, and would read another file.
        return "no name or pattern on HDFS may contain # or ?"
    return ""


def missing_package(url: str) -> str:
    """Return which package this Python lacks for a URL, with the command that installs it.

    Returns:
        A text such as ``hdfs-native is not installed: pip install 'tf-launcher[hdfs]'``, or an empty text if
        nothing is missing, as far as this is known.
    """
    if local_path(url) is not None:
        return ""
    module, package, extra = _PACKAGES.get(scheme_of(url), ("fsspec", "fsspec", ""))
    what = f"'tf-launcher[{extra}]'" if extra else package
    missing = [
        name for name, needed in (("fsspec", "fsspec"), (package, module)) if find_spec(needed) is None
    ]
    return f"{missing[0]} is not installed: pip install {what}" if missing else ""
