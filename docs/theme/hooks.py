"""Build the site's pages from the repository's own files, so that their links work on both, and add the API.

MkDocs knows each file by its path in the repository. Pages of docs/ are served at the root of the site. Files outside
of docs/ to which they link are served under repository/, and programs as plain text. The tutorial's page shows its
notebook's cells and outputs. The API has a page per package with each name in an `__all__`, and where modules have
none, each documented name without an underscore. A name in an `__all__` without a docstring, or one that is missing on
its page, fails a strict build.
"""

import base64
import itertools
import json
import logging
import re
import shutil
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from soft_vit.layers import ATTENTIONS

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#\s]+)")
# Host and path of a repository that was cloned by https or ssh.
REMOTE = re.compile(r"(?:https://(?:[^@/]+@)?|(?:ssh://)?git@)([^:/]+)[:/](.+?)(?:\.git)?")
# A paragraph of one picture.
PICTURE = re.compile(r'<p>(<img alt="([^"]+)"[^>]*>)</p>')
CHART = re.compile(r"(crossovers|curves|inference|memory|scatter|scores|training)\w*\.(png|svg)")
# The demos run on this npm package, on these of its files.
RUNTIME = "onnxruntime-web@1.30.0"
RUNTIME_FILES = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
WEIGHTS = [f"soft_plus_pico.{path.stem}.safetensors" for path in (ROOT / "docs" / "demo").glob("*.onnx")]
DEMO = re.compile(r'<div id="\w+-demo"')
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
NO_DEMO = "<p>This copy of the site lacks its demo: install npm, and repeat <code>mkdocs build</code>.</p>"
# Strict builds fail on its warnings.
log = logging.getLogger("mkdocs.hooks.api")

# How the paths of internal modules begin, of which the API shows the names in an `__all__` alone.
INTERNAL = tuple(f"soft_vit.{name}" for name in ("cli", "layers.", "models.", "ops.", "predict.app", "text_tables"))
# Classes of internal modules that it shows too, without their members.
ATTENTION_CLASSES = {f"{cls.__module__}.{cls.__qualname__}" for cls in ATTENTIONS.values()}
# The names on each page of the API, by the page's path.
names_of: dict[str, list[str]] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Link to the repository from which this copy was cloned, if it is on the web."""
    # docs/theme/docstrings.py imports from docs/, and the command `mkdocs` leaves the current folder out.
    sys.path.append(str(ROOT))
    command = ["git", "-C", str(ROOT), "config", "remote.origin.url"]
    found = subprocess.run(command, capture_output=True, text=True) if shutil.which("git") else None
    if found and (address := REMOTE.fullmatch(found.stdout.strip())):
        config.repo_url, config.repo_name = "https://{}/{}".format(*address.groups()), config.site_name
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ with those of the repository, and add the API."""
    of_docs = [file for file in files if file.src_dir == config.docs_dir]
    for file in of_docs:
        files.remove(file)
    found = [ROOT / "docs" / file.src_uri for file in of_docs if file.inclusion.is_included()]
    found += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    # The list grows during the loop, since files to which a page links are added.
    for path in found:
        files.append(_served(path, config))
        if path.suffix == ".md":
            linked = ((path.parent / target).resolve() for target in LINK.findall(path.read_text()))
            found += dict.fromkeys(x for x in linked if x.is_file() and ROOT in x.parents and x not in found)
    for name in WEIGHTS:
        files.append(File.generated(config, f"demo/{name}", abs_src_path=str(ROOT / "checkpoints" / name)))
    made: dict[str, str | bytes] = {f"api/{package}.md": text for package, text in api_pages().items()}
    made |= {f"demo/{name}": content for name, content in runtime().items()}
    for name, content in (made | tutorial()).items():
        files.append(File.generated(config, name, content=content))
    return files


def tutorial() -> dict[str, str | bytes]:
    """Return the tutorial's page and its pictures by path, from the notebook and its recorded outputs."""
    parts, pictures = [], {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            lines = "".join(output.get("text", ())).splitlines()
            for is_table, group in itertools.groupby(lines, lambda line: line.startswith("|")):
                text = "\n".join(group)
                parts.append(text if is_table else f"```text\n{text}\n```")
            if "image/png" in output.get("data", {}):
                name = f"tutorial_{len(pictures)}.png"
                pictures[name] = base64.b64decode(output["data"]["image/png"])
                parts.append(f"![Where a token looks]({name})")
    return {"tutorial.md": "\n\n".join(parts), **pictures}


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Link to the tutorial's page instead of its notebook."""
    folders = page.file.src_uri.count("/")
    return re.sub(r"\]\([\w./]*tutorial\.ipynb\)", f"]({'../' * folders}tutorial.md)", markdown)


@cache
def runtime() -> dict[str, bytes]:
    """Return the files of ONNX Runtime for browsers by name; none without npm and its registry."""
    with TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--prefer-offline", RUNTIME]
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            log.info(f"The pages lack their demos: {error}")
            return {}
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            return {name: archive.extractfile(f"package/dist/{name}").read() for name in RUNTIME_FILES}


def _served(path: Path, config: MkDocsConfig) -> File:
    """Return a file of the repository with its path in the site."""
    name = path.relative_to(ROOT).as_posix()
    place = name.removeprefix("docs/") if name.startswith("docs/") else f"repository/{name}"
    if path.suffix == ".py":
        place += ".txt"
    target = File(place, str(ROOT), config.site_dir, config.use_directory_urls).dest_uri
    return File(name, str(ROOT), config.site_dir, config.use_directory_urls, dest_uri=target)


def api_pages() -> dict[str, str]:
    """Return a Markdown page for each package in `soft_vit`, with its public names and those of its modules."""
    top = griffe.load("soft_vit", search_paths=[str(ROOT)])
    rooms, shown, pages = _modules_of(top), set(), {}
    packages = {"soft_vit": [top], **{room.name: _all_modules(room) for room in rooms if room.is_subpackage}}
    for name, modules in packages.items():
        names_of[f"api/{name}.md"] = []
        sections = _sections(modules, shown, names_of[f"api/{name}.md"])
        pages[name] = f"# {modules[0].path}\n{modules[0].docstring.value}\n\n{sections}"
    alone = [room for room in rooms if not room.is_subpackage]
    pages["soft_vit"] += _sections(alone, shown, names_of["api/soft_vit.md"])
    return pages


def _modules_of(package: griffe.Module) -> list[griffe.Module]:
    """Return the modules of a package, sorted, without imported ones."""
    own = (module for module in package.modules.values() if not module.is_alias)
    return sorted(own, key=lambda module: module.name)


def _all_modules(package: griffe.Module) -> list[griffe.Module]:
    """Return a package and all modules below it, each package before its modules."""
    return [package, *(deeper for module in _modules_of(package) for deeper in _all_modules(module))]


def _sections(modules: list[griffe.Module], shown: set[str], names: list[str]) -> str:
    """Return a section for each module with names that are not shown yet, and add these to shown and names."""
    sections = []
    for module in modules:
        new = [member for member in _public(module) if member.path not in shown and not member.is_module]
        for member in new:
            if not member.has_docstring:
                log.warning(f"{member.path} is listed in an __all__ and needs a docstring.")
        if new:
            paths = [member.path for member in new]
            shown.update(paths)
            names += paths
            hide = "\n    options: {members: false}"
            entries = (f"::: {path}{hide * (path in ATTENTION_CLASSES)}" for path in paths)
            sections += [f"## {module.path}", *entries]
    return "\n\n".join(sections) + "\n"


def _public(module: griffe.Module) -> list[griffe.Object]:
    """Return what a module lists in `__all__`, or else what it defines and documents under a public name."""
    if module.exports is not None:
        listed = [module[name] for name in module.exports if isinstance(name, str)]
        return list(dict.fromkeys(member.final_target if member.is_alias else member for member in listed))
    own = [member for member in module.members.values() if not member.is_alias and not member.is_module]
    if module.path.startswith(INTERNAL):
        return [member for member in own if member.path in ATTENTION_CLASSES]
    return [member for member in own if member.has_docstring and not member.name.startswith("_")]


def on_page_content(html: str, page: Page, **_: object) -> str:
    """Return a page with captions below its pictures. Warn of public names that are missing on a page of the API."""
    for name in names_of.get(page.file.src_uri, []):
        if f'id="{name}"' not in html:
            log.warning(f"{name} is public and missing from {page.file.src_uri}.")
    html = DEMO.sub(r"\g<0> data-ready" if runtime() else NO_DEMO + r"\g<0>", html)
    return PICTURE.sub(_figure, html)


def _figure(picture: re.Match[str]) -> str:
    """Return a picture with its caption; the style sheet turns charts dark, and lets them scroll on phones."""
    kind = ' class="chart"' if CHART.search(picture[1]) else ""
    return f"<figure{kind}>{picture[1]}<figcaption>{picture[2]}</figcaption></figure>"
