"""The files of the dashboard: complete, small, named by what is in them, and locked in."""

import gzip
import hashlib
import re
from pathlib import Path

import pytest

from delayd.http.ui_files import MEDIA_TYPES, UI_PATH, UiFile, ui_files
from tests.rigs.http import HttpRig

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "delayd" / "ui"
NAMES = sorted(path.name for path in FOLDER.iterdir() if path.suffix[1:] in MEDIA_TYPES)


def named(plain: str) -> tuple[str, UiFile]:
    """Return a file by the name that it has in the folder, with the one that it is served under."""
    stem, _, kind = plain.rpartition(".")
    (found,) = (
        name for name in ui_files() if re.fullmatch(rf"{stem}\.[0-9a-f]{{12}}\.{kind}", name)
    )
    return found, ui_files()[found]


def test_every_file_is_there_under_a_name_made_of_its_content() -> None:
    files = ui_files()
    assert len(files) == len(NAMES)
    for plain in NAMES:
        if plain == "index.html":
            continue
        name, file = named(plain)
        assert hashlib.sha256(file.body).hexdigest().startswith(name.split(".")[1])
        assert "immutable" in file.cache_control
        assert gzip.decompress(file.gzipped) == file.body
    assert files[""].cache_control == "no-cache"


def test_what_a_file_refers_to_is_there() -> None:
    for name, file in ui_files().items():
        for referred in re.findall(rb'(?:from|href=|src=|import) ?"\./([^"]*)"', file.body):
            assert referred.decode() in ui_files(), f"{name} refers to {referred.decode()}"
            assert referred.decode() not in NAMES, f"{name} refers to a name that is not served"


def test_all_of_it_is_less_than_150_kb_compressed() -> None:
    assert sum(len(file.gzipped) for file in ui_files().values()) < 150_000


def test_nothing_is_made_from_text_as_markup() -> None:
    makers = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(")
    for path in FOLDER.glob("*.js"):
        if path.name != "uplot.js":
            found = makers.findall(path.read_text())
            assert not found, f"{path.name} uses {found}: use h() of dom.js"


def test_the_charting_library_is_the_one_that_was_fetched() -> None:
    script = (ROOT / ".ci" / "vendor").read_text()
    table = {name: digest for digest, name in re.findall(r"([0-9a-f]{64})  (uplot\S+)", script)}
    assert set(table) == {path.name for path in FOLDER.glob("uplot*")}
    for name, digest in table.items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest


def test_the_page_is_served_with_nothing_inline_and_nothing_from_elsewhere() -> None:
    with HttpRig(needs_token=True, serves_ui=True) as rig:
        answer = rig.call("GET", UI_PATH)
        assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        page = answer.body.decode()
        assert not re.search(r"<script(?![^>]* src=)|<style| style=| on[a-z]+=", page)
        assert rig.call("GET", UI_PATH.removesuffix("/")).headers["location"] == UI_PATH
        for name in ui_files():
            assert rig.call("GET", UI_PATH + name).status == 200
        assert rig.call("GET", UI_PATH + "app.js").status == 404
        assert rig.call("GET", UI_PATH + "../secrets").status == 404
        assert rig.call("POST", UI_PATH, {}).status == 405


@pytest.mark.parametrize("name", ["", "app"])
def test_a_client_that_cannot_decompress_gets_plain_text(name: str) -> None:
    with HttpRig(serves_ui=True) as rig:
        path = UI_PATH + (named(f"{name}.js")[0] if name else "")
        plain = rig.call("GET", path)
        zipped = rig.call("GET", path, headers={"Accept-Encoding": "gzip, br"})
        assert "content-encoding" not in plain.headers
        assert zipped.headers["content-encoding"] == "gzip"
        assert gzip.decompress(zipped.body) == plain.body
