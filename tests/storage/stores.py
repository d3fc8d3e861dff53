"""Stores of the tests, as programs see them: a real HDFS, S3 and Google Cloud Storage.

Tests look into them over HTTP, by nothing of launch or of what is below it, and without a thread.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import quote, urlencode, urlsplit

from tests.clusters import cache_folder
from tests.seeing import soon
from tests.storage.servers import Servers, answers, python_server

#: Seconds for an answer, and for a NameNode that begins to know its DataNodes.
_ANSWER, _UP = 60.0, 150.0
#: Few threads, a small heap: it starts in half of the time.
_JAVA = (
    "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CICompilerCount=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp",
)  # fmt: skip
_CLASSES = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
}
DATANODES = ("datanode1", "datanode2")


class Bucket:
    """A folder of a store that is a test's own.

    Args:
        servers: Which it is on.
        url: Of the folder.
        environ: Programs need these variables to reach it.
    """

    def __init__(self, servers: Servers, url: str, environ: Mapping[str, str]) -> None:
        self.servers, self.url, self.environ = servers, url, dict(environ)

    def of(self, name: str) -> str:
        """The URL of a file in the folder."""
        return f"{self.url}/{name}"

    @property
    def options(self) -> list[str]:
        """Options of ``launch`` that give these variables to its tasks."""
        return [word for item in self.environ.items() for word in ("-x", "=".join(item))]

    def put(self, name: str, content: bytes | IO[bytes]) -> str:
        """Write a file: its URL."""
        raise NotImplementedError

    def read(self, name: str) -> bytes:
        """The content of a file."""
        raise NotImplementedError

    def names(self) -> list[str]:
        """The paths of all files in the folder, sorted."""
        raise NotImplementedError


def _asked(
    url: str, method: str = "GET", body: bytes | IO[bytes] | None = None, *, size: int | None = None
) -> tuple[int, bytes, http.client.HTTPMessage]:
    """What a server answers: status, content and headers."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=_ANSWER)
    try:
        # S3 asks who it is, and does not look at the signature.
        headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request"}
        if body is not None:  # the emulator of Google's wants to know
            headers["Content-Type"] = f"application/{'json' if 'project=' in url else 'octet-stream'}"
        if size is not None:
            headers["Content-Length"] = str(size)
        connection.request(method, f"{parts.path}?{parts.query}", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def _good(url: str, method: str = "GET", body: bytes | IO[bytes] | None = None) -> bytes:
    """What a server answers to a request that must go well."""
    size = None
    if body is not None and not isinstance(body, bytes):
        size = os.fstat(body.fileno()).st_size
        body.seek(0)  # a server that named another one may have read some of it
    status, content, headers = _asked(url, method, body, size=size)
    if status == 307:  # a NameNode names the DataNode
        return _good(headers["Location"], method, body)
    assert 200 <= status < 300, (method, url, status, content[:500])
    return content


# ---------------------------------------------------------------------- HDFS


class Hdfs(Bucket):
    """A folder of an HDFS with one NameNode and two DataNodes; anybody may write into it."""

    def __init__(self, servers: Servers) -> None:
        self.port, self._web = servers.port("namenode", 8020), servers.port("namenode-http", 9870)
        #: The URL of the HDFS itself.
        self.root = f"hdfs://{servers.address}:{self.port}"
        self._folder = f"/test-{uuid.uuid4().hex[:12]}"
        super().__init__(servers, f"{self.root}{self._folder}", {})
        #: The same folder over HTTP.
        self.web_url = f"webhdfs://{servers.address}:{self._web}{self._folder}"

    def put(self, name: str, content: bytes | IO[bytes]) -> str:
        _good(self._call(name, "CREATE", overwrite="true"), "PUT", content)
        return self.of(name)

    def read(self, name: str) -> bytes:
        return _good(self._call(name, "OPEN"))

    def names(self) -> list[str]:
        return sorted(self._below(""))

    def _below(self, folder: str) -> Iterator[str]:
        listed = json.loads(_good(self._call(folder, "LISTSTATUS")))["FileStatuses"]["FileStatus"]
        for entry in listed:
            path = f"{folder}{entry['pathSuffix']}"
            if entry["type"] == "DIRECTORY":
                yield from self._below(f"{path}/")
            else:
                yield path

    def make_folder(self, name: str = "", rights: str = "777") -> str:
        """Make a folder with these rights: its URL."""
        _good(self._call(name, "MKDIRS", permission=rights), "PUT")
        if rights != "777" or not name:
            _good(self._call(name, "SETPERMISSION", permission=rights), "PUT")
        return self.of(name)

    def remove(self) -> None:
        """Remove the folder of the test."""
        _good(self._call("", "DELETE", recursive="true"), "DELETE")

    def _call(self, name: str, operation: str, **more: str) -> str:
        query = urlencode({"op": operation, "user.name": _superuser(), **more})
        path = quote(f"{self._folder}/{name}".rstrip("/"))
        return f"http://{self.servers.address}:{self._web}/webhdfs/v1{path}?{query}"

    # ------------------------------------------------------------------ its servers

    def start(self) -> None:
        """Start those of its servers that do not run, and wait until it can be written."""
        with self.servers.turn():
            if not (self.servers.folder / "name").exists():
                self._format()
            for name in ("namenode", *DATANODES):
                self.begin(name)
            soon(self._is_up, _UP, lambda: "\n".join(map(self.servers.log, ("namenode", *DATANODES))))

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Signal one of its servers: ``namenode``, ``datanode1`` or ``datanode2``."""
        self.servers.kill(name, number)

    def begin(self, name: str) -> None:
        """Start one of them; that it answers is another matter."""
        self.servers.start(
            name, [*self._java(name.rstrip("12")), *(self._own(name) if name[-1] in "12" else ())]
        )

    def _is_up(self) -> bool:
        """Whether the NameNode has left its safe mode and knows both DataNodes of now."""
        query = f"http://{self.servers.address}:{self._web}/jmx?qry=Hadoop:service=NameNode,name=NameNodeInfo"
        try:
            status, content, _ = _asked(query)
        except OSError:
            return False
        beans = json.loads(content)["beans"] if status == 200 else []
        known = beans[0] if beans else {}
        live = json.loads(known.get("LiveNodes", "{}")).values()
        # A NameNode takes a DataNode that comes again for the one before.
        listen = (answers(self.servers.address, self._port_of(name, 1)) for name in DATANODES)
        return (
            len(live) == len(DATANODES)
            and all(node["lastContact"] < 3 for node in live)
            and not known["Safemode"]
            and all(listen)
        )

    def _format(self) -> None:
        folder, address = self.servers.folder, self.servers.address
        settings = {
            "fs.defaultFS": self.root,
            "hadoop.tmp.dir": folder / "tmp",
            "dfs.replication": len(DATANODES),
            "dfs.namenode.name.dir": folder / "name",
            "dfs.namenode.http-address": f"{address}:{self._web}",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            # A NameNode that comes again leaves its safe mode after a second, and misses a DataNode after 14.
            "dfs.namenode.safemode.extension": 1000,
            "dfs.heartbeat.interval": "1s",
            "dfs.namenode.heartbeat.recheck-interval": 2000,
        }
        lines = "".join(
            f"<property><name>{k}</name><value>{v}</value></property>\n" for k, v in settings.items()
        )
        (folder / "site.xml").write_text(f"<configuration>\n{lines}</configuration>\n")
        made = subprocess.run(
            [*self._java("namenode"), "-format", "-force"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_UP,
        )
        assert (folder / "name/current/VERSION").exists(), made.stderr[-3000:]

    def _java(self, kind: str) -> list[str]:
        return [*_JAVA, f"{_jars()}/*", _CLASSES[kind], "-conf", str(self.servers.folder / "site.xml")]

    def _port_of(self, name: str, place: int) -> int:
        """The ports of a DataNode: for blocks, for HTTP, for calls."""
        return self.servers.port(f"{name}-{place}", 9880 + 10 * int(name[-1]) + place)

    def _own(self, name: str) -> list[str]:
        """What a DataNode has that the other has not."""
        address = self.servers.address
        settings = {"data.dir": str(self.servers.folder / name), "hostname": address}
        for place, kind in enumerate(("", "http.", "ipc.")):
            settings[f"{kind}address"] = f"{address}:{self._port_of(name, place)}"
        return [word for key, value in settings.items() for word in ("-D", f"dfs.datanode.{key}={value}")]


def _superuser() -> str:
    """Who has started the NameNode may do all."""
    import getpass

    return getpass.getuser()


def _jars() -> Path:
    """Hadoop's programs, downloaded once by Maven."""
    folder = cache_folder() / "hadoop-3.5.0"
    if not folder.exists():  # in the turn of who starts the servers; another run may be as far
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="hadoop-") as made:
            plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
            pom = Path(__file__).with_name("pom.xml")
            argv = ["mvn", "-q", "-B", "-f", str(pom), plugin, f"-DoutputDirectory={made}/jars"]
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, timeout=600)
            Path(made, "jars").rename(folder)
    return folder


@contextmanager
def a_folder_of_hdfs(servers: Servers) -> Iterator[Hdfs]:
    """An HDFS that runs, with a new folder, which goes at the end."""
    hdfs = Hdfs(servers)
    hdfs.start()
    hdfs.make_folder()
    yield hdfs
    hdfs.start()
    hdfs.remove()


# ---------------------------------------------------------------------- S3 and Google Cloud Storage


class S3(Bucket):
    """A bucket of moto's S3 server."""

    def __init__(self, servers: Servers) -> None:
        port = python_server(servers, "s3", 5000, "moto.server", "-H", "{0}", "-p", "{1}")
        self._bucket = f"test-{uuid.uuid4().hex[:12]}"
        #: Where the server is; a test may put something in front of it.
        self.endpoint = f"http://{servers.address}:{port}"
        super().__init__(servers, f"s3://{self._bucket}", _s3_environ(self.endpoint))
        _good(f"{self.endpoint}/{self._bucket}", "PUT")

    def put(self, name: str, content: bytes | IO[bytes]) -> str:
        _good(f"{self.endpoint}/{self._bucket}/{quote(name)}", "PUT", content)
        return self.of(name)

    def read(self, name: str) -> bytes:
        return _good(f"{self.endpoint}/{self._bucket}/{quote(name)}")

    def names(self) -> list[str]:
        listed = _good(f"{self.endpoint}/{self._bucket}?list-type=2").decode()
        return sorted(re.findall(r"<Key>(.*?)</Key>", listed))

    def deny(self, pattern: str) -> None:
        """Let a policy of the bucket deny everybody to read and write the files of this pattern."""
        denied = {
            "Effect": "Deny", "Principal": "*", "Action": ["s3:GetObject", "s3:HeadObject", "s3:PutObject"],
            "Resource": f"arn:aws:s3:::{self._bucket}/{pattern}",
        }  # fmt: skip
        policy = json.dumps({"Version": "2012-10-17", "Statement": [denied]}).encode()
        _good(f"{self.endpoint}/{self._bucket}?policy", "PUT", policy)

    def at(self, endpoint: str) -> dict[str, str]:
        """The variables that lead to the bucket over another address."""
        return _s3_environ(endpoint)


def _s3_environ(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip


class Gcs(Bucket):
    """A bucket of the emulator of Google Cloud Storage."""

    def __init__(self, servers: Servers) -> None:
        words = ("gcp_storage_emulator", "start", "--host={0}", "--port={1}", "--in-memory")
        port = python_server(servers, "gcs", 9023, *words)
        self._bucket, self._endpoint = f"test-{uuid.uuid4().hex[:12]}", f"http://{servers.address}:{port}"
        environ = {
            "STORAGE_EMULATOR_HOST": self._endpoint, "GOOGLE_CLOUD_PROJECT": "test",
            # Else the first call asks for the kind of the bucket where the emulator does not listen.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "FSSPEC_GS_TOKEN": "anon",
        }  # fmt: skip
        super().__init__(servers, f"gs://{self._bucket}", environ)
        named = json.dumps({"name": self._bucket}).encode()
        _good(f"{self._endpoint}/storage/v1/b?project=test", "POST", named)

    def put(self, name: str, content: bytes | IO[bytes]) -> str:
        query = urlencode({"uploadType": "media", "name": name})
        _good(f"{self._endpoint}/upload/storage/v1/b/{self._bucket}/o?{query}", "POST", content)
        return self.of(name)

    def read(self, name: str) -> bytes:
        return _good(f"{self._endpoint}/storage/v1/b/{self._bucket}/o/{quote(name, safe='')}?alt=media")

    def names(self) -> list[str]:
        listed = json.loads(_good(f"{self._endpoint}/storage/v1/b/{self._bucket}/o"))
        return sorted(item["name"] for item in listed.get("items", ()))
