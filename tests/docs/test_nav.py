import re

import yaml
from documents import ROOT


def paths_in(nav: object) -> list[str]:
    """Return the pages in a tree of MkDocs' `nav`."""
    if isinstance(nav, str):
        return [nav]
    return [path for part in (nav.values() if isinstance(nav, dict) else nav) for path in paths_in(part)]


def served_pages() -> set[str]:
    """Return pages of docs/, pages at the top, and pages to which they link, as docs/theme/hooks.py finds them."""
    found = [*(ROOT / "docs").rglob("*.md"), *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG"))]
    # The list grows during the loop.
    for page in found:
        linked = (page.parent / target for target in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text()))
        found += {path.resolve() for path in linked if path.is_file()}.difference(found)
    return {page.relative_to(ROOT).as_posix() for page in found}


def test_each_page_and_package_is_in_the_navigation():
    """The strict build checks this too, but needs the extra `docs`."""
    named = paths_in(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    packages = {f"api/{path.parent.name}.md" for path in (ROOT / "soft_vit").glob("*/__init__.py")}
    assert {name for name in named if not name.startswith("api/")} == served_pages()
    assert {name for name in named if name.startswith("api/")} == packages | {"api/soft_vit.md"}
    # MkDocs would serve a README.md in place of a page with the name of its folder.
    places = [name.removesuffix("/README.md").removesuffix(".md") for name in named]
    assert len(set(places)) == len(places)
