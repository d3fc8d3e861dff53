"""Hooks of mkdocs: make the reference, and a page of each file of the repository that a page links to."""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
from pathlib import Path

import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import launcher

ROOT = Path(__file__).resolve().parents[1]
#: Where files of the repository that are not in docs/ are on the site.
REPOSITORY = "repository/"
#: The first page is README.md.
FRONT = "index.md"

_FENCED = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)
_LINK = re.compile(r"\]\(([^()\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Link to the repository that this clone came from, and name the version."""
    git = ["git", "-C", str(ROOT), "config", "remote.origin.url"]
    origin = ""
    if shutil.which("git"):
        origin = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    web = re.fullmatch(r"(?:https://(?:[^/@]*@)?|git@)([\w.-]+)[/:]([\w./-]+?)(?:\.git)?", origin)
    if web:
        config.repo_url = f"https://{web[1]}/{web[2]}"
        config.repo_name = "source"
    config.copyright = f"launch {launcher.__version__}, Apache-2.0"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the files of the repository that pages link to."""
    try:
        generated = {FRONT: _front(), **reference.pages()}
    except ValueError as error:
        raise PluginError(str(error)) from error
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()} | generated
    for uri, text in generated.items():
        files.append(File.generated(config, uri, content=text))
    listed = re.findall(rf"\b{REPOSITORY}\S+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    wanted = [uri.removeprefix(REPOSITORY) for uri in listed]
    for uri, text in texts.items():
        wanted += _outside(_path(uri), text)
    while wanted:
        path = wanted.pop()
        uri = _uri(path)
        if uri in texts or not (ROOT / path).is_file():
            continue  # mkdocs itself reports a link to a file that does not exist
        texts[uri] = _content(path)
        files.append(File.generated(config, uri, content=texts[uri]))
        wanted += _outside(path, texts[uri])
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Turn links to files of the repository into links to their pages on the site, and link to the source."""
    uri = page.file.src_uri
    path = _path(uri)
    if config.repo_url and (ROOT / path).is_file():
        page.edit_url = f"{config.repo_url}/blob/HEAD/{path}"

    def changed(link: re.Match[str]) -> str:
        target, hash_, anchor = link[1].partition("#")
        if not target or "://" in target:
            return link[0]
        to = _uri(posixpath.normpath(posixpath.join(posixpath.dirname(path), target)))
        return f"]({posixpath.relpath(to, posixpath.dirname(uri) or '.')}{hash_}{anchor})"

    parts = []
    at = 0
    for fenced in _FENCED.finditer(markdown):
        parts += [_LINK.sub(changed, markdown[at : fenced.start()]), fenced[0]]
        at = fenced.end()
    return "".join([*parts, _LINK.sub(changed, markdown[at:])])


def _outside(path: str, text: str) -> list[str]:
    """The files outside docs/ that a page links to."""
    links = [link.partition("#")[0] for link in _LINK.findall(_FENCED.sub("", text)) if "://" not in link]
    paths = [posixpath.normpath(posixpath.join(posixpath.dirname(path), link)) for link in links if link]
    return [path for path in paths if not path.startswith("docs/")]


def _path(uri: str) -> str:
    """The path in the repository of a page of the site."""
    if uri == FRONT:
        return "README.md"
    if not uri.startswith(REPOSITORY):
        return f"docs/{uri}"
    path = uri.removeprefix(REPOSITORY)
    return path if (ROOT / path).is_file() else path.removesuffix(".md")


def _uri(path: str) -> str:
    """The page of a file of the repository."""
    if path == "README.md":
        return FRONT
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{REPOSITORY}{path}" if path.endswith(".md") else f"{REPOSITORY}{path}.md"


def _front() -> str:
    """README.md, with the version below its title."""
    title, _, text = _content("README.md").partition("\n")
    return f"{title}\n\nVersion {launcher.__version__}\n{text}"


def _content(path: str) -> str:
    """The page of a file: Markdown as it is, all other files as code."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    language = os.path.splitext(path)[1].lstrip(".")
    return f"---\nsearch: {{exclude: true}}\n---\n\n# {path}\n\n~~~~~~{language}\n{text}\n~~~~~~\n"
