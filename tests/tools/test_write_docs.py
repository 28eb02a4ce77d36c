from documents import ROOT, run_tool


def test_pages_are_what_the_tool_writes(tmp_path):
    run_tool(f"python {ROOT}/tools/write_docs.py --out {tmp_path}")
    for page in tmp_path.iterdir():
        assert page.read_text() == (ROOT / "docs" / page.name).read_text(), "run python tools/write_docs.py"
    assert {page.name for page in tmp_path.iterdir()} == {"kinds.md", "zoo_table.md", "zoo.csv", "atlas_models.md"}
