"""What messages show of URLs: never a password or a signed query, in whatever form a library repeats them."""

from __future__ import annotations

from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.common.text import without_passwords
from launcher.storage.urls import local_path, redacted, shown, url_fault

pytestmark = pytest.mark.promise(
    "no password and no signed query of a URL is printed, kept or in a command line"
)
#: Characters of passwords and keys. Those of AWS contain slashes.
SECRETS = st.text("abcXYZ0189/+=%:$!@.,-_~ é", min_size=3, max_size=40).map(lambda text: f"q{text}q")


@given(SECRETS, st.booleans())
def test_no_password_is_shown(password: str, quoted: bool):
    written = quote(password) if quoted else password
    url = f"s3://me:{written}@bucket/data/x.txt"
    for text in (url, f"cannot open '{url}'", f"user me with {password} at bucket", f"{written} is wrong"):
        hidden = redacted(text, url)
        assert written not in hidden and password not in hidden
    assert shown(url) == "s3://***@bucket/data/x.txt" and url_fault(url)
    assert password.strip() not in without_passwords(f"--report {url.replace(' ', '')}")


@given(SECRETS)
def test_no_query_of_a_web_server_is_shown(token: str):
    url = f"https://host/x.csv?X-Amz-Credential={quote(token)}&X-Amz-Signature={quote(token, safe='')}"
    for form in (url, unquote(url).replace(" ", "+"), url.replace("https:", "http:")):
        hidden = redacted(f"404, message='Not Found', url='{form}'", url)
        assert token.replace(" ", "+") not in hidden and quote(token) not in hidden
    assert shown(url) == "https://host/x.csv?***"


def test_the_token_of_webhdfs_is_not_shown():
    error = "500 Server Error for url: http://nn:9870/webhdfs/v1/x?op=OPEN&delegation=T0KEN"
    assert "T0KEN" not in redacted(error, "webhdfs://nn:9870/x")


@pytest.mark.parametrize(
    "url",
    [
        "hdfs://namenode:8020/data/part-*", "hdfs://nn1:8020/x@y", "s3://bucket/a?.txt",
        "file:///a b@c", "gs://b/x=y?z=1", "http://host:80/x@y", "http://[::1]:80/x",
    ],
)  # fmt: skip
def test_what_is_no_secret_is_shown(url: str):
    assert shown(url) == without_passwords(url) == url
    assert not url_fault(url)


@given(st.text(max_size=30))
def test_any_url_can_be_shown(rest: str):
    for scheme in ("hdfs", "s3", "https"):
        url = f"{scheme}://{rest}"
        assert isinstance(shown(url), str) and isinstance(url_fault(url), str)


def test_a_library_is_given_no_name_of_which_it_drops_the_end():
    for name in ("a#b", "a?b", "2026-1?.txt"):
        assert url_fault(f"hdfs://nn:8020/x/{name}") and not url_fault(f"s3://bucket/x/{name}")


def test_the_name_of_a_local_file_may_contain_anything():
    for path in ("/x/a#b", "/x/a?b", "/x/a b", "/"):
        assert local_path(f"file://{path}") == local_path(f"file://localhost{path}") == path
    assert local_path("hdfs://nn/x") is None
