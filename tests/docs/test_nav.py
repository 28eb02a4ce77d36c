import yaml
from documents import ROOT


def paths_in(nav: object) -> list[str]:
    """The pages that a tree of MkDocs' `nav` names."""
    if isinstance(nav, str):
        return [nav]
    return [path for part in (nav.values() if isinstance(nav, dict) else nav) for path in paths_in(part)]


def test_each_page_and_package_is_in_the_navigation():
    """As the strict build demands, which the default tests cannot run: without the extra `docs` there is no MkDocs."""
    named = paths_in(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    packages = {f"api/{path.parent.name}.md" for path in (ROOT / "soft_vit").glob("*/__init__.py")}
    assert {name for name in named if name.startswith("docs/")} == pages
    assert {name for name in named if name.startswith("api/")} == packages | {"api/soft_vit.md"}
    assert all((ROOT / name).is_file() for name in named if not name.startswith("api/"))
